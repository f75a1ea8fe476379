//! Ordinary requests, and the answers that are right.

use serde_json::json;

use crate::emulated::model;

/// A prompt of several blocks.
pub const PROMPT: &str =
    "Engines fail in every way there is, and in some that nobody has thought of so far.";

/// A request and what an engine that computes it alone says.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Route.
    pub path: &'static str,
    /// Body.
    pub body: String,
    /// The right text.
    pub text: String,
}

/// A completion of five tokens.
pub fn completion(stream: bool) -> Ask {
    Ask {
        path: "/v1/completions",
        body: format!(r#"{{"model":"tiny","prompt":"{PROMPT}","max_tokens":5,"stream":{stream}}}"#),
        text: model::text(PROMPT, 5),
    }
}

/// A chat of five tokens.
pub fn chat(stream: bool) -> Ask {
    let messages = json!([{"role": "user", "content": PROMPT}]);
    let body = json!({"model": "tiny", "messages": messages, "max_tokens": 5, "stream": stream});
    Ask {
        path: "/v1/chat/completions",
        body: body.to_string(),
        text: model::chat_text(&messages, 5),
    }
}
