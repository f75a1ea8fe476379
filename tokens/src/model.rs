//! One model's way from requests to tokens.

use indexmap::IndexMap;
use minijinja::Value;

use crate::chat::{Chat, Request, Shape};
use crate::completion::{Completion, Prompt};
use crate::encoder::{Encoded, Encoder};
use crate::files::{ContentFormat, EngineSettings, ModelFiles, TokenizerConfig};
use crate::json::{Json, Object};
use crate::limits::Limits;
use crate::template::{Now, Template};
use crate::unknown::{LoadError, Unknown};

/// What the engine's library puts at the end of a message that is to be continued, to find it in the rendered text.
const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// One model's way from text to tokens. Threads share it; nothing in it waits but for a lock held for moments.
#[derive(Debug)]
pub struct Model {
    encoder: Encoder,
    /// By name; the engine takes `tool_use`, where there is one, for requests with tools.
    templates: IndexMap<String, Result<Template, String>>,
    variables: Vec<(String, Value)>,
    defaults: Object,
    engine: EngineSettings,
    class: Option<String>,
    limits: Limits,
    most_bytes: usize,
}

/// A prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Exactly the tokens that the engine makes of the request.
    pub tokens: Vec<u32>,
    /// Bytes of the text that the template made.
    pub text_bytes: usize,
    /// Bytes of it that had to be encoded: the rest was remembered.
    pub fresh_bytes: usize,
}

/// What an operator may want to know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Which tokenizer runs.
    pub tokenizer: &'static str,
    /// The tokenizer's class in the configuration. Some classes of the engine's library rebuild the tokenizer from its
    /// vocabulary by rules of their own, so that only a comparison with the engine tells.
    pub class: Option<String>,
    /// Whether texts are cut at special tokens, so that a chat's next turn costs only what is new in it.
    pub cuts_texts: bool,
    /// Bytes that the memory of encoded pieces holds.
    pub memory_bytes: u64,
    /// Bytes of a text that are encoded at most.
    pub most_bytes: usize,
    /// By template's name: what is known of it.
    pub templates: Vec<(String, ShownTemplate)>,
}

/// What an operator may want to know of a chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownTemplate {
    /// It is rendered here.
    Rendered {
        /// How it takes a message's content.
        content_format: ContentFormat,
        /// Whether it asks for the date.
        time_dependent: bool,
    },
    /// It is left to the engine, for this reason.
    LeftToTheEngine(String),
}

impl Model {
    /// Reads a model's files and checks on built-in texts that the tokenizer does what is expected of it.
    pub fn load(files: &ModelFiles, limits: Limits) -> Result<Model, LoadError> {
        if files.tokenizer.len() > limits.most_file_bytes {
            let (bytes, most) = (files.tokenizer.len(), limits.most_file_bytes);
            return Err(LoadError::TooLarge {
                file: "tokenizer.json",
                bytes,
                most,
            });
        }
        let config = TokenizerConfig::read(files)?;
        let encoder = Encoder::load(&files.tokenizer, &config, &limits)?;
        let compile = |(name, source): (String, String)| {
            (name, Template::compile(&source, limits.template_fuel))
        };
        let most_bytes = most_bytes(&encoder, &files.engine, &limits);
        Ok(Model {
            encoder,
            templates: config.templates.into_iter().map(compile).collect(),
            variables: config
                .variables
                .into_iter()
                .map(|(name, text)| (name, Value::from(text)))
                .collect(),
            defaults: defaults(&files.engine)?,
            engine: files.engine.clone(),
            class: config.class,
            limits,
            most_bytes,
        })
    }

    /// The tokens of a text prompt, with the special tokens that the engine adds to it (it does so by default).
    pub fn completion(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Unknown> {
        Ok(self.encode(text, add_special_tokens)?.tokens)
    }

    /// The tokens of each prompt of a `/v1/completions` body: text, token ids, or a list of either.
    pub fn completions(&self, body: &[u8]) -> Result<Vec<Vec<u32>>, Unknown> {
        self.refuse_long(body.len())?;
        let Completion {
            prompts,
            add_special_tokens,
            truncation,
        } = Completion::parse(body)?;
        let special = self.special_tokens(add_special_tokens);
        let tokens = |prompt: Prompt| match prompt {
            Prompt::Text(text) => {
                truncation.apply(self.encode(&text, add_special_tokens)?.tokens, special)
            }
            Prompt::Tokens(tokens) => truncation.apply(tokens, Some((0, 0))),
        };
        prompts.into_iter().map(tokens).collect()
    }

    /// The tokens of a chat.
    pub fn chat(&self, chat: &Chat<'_>) -> Result<Rendered, Unknown> {
        self.refuse_long(chat.body.len())?;
        let request = Request::parse(chat.body)?;
        let text = self.text_of(&request, chat.now)?;
        let Encoded {
            tokens,
            fresh_bytes,
        } = self.encode(&text, request.add_special_tokens)?;
        let tokens = request
            .truncation
            .apply(tokens, self.special_tokens(request.add_special_tokens))?;
        Ok(Rendered {
            tokens,
            text_bytes: text.len(),
            fresh_bytes,
        })
    }

    /// The text that the template makes of a chat: for those who look for a difference to the engine.
    pub fn chat_text(&self, chat: &Chat<'_>) -> Result<String, Unknown> {
        self.refuse_long(chat.body.len())?;
        self.text_of(&Request::parse(chat.body)?, chat.now)
    }

    /// What an operator may want to know.
    pub fn shown(&self) -> Shown {
        let template = |template: &Result<Template, String>| match template {
            Ok(template) => ShownTemplate::Rendered {
                content_format: self
                    .engine
                    .content_format
                    .unwrap_or(template.content_format),
                time_dependent: template.reads_clock,
            },
            Err(reason) => ShownTemplate::LeftToTheEngine(reason.clone()),
        };
        Shown {
            tokenizer: "tokenizers",
            class: self.class.clone(),
            cuts_texts: self.encoder.cuts_texts(),
            memory_bytes: self.encoder.memory_bytes(),
            most_bytes: self.most_bytes,
            templates: self
                .templates
                .iter()
                .map(|(name, each)| (name.clone(), template(each)))
                .collect(),
        }
    }

    fn text_of(&self, request: &Request, now: Option<Now>) -> Result<String, Unknown> {
        let template = self.template(request.has_tools)?;
        let format = self
            .engine
            .content_format
            .unwrap_or(template.content_format);
        let separator = self.engine.part_separator.as_deref().unwrap_or("\n");
        let mut conversation = request.conversation(Shape { format, separator })?;
        if conversation.has_developer()
            && !template.mentions("\"developer\"")
            && !template.mentions("'developer'")
        {
            conversation = conversation.with_developer_as_system();
        }
        let continued = if request.continues() {
            Some(conversation.mark_end(CONTINUE_MARK)?)
        } else {
            None
        };
        if continued.is_some() && !template.mentions("content") {
            return Err(Unknown::Refused(
                "to continue a message whose content the template does not use".into(),
            ));
        }
        let mut variables = self.variables.clone();
        variables.extend(request.variables(&self.engine, &self.defaults)?);
        variables.push(("messages".to_owned(), conversation.into_value()));
        let text = template.render(variables, now, self.limits.most_bytes)?;
        match continued {
            Some(last) => cut_at_mark(&text, &last),
            None => Ok(text),
        }
    }

    fn template(&self, with_tools: bool) -> Result<&Template, Unknown> {
        let by_tools = if with_tools {
            self.templates.get("tool_use")
        } else {
            None
        };
        match by_tools.or_else(|| self.templates.get("default")) {
            Some(Ok(template)) => Ok(template),
            Some(Err(reason)) => Err(Unknown::Template(reason.clone())),
            None => Err(Unknown::NoTemplate),
        }
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Encoded, Unknown> {
        self.refuse_long(text.len())?;
        self.encoder.encode(text, add_special_tokens)
    }

    fn refuse_long(&self, bytes: usize) -> Result<(), Unknown> {
        let most = self.most_bytes;
        if bytes > most {
            Err(Unknown::TooLong { bytes, most })
        } else {
            Ok(())
        }
    }

    fn special_tokens(&self, added: bool) -> Option<(usize, usize)> {
        if added {
            self.encoder
                .special_tokens()
                .map(|(before, after)| (before.len(), after.len()))
        } else {
            Some((0, 0))
        }
    }
}

/// No context holds more bytes than its tokens can spell, and none is worth more than the limit.
fn most_bytes(encoder: &Encoder, engine: &EngineSettings, limits: &Limits) -> usize {
    /// The longest UTF-8 sequence; and what a JSON body may need for one of its bytes.
    const BYTES_PER_CHAR: usize = 6;
    let context = engine
        .context_length
        .map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
    let held = context.map(|tokens| {
        tokens
            .saturating_mul(encoder.longest_token_chars())
            .saturating_mul(BYTES_PER_CHAR)
            .saturating_add(1 << 16)
    });
    held.unwrap_or(usize::MAX).min(limits.most_bytes)
}

fn defaults(engine: &EngineSettings) -> Result<Object, LoadError> {
    let file = "the engine's default template arguments";
    let Some(text) = &engine.default_template_arguments else {
        return Ok(Object::new());
    };
    match serde_json::from_str(text) {
        Ok(Json::Object(members)) => Ok(members),
        Ok(other) => Err(LoadError::Unreadable {
            file,
            reason: format!("they are {} and no object", other.kind()),
        }),
        Err(error) => Err(LoadError::Unreadable {
            file,
            reason: error.to_string(),
        }),
    }
}

/// Cuts a rendered chat where the final message ends, so that the model goes on with it.
fn cut_at_mark(text: &str, last: &str) -> Result<String, Unknown> {
    let mark = CONTINUE_MARK.trim_end();
    let refused = || Unknown::Refused("to continue a message that the template changes".into());
    let at = text.rfind(mark).ok_or_else(refused)?;
    if !text.contains(crate::template::strip(last)) {
        return Err(refused());
    }
    // A template that trims the message takes the mark's blank with it, and then the message's own.
    let kept = &text[..at];
    let spaced = text[at..].starts_with(CONTINUE_MARK);
    Ok(if spaced {
        kept
    } else {
        crate::template::strip_end(kept)
    }
    .to_owned())
}
