//! How an engine turns texts and chats into tokens, told apart by a small one of each.

use std::future::Future;

use baton_proto::{Error, ErrorKind};
use serde_json::json;

/// A digest of how an engine that serves `model` turns a small text and a small chat into tokens. Two engines that differ
/// here would give one request prompts of different lengths, which some decode engines do not survive. `None` if the engine
/// does not say.
pub async fn digest<Asked>(model: &str, tokens: impl Fn(String) -> Asked + Send) -> Option<String>
where
    Asked: Future<Output = Result<Vec<u32>, Error>> + Send,
{
    let text =
        json!({"model": model, "prompt": "Prefill \u{e9}\u{4e2d}\n\t0123456789  and decode."});
    let chat = json!({"model": model, "add_generation_prompt": true, "messages": [
        {"role": "system", "content": "You pass the baton."},
        {"role": "user", "content": "Where is it?"},
    ]});
    let mut digest = blake3::Hasher::new();
    for (question, must) in [(text, true), (chat, false)] {
        match tokens(question.to_string()).await {
            Ok(tokens) => digest.update(format!("{tokens:?}").as_bytes()),
            // A model without a chat template refuses chats: that is a fact about it as well.
            Err(error) if !must && error.kind == ErrorKind::EngineRejected => {
                digest.update(b"no chat")
            }
            Err(_) => return None,
        };
    }
    Some(digest.finalize().to_hex()[..16].to_owned())
}
