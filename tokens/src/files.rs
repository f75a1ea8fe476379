//! A model's files as the engine reads them: which special tokens there are and which templates.

use bytes::Bytes;
use indexmap::IndexMap;
use tokenizers::AddedToken;

use crate::json::{Json, Object};
use crate::unknown::LoadError;

/// The files of a model, as they lie beside its weights. Only the tokenizer must be there.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    /// `tokenizer.json`.
    pub tokenizer: Bytes,
    /// `tokenizer_config.json`: special tokens and, with older models, the chat template.
    pub tokenizer_config: Option<Bytes>,
    /// `special_tokens_map.json`; read only where the configuration lists no added tokens.
    pub special_tokens_map: Option<Bytes>,
    /// `config.json`: the model's architecture, since some are tokenised by the engine's own code.
    pub config: Option<Bytes>,
    /// The template that goes before the configuration's: `chat_template.jinja`, or the engine's own `--chat-template`.
    pub chat_template: Option<String>,
    /// How the engine was started, as far as it changes prompts.
    pub engine: EngineSettings,
}

/// Settings of the engine that change what a chat becomes.
#[derive(Clone, Debug, Default)]
pub struct EngineSettings {
    /// The context length in tokens: longer prompts are not worth encoding.
    pub context_length: Option<u32>,
    /// `--chat-template-content-format`; found from the template when absent.
    pub content_format: Option<ContentFormat>,
    /// `--default-chat-template-kwargs`, a JSON object.
    pub default_template_arguments: Option<String>,
    /// `--exclude-tools-when-tool-choice-none`.
    pub exclude_tools_when_not_chosen: bool,
    /// What comes between the parts of a content that is handed over as one string; a line break when absent.
    pub part_separator: Option<String>,
}

/// How a message's content is handed to the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As one string, its parts joined.
    String,
    /// As a list of parts.
    OpenAi,
}

/// The named special tokens that a template may use as variables, in the order of the engine's own list.
const NAMED: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Architectures whose prompts the engine makes by its own code, whatever the files say (vLLM 0.32.0).
const OWN_CODE: [&str; 8] = [
    "DeepseekV32ForCausalLM",
    "DeepseekV41ForCausalLM",
    "DeepseekV4ForCausalLM",
    "DeepseekV4ForConditionalGeneration",
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
    "MoonshotKimiaForCausalLM",
];
/// And a type of model whose chats have a format of their own.
const HARMONY: &str = "gpt_oss";

/// What the configuration says, ready for use.
#[derive(Debug, Default)]
pub(crate) struct TokenizerConfig {
    /// Template variables such as `bos_token`.
    pub(crate) variables: IndexMap<String, String>,
    /// Added tokens that are listed with their flags, by id; these flags count.
    pub(crate) listed: Vec<AddedToken>,
    /// Special tokens that are only named: added where `tokenizer.json` and the list do not have them.
    pub(crate) named: Vec<String>,
    /// Templates by name; a single one is called `default`.
    pub(crate) templates: IndexMap<String, String>,
    /// Special tokens in text are to be taken apart like other text.
    pub(crate) split_special_tokens: bool,
    /// What the engine's library calls the tokenizer; some classes rebuild it from its vocabulary.
    pub(crate) class: Option<String>,
}

impl TokenizerConfig {
    /// Reads the configuration files; a file that is absent says nothing.
    pub(crate) fn read(files: &ModelFiles) -> Result<TokenizerConfig, LoadError> {
        refuse_own_code(files)?;
        let mut members = object(files.tokenizer_config.as_ref(), "tokenizer_config.json")?;
        if !members.contains_key("added_tokens_decoder") {
            members.extend(object(
                files.special_tokens_map.as_ref(),
                "special_tokens_map.json",
            )?);
        }
        let mut config = TokenizerConfig {
            variables: variables(&members),
            listed: listed_tokens(&members),
            named: named_tokens(&members),
            templates: templates(members.get("chat_template")),
            split_special_tokens: members.get("split_special_tokens") == Some(&Json::Bool(true)),
            class: members
                .get("tokenizer_class")
                .and_then(Json::as_str)
                .map(str::to_owned),
        };
        if let Some(template) = &files.chat_template {
            config.templates = IndexMap::from([("default".to_owned(), template.clone())]);
        }
        Ok(config)
    }
}

fn refuse_own_code(files: &ModelFiles) -> Result<(), LoadError> {
    let config = object(files.config.as_ref(), "config.json")?;
    let architectures = match config.get("architectures") {
        Some(Json::List(names)) => names.as_slice(),
        _ => &[],
    };
    let own = architectures
        .iter()
        .filter_map(Json::as_str)
        .find(|name| OWN_CODE.contains(name));
    let kind = config.get("model_type").and_then(Json::as_str);
    match own.or(kind.filter(|&kind| kind == HARMONY)) {
        Some(own) => Err(LoadError::OwnCode(own.to_owned())),
        None => Ok(()),
    }
}

fn object(file: Option<&Bytes>, name: &'static str) -> Result<Object, LoadError> {
    let Some(bytes) = file else {
        return Ok(Object::new());
    };
    let unreadable = |reason: String| LoadError::Unreadable { file: name, reason };
    match serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))? {
        Json::Object(members) => Ok(members),
        other => Err(unreadable(format!(
            "it holds {} and no object",
            other.kind()
        ))),
    }
}

/// Every member `..._token` that names one; the well-known ones first.
fn variables(members: &Object) -> IndexMap<String, String> {
    let own = members
        .keys()
        .map(String::as_str)
        .filter(|name| name.ends_with("_token") && !NAMED.contains(name));
    NAMED
        .into_iter()
        .chain(own)
        .filter_map(|name| Some((name.to_owned(), content(members.get(name)?)?.to_owned())))
        .collect()
}

/// The text of a token that is written as a string or as an object.
fn content(token: &Json) -> Option<&str> {
    match token {
        Json::Str(text) => Some(text),
        Json::Object(members) => members.get("content").and_then(Json::as_str),
        _ => None,
    }
}

fn listed_tokens(members: &Object) -> Vec<AddedToken> {
    let Some(listed) = members
        .get("added_tokens_decoder")
        .and_then(Json::as_object)
    else {
        return Vec::new();
    };
    let mut by_id: Vec<(u32, AddedToken)> = listed
        .iter()
        .filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?)))
        .collect();
    by_id.sort_by_key(|(id, _)| *id);
    by_id.into_iter().map(|(_, token)| token).collect()
}

fn named_tokens(members: &Object) -> Vec<String> {
    let extra = ["extra_special_tokens", "additional_special_tokens"]
        .into_iter()
        .find_map(|name| members.get(name));
    let extra: Vec<&Json> = match extra {
        Some(Json::List(items)) => items.iter().collect(),
        Some(Json::Object(items)) => items.values().collect(),
        _ => Vec::new(),
    };
    variables(members)
        .into_values()
        .chain(extra.into_iter().filter_map(content).map(str::to_owned))
        .collect()
}

fn added_token(token: &Json) -> Option<AddedToken> {
    let members = token.as_object()?;
    let flag = |name: &str, default: bool| match members.get(name) {
        Some(Json::Bool(truth)) => *truth,
        _ => default,
    };
    let special = flag("special", false);
    Some(
        AddedToken::from(content(token)?, special)
            .single_word(flag("single_word", false))
            .lstrip(flag("lstrip", false))
            .rstrip(flag("rstrip", false))
            .normalized(flag("normalized", !special)),
    )
}

/// One template, or several as objects of `name` and `template`.
fn templates(member: Option<&Json>) -> IndexMap<String, String> {
    let named = |item: &Json| {
        let item = item.as_object()?;
        Some((
            item.get("name")?.as_str()?.to_owned(),
            item.get("template")?.as_str()?.to_owned(),
        ))
    };
    match member {
        Some(Json::Str(template)) => IndexMap::from([("default".to_owned(), template.clone())]),
        Some(Json::List(items)) => items.iter().filter_map(named).collect(),
        _ => IndexMap::new(),
    }
}
