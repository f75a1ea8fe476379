//! Messages as the engine normalises them before the template sees them.

use minijinja::Value;

use super::calls::tool_call;
use super::content::{Shape, content};
use crate::json::{Json, Object};
use crate::unknown::Unknown;

/// The messages that a template is given.
#[derive(Debug)]
pub(crate) struct Conversation(Vec<Object>);

impl Conversation {
    pub(super) fn of(messages: &Json, shape: Shape<'_>) -> Result<Conversation, Unknown> {
        match messages {
            Json::List(items) if items.is_empty() => {
                Err(Unknown::Refused("a chat without messages".into()))
            }
            Json::List(items) => Ok(Conversation(
                items
                    .iter()
                    .map(|item| message(item, shape))
                    .collect::<Result<_, _>>()?,
            )),
            other => Err(Unknown::Refused(format!("messages as {}", other.kind()))),
        }
    }

    /// Whether a message is a developer's, which few templates know.
    pub(crate) fn has_developer(&self) -> bool {
        self.0.iter().any(|message| role(message) == "developer")
    }

    /// Developers' messages as system ones, and all system messages as one in front if they were not so already.
    pub(crate) fn with_developer_as_system(mut self) -> Conversation {
        for message in &mut self.0 {
            if role(message) == "developer" {
                message.insert("role".into(), "system".into());
                message.shift_remove("tools");
            }
        }
        let scattered = self
            .0
            .iter()
            .enumerate()
            .any(|(nth, message)| nth > 0 && role(message) == "system");
        if scattered {
            let (system, mut rest): (Vec<_>, Vec<_>) = self
                .0
                .into_iter()
                .partition(|message| role(message) == "system");
            let texts: Vec<String> = system
                .iter()
                .filter_map(|message| message.get("content").map(joined))
                .filter(|text| !text.is_empty())
                .collect();
            let merged = Object::from_iter([
                ("role".to_owned(), "system".into()),
                ("content".to_owned(), Json::Str(texts.join("\n\n"))),
            ]);
            rest.insert(0, merged);
            self.0 = rest;
        }
        self
    }

    /// Puts a mark at the end of the last message's text and gives the text without it.
    pub(crate) fn mark_end(&mut self, mark: &str) -> Result<String, Unknown> {
        let nothing = || Unknown::Refused("to continue a message without text".into());
        let text = match self
            .0
            .last_mut()
            .and_then(|message| message.get_mut("content"))
        {
            Some(Json::Str(text)) => text,
            Some(Json::List(parts)) => {
                let texts = parts.iter_mut().rev().find_map(|part| {
                    if let Json::Object(part) = part {
                        part.get_mut("text")
                    } else {
                        None
                    }
                });
                let Some(Json::Str(text)) = texts else {
                    return Err(nothing());
                };
                text
            }
            _ => return Err(nothing()),
        };
        let before = text.clone();
        text.push_str(mark);
        Ok(before)
    }

    /// The template's `messages`.
    pub(crate) fn into_value(self) -> Value {
        Value::from(Json::List(self.0.into_iter().map(Json::Object).collect()))
    }
}

fn role(message: &Object) -> &str {
    message
        .get("role")
        .and_then(Json::as_str)
        .unwrap_or_default()
}

fn joined(content: &Json) -> String {
    match content {
        Json::Str(text) => text.clone(),
        Json::List(parts) => parts
            .iter()
            .filter_map(|part| part.as_object()?.get("text")?.as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}

/// One message: the members that the engine passes on, in its order.
fn message(message: &Json, shape: Shape<'_>) -> Result<Object, Unknown> {
    let members = message
        .as_object()
        .ok_or_else(|| Unknown::Refused("a message that is no object".into()))?;
    let role = match members.get("role") {
        Some(Json::Str(role)) => role.as_str(),
        _ => return Err(Unknown::Refused("a message without a role".into())),
    };
    for name in ["audio", "function_call", "refusal"] {
        if members.get(name).and_then(Json::some).is_some() {
            return Err(Unknown::Unsupported(format!("a message with {name}")));
        }
    }
    let mut shown = Object::new();
    shown.insert("role".into(), role.into());
    shown.insert(
        "content".into(),
        content(members.get("content"), role, shape)?,
    );
    match role {
        "assistant" => of_assistant(members, &mut shown)?,
        "tool" => text_member(members, "tool_call_id", "tool_call_id", &mut shown)?,
        _ => {}
    }
    text_member(members, "name", "name", &mut shown)?;
    text_member(members, "task", "task", &mut shown)?;
    if role == "developer" {
        if members.get("tools").and_then(Json::some).is_some() {
            return Err(Unknown::Unsupported(
                "a developer's message with tools".into(),
            ));
        }
        shown.insert("tools".into(), Json::Null);
    }
    Ok(shown)
}

fn of_assistant(members: &Object, shown: &mut Object) -> Result<(), Unknown> {
    if let Some(calls) = members.get("tool_calls").and_then(Json::some) {
        let Json::List(calls) = calls else {
            return Err(Unknown::Unsupported(format!(
                "tool_calls as {}",
                calls.kind()
            )));
        };
        // An empty list is dropped, so that templates take the ordinary path.
        if !calls.is_empty() {
            shown.insert(
                "tool_calls".into(),
                Json::List(calls.iter().map(tool_call).collect::<Result<_, _>>()?),
            );
        }
    }
    let from = if members.get("reasoning").and_then(Json::some).is_some() {
        "reasoning"
    } else {
        "reasoning_content"
    };
    text_member(members, from, "reasoning", shown)?;
    text_member(members, from, "reasoning_content", shown)
}

fn text_member(members: &Object, from: &str, to: &str, shown: &mut Object) -> Result<(), Unknown> {
    match members.get(from).and_then(Json::some) {
        None => Ok(()),
        Some(text @ Json::Str(_)) => {
            shown.insert(to.into(), text.clone());
            Ok(())
        }
        Some(other) => Err(Unknown::Unsupported(format!(
            "a message's {from} as {}",
            other.kind()
        ))),
    }
}
