//! A chat request as the engine takes it: what of its body reaches the chat template (vLLM 0.32.0).

mod calls;
mod content;
mod messages;
mod tools;

use minijinja::Value;

use crate::files::EngineSettings;
use crate::json::{Json, Object};
use crate::template::Now;
use crate::truncate::Truncation;
use crate::unknown::Unknown;

pub(crate) use content::Shape;
pub(crate) use messages::Conversation;

/// A chat request to be tokenised.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'b> {
    /// The request's body as the client sent it.
    pub body: &'b [u8],
    /// The engine's clock, for templates that read it. Without it such a chat is [`Unknown::TimeDependent`]: whoever gives
    /// it accepts that the engine may read its clock on the other side of midnight.
    pub now: Option<Now>,
}

impl<'b> From<&'b [u8]> for Chat<'b> {
    fn from(body: &'b [u8]) -> Chat<'b> {
        Chat { body, now: None }
    }
}

/// What of a body makes the prompt.
#[derive(Debug)]
pub(crate) struct Request {
    members: Object,
    pub(crate) has_tools: bool,
    pub(crate) add_special_tokens: bool,
    pub(crate) truncation: Truncation,
    continues: bool,
}

/// Names that the engine hands to its library itself, or that its library keeps for itself.
const RESERVED: [&str; 17] = [
    "messages",
    "conversation",
    "conversations",
    "chat",
    "tools",
    "documents",
    "chat_template",
    "tokenize",
    "return_dict",
    "return_tensors",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "padding",
    "truncation",
    "max_length",
    "self",
    "compiled_template",
];

impl Request {
    pub(crate) fn parse(body: &[u8]) -> Result<Request, Unknown> {
        let json: Json =
            serde_json::from_slice(body).map_err(|error| Unknown::Body(error.to_string()))?;
        let Json::Object(members) = json else {
            return Err(Unknown::Body(format!(
                "it is {} and no object",
                json.kind()
            )));
        };
        if present(&members, "chat_template").is_some() {
            return Err(Unknown::Unsupported(
                "a chat template in the request".into(),
            ));
        }
        if present(&members, "prompt_embeds").is_some() {
            return Err(Unknown::Multimodal("prompt_embeds".into()));
        }
        let continues = boolean(&members, "continue_final_message", false)?;
        let prompts = boolean(&members, "add_generation_prompt", true)?;
        if continues && prompts {
            return Err(Unknown::Refused(
                "continue_final_message together with add_generation_prompt".into(),
            ));
        }
        Ok(Request {
            has_tools: present(&members, "tools").is_some(),
            add_special_tokens: boolean(&members, "add_special_tokens", false)?,
            truncation: Truncation::of(&members)?,
            continues,
            members,
        })
    }

    /// Whether the final message is to be continued.
    pub(crate) fn continues(&self) -> bool {
        self.continues
    }

    /// The messages as the engine normalises them.
    pub(crate) fn conversation(&self, shape: Shape<'_>) -> Result<Conversation, Unknown> {
        Conversation::of(self.members.get("messages").unwrap_or(&Json::Null), shape)
    }

    /// The template's variables beside the messages.
    pub(crate) fn variables(
        &self,
        engine: &EngineSettings,
        defaults: &Object,
    ) -> Result<Vec<(String, Value)>, Unknown> {
        let mut variables = defaults.clone();
        let own = object(&self.members, "chat_template_kwargs")?;
        let own_thinking = own.is_some_and(|own| own.contains_key("enable_thinking"));
        for (name, value) in own.into_iter().flatten() {
            if RESERVED.contains(&name.as_str()) {
                return Err(Unknown::Unsupported(format!(
                    "a template argument {name:?}"
                )));
            }
            if is_set(value) {
                variables.insert(name.clone(), value.clone());
            }
        }
        if let Some(effort) = present(&self.members, "reasoning_effort") {
            let effort = effort
                .as_str()
                .ok_or_else(|| Unknown::Refused("a reasoning_effort that is no string".into()))?;
            variables.insert("reasoning_effort".into(), effort.into());
            if !own_thinking {
                variables.insert("enable_thinking".into(), Json::Bool(effort != "none"));
            }
        }
        let prompts = boolean(&self.members, "add_generation_prompt", true)?;
        variables.insert("add_generation_prompt".into(), Json::Bool(prompts));
        variables.shift_remove("continue_final_message");
        variables.insert("tools".into(), self.tools(engine)?);
        variables.insert("documents".into(), documents(&self.members)?);
        Ok(variables
            .into_iter()
            .map(|(name, value)| (name, Value::from(value)))
            .collect())
    }

    fn tools(&self, engine: &EngineSettings) -> Result<Json, Unknown> {
        let Some(tools) = present(&self.members, "tools") else {
            return Ok(Json::Null);
        };
        let tools = tools::of(tools)?;
        let chosen = present(&self.members, "tool_choice").and_then(Json::as_str) != Some("none");
        Ok(if chosen || !engine.exclude_tools_when_not_chosen {
            tools
        } else {
            Json::Null
        })
    }
}

/// Not one of the values that the engine drops: for it they mean that nothing was said.
fn is_set(value: &Json) -> bool {
    *value != Json::Null && value.as_str() != Some("auto")
}

fn documents(members: &Object) -> Result<Json, Unknown> {
    let Some(documents) = present(members, "documents") else {
        return Ok(Json::Null);
    };
    let is_text = |document: &Json| {
        document
            .as_object()
            .is_some_and(|document| document.values().all(|value| value.as_str().is_some()))
    };
    match documents {
        Json::List(items) if items.iter().all(is_text) => Ok(documents.clone()),
        _ => Err(Unknown::Refused(
            "documents that are not objects of strings".into(),
        )),
    }
}

pub(crate) fn present<'o>(members: &'o Object, name: &str) -> Option<&'o Json> {
    members.get(name).and_then(Json::some)
}

/// A member that must be a boolean: what else the engine's lax reading makes of it is not repeated here.
pub(crate) fn boolean(members: &Object, name: &str, default: bool) -> Result<bool, Unknown> {
    match members.get(name) {
        None => Ok(default),
        Some(Json::Bool(truth)) => Ok(*truth),
        Some(other) => Err(Unknown::Unsupported(format!("{name} as {}", other.kind()))),
    }
}

fn object<'o>(members: &'o Object, name: &str) -> Result<Option<&'o Object>, Unknown> {
    match present(members, name) {
        None => Ok(None),
        Some(Json::Object(object)) => Ok(Some(object)),
        Some(other) => Err(Unknown::Refused(format!("{name} as {}", other.kind()))),
    }
}
