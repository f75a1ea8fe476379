//! The prompts of a `/v1/completions` body: text, token ids, or a list of either.

use crate::chat::{boolean, present};
use crate::json::{Json, Object};
use crate::truncate::Truncation;
use crate::unknown::Unknown;

/// What of a completion's body makes its prompts.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) add_special_tokens: bool,
    pub(crate) truncation: Truncation,
}

/// One prompt.
#[derive(Debug)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Completion {
    pub(crate) fn parse(body: &[u8]) -> Result<Completion, Unknown> {
        let json: Json =
            serde_json::from_slice(body).map_err(|error| Unknown::Body(error.to_string()))?;
        let Json::Object(members) = json else {
            return Err(Unknown::Body(format!(
                "it is {} and no object",
                json.kind()
            )));
        };
        for name in ["suffix", "prompt_embeds"] {
            if present(&members, name).is_some() {
                return Err(Unknown::Unsupported(name.to_owned()));
            }
        }
        Ok(Completion {
            prompts: prompts(&members)?,
            add_special_tokens: boolean(&members, "add_special_tokens", true)?,
            truncation: Truncation::of(&members)?,
        })
    }
}

fn prompts(members: &Object) -> Result<Vec<Prompt>, Unknown> {
    let refused = || Unknown::Refused("this prompt".into());
    match members.get("prompt") {
        Some(Json::Str(text)) => Ok(vec![Prompt::Text(text.clone())]),
        Some(Json::List(items)) => match items.first() {
            Some(Json::Int(_)) => Ok(vec![Prompt::Tokens(tokens(items)?)]),
            Some(_) => items.iter().map(one).collect(),
            None => Err(refused()),
        },
        _ => Err(refused()),
    }
}

fn one(item: &Json) -> Result<Prompt, Unknown> {
    match item {
        Json::Str(text) => Ok(Prompt::Text(text.clone())),
        Json::List(items) => Ok(Prompt::Tokens(tokens(items)?)),
        other => Err(Unknown::Refused(format!("a prompt as {}", other.kind()))),
    }
}

fn tokens(items: &[Json]) -> Result<Vec<u32>, Unknown> {
    let token = |item: &Json| match item {
        Json::Int(id) => u32::try_from(*id).ok(),
        _ => None,
    };
    items
        .iter()
        .map(token)
        .collect::<Option<_>>()
        .ok_or_else(|| Unknown::Refused("these token ids".into()))
}
