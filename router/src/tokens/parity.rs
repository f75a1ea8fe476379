//! Whether a tokenizer makes the very tokens that the engine makes.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::ErrorKind;
use baton_tokens::{Chat, Model, Unknown};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::calls::Calls;
use crate::fleet::Worker;
use crate::metrics::Metrics;

/// Longest time for an engine to tell tokens that nobody waits for.
const LONGEST: Duration = Duration::from_secs(10);

/// What a comparison came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parity {
    /// The same tokens.
    Equal,
    /// The engine did not say.
    Unknown(String),
    /// Other tokens.
    Different(String),
}

impl Parity {
    /// The word in metrics.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Unknown(_) => "unknown",
            Self::Different(_) => "different",
        }
    }
}

/// Texts on which tokenizers tend to differ.
const TEXTS: [&str; 8] = [
    "Prefill and decode.",
    " leading and trailing ",
    "line\nbreaks\r\n\n\tand tabs   and   spaces",
    "0123456789 3.14159 1,000,000",
    "na\u{ef}ve caf\u{e9} cafe\u{301} \u{130}stanbul",
    "\u{4e2d}\u{6587}\u{5b57}\u{7b26} \u{65e5}\u{672c}\u{8a9e} \u{d55c}\u{ad6d}\u{c5b4} \u{627}\u{644}\u{639}",
    "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f44d}\u{1f3fd} \u{2764}\u{fe0f}",
    "fn main() { let x = vec![1, 2]; /* <s> </s> <|im_start|> [INST] */ }",
];

/// Requests with which a tokenizer is tried.
fn probes(model: &str) -> Vec<Value> {
    let chat = |messages: Value| json!({"model": model, "messages": messages});
    let user = |content: &str| json!({"role": "user", "content": content});
    let mut probes: Vec<Value> = TEXTS
        .iter()
        .map(|text| json!({"model": model, "prompt": text}))
        .collect();
    probes.extend(TEXTS.iter().map(|text| chat(json!([user(text)]))));
    let system = json!({"role": "system", "content": "You pass the baton."});
    let answer = json!({"role": "assistant", "content": "It is on its way."});
    probes.push(chat(json!([system, user("Where is it?")])));
    probes.push(chat(json!([
        user("Where is it?"),
        answer,
        user("And now?")
    ])));
    let parts = json!({"role": "user", "content": [
        {"type": "text", "text": "Two"}, {"type": "text", "text": "parts."},
    ]});
    probes.push(chat(json!([parts])));
    let mut bare = chat(json!([user("Go on.")]));
    bare["add_generation_prompt"] = json!(false);
    probes.push(bare);
    let mut tools = chat(json!([user("What time is it?")]));
    tools["tools"] = json!([{"type": "function", "function": {
        "name": "time", "description": "The time in a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    }}]);
    probes.push(tools);
    probes
}

/// The tokens of a request, whichever of the two kinds it is.
fn tokens(model: &Model, body: &[u8], is_chat: bool) -> Result<Vec<u32>, Unknown> {
    if is_chat {
        return Ok(model.chat(&Chat::from(body))?.tokens);
    }
    let mut prompts = model.completions(body)?;
    Ok(prompts.pop().unwrap_or_default())
}

/// A request, and the tokens that are made of it here.
pub(super) type Tried = (Bytes, Vec<u32>);

/// All probes that are reproduced here. Takes milliseconds of computing.
pub(super) fn tried(model: &Model, model_name: &str) -> Vec<Tried> {
    let probes = probes(model_name).into_iter().filter_map(|probe| {
        let is_chat = probe.get("messages").is_some();
        let body = Bytes::from(probe.to_string());
        let tokens = tokens(model, &body, is_chat).ok()?;
        Some((body, tokens))
    });
    probes.collect()
}

/// Whether a worker's engine makes the same tokens of all that was tried.
pub(super) async fn compare(calls: &Calls, worker: &Worker, tried: Vec<Tried>) -> Parity {
    let mut compared = 0;
    for (body, ours) in tried {
        match calls.tokenize(worker, body.clone(), LONGEST).await {
            Ok(theirs) if theirs == ours => compared += 1,
            Ok(theirs) => {
                let of = String::from_utf8_lossy(&body);
                return Parity::Different(difference(&ours, &theirs, &of));
            }
            // A chat that the engine does not take at all has no tokens to differ in.
            Err(error) if error.kind == ErrorKind::EngineRejected => {}
            Err(error) => return Parity::Unknown(error.to_string()),
        }
    }
    if compared == 0 {
        return Parity::Different("nothing of what was tried can be compared".to_owned());
    }
    Parity::Equal
}

/// A client's prompt that is compared.
pub(super) struct Sample {
    pub(super) calls: Calls,
    pub(super) metrics: Metrics,
    pub(super) worker: Arc<Worker>,
    pub(super) body: Bytes,
    pub(super) tokens: Vec<u32>,
}

impl Sample {
    /// What the engine says.
    pub(super) async fn ask(&self) -> Parity {
        match self
            .calls
            .tokenize(&self.worker, self.body.clone(), LONGEST)
            .await
        {
            Ok(theirs) if theirs == self.tokens => Parity::Equal,
            Ok(theirs) => {
                Parity::Different(difference(&self.tokens, &theirs, "a client's request"))
            }
            Err(error) => Parity::Unknown(error.to_string()),
        }
    }
}

fn difference(ours: &[u32], theirs: &[u32], of: &str) -> String {
    let same = ours
        .iter()
        .zip(theirs)
        .take_while(|(one, other)| one == other);
    let (at, ours, theirs) = (same.count(), ours.len(), theirs.len());
    format!(
        "the engine makes {theirs} tokens of {of}, its files {ours}; they differ from token {at} on"
    )
}
