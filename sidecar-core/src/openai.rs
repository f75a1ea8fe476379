//! What answers of an OpenAI-shaped API mean, as engines give them.

use baton_proto::json::RawObject;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::engine::Verdict;

/// How a choice ends that the engine did not finish. Its answer has the status 200 all the same.
const ABORTED: &str = "abort";

/// What the data of a streamed event means.
pub fn judge_event(data: &[u8]) -> Verdict {
    if data == b"[DONE]" {
        return Verdict::Done;
    }
    let Ok(object) = RawObject::parse(data) else {
        return Verdict::Failed {
            status: 502,
            message: "an event that is not a JSON object".to_owned(),
        };
    };
    if let Some(error) = object.get_set("error") {
        return in_band_error(error);
    }
    let choices: Vec<Value> = object.get_as("choices").unwrap_or_default();
    if choices.iter().any(is_aborted) {
        return Verdict::Failed {
            status: 500,
            message: "the request was aborted".to_owned(),
        };
    }
    if choices.iter().any(carries_token) {
        Verdict::Token
    } else {
        Verdict::Preamble
    }
}

/// `{"error": {"message", "code"}}` inside a 200.
fn in_band_error(raw: &str) -> Verdict {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct InBand {
        message: String,
        code: Option<u16>,
    }
    let error: InBand = serde_json::from_str(raw).unwrap_or_default();
    Verdict::Failed {
        status: error.code.unwrap_or(500),
        message: error.message,
    }
}

fn is_aborted(choice: &Value) -> bool {
    choice.get("finish_reason").and_then(Value::as_str) == Some(ABORTED)
}

/// Chat sends a chunk with nothing but a role before the KV has arrived; everything else needs it.
fn carries_token(choice: &Value) -> bool {
    let filled = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    let delta = choice.get("delta").and_then(Value::as_object);
    let in_delta = delta.is_some_and(|delta| {
        delta
            .iter()
            .any(|(key, value)| key != "role" && filled(value))
    });
    in_delta
        || ["finish_reason", "text", "token_ids"]
            .iter()
            .any(|key| choice.get(key).is_some_and(filled))
}

/// A 200 is an answer if it has choices and no error.
pub fn judge_answer(body: &[u8]) -> Result<(), String> {
    let object = RawObject::parse(body).map_err(|_| "is not a JSON object".to_owned())?;
    if let Some(Verdict::Failed { status, message }) = object.get_set("error").map(in_band_error) {
        return Err(format!("has an error inside, {status}: {message}"));
    }
    let choices: Vec<Choice<'_>> = object
        .get("choices")
        .and_then(|raw| serde_json::from_str(raw).ok())
        .unwrap_or_default();
    if choices.is_empty() || !choices.iter().all(Choice::has_content) {
        return Err("has no content".to_owned());
    }
    if choices.iter().any(Choice::is_aborted) {
        return Err("was aborted".to_owned());
    }
    Ok(())
}

/// A choice of an answer: a completion's has a text, a chat's a message.
#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
}

impl Choice<'_> {
    fn has_content(&self) -> bool {
        let begins =
            |value: Option<&RawValue>, with| value.is_some_and(|raw| raw.get().starts_with(with));
        begins(self.text, '"') || begins(self.message, '{')
    }

    fn is_aborted(&self) -> bool {
        let reason = self.finish_reason.map(|raw| raw.get().trim_matches('"'));
        reason == Some(ABORTED)
    }
}
