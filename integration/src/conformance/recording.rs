//! Exchanges with a real vLLM 0.32.0 (`recordings/vllm`): what was sent, to which engine, and what it answered.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::answer::{Answer, Body};

const FILES: [&str; 3] = [
    include_str!("../../recordings/vllm/exchanges.jsonl"),
    include_str!("../../recordings/vllm/split_legs.jsonl"),
    include_str!("../../recordings/vllm/streams.jsonl"),
];

static RECORDINGS: LazyLock<BTreeMap<String, Recording>> = LazyLock::new(|| {
    let lines = FILES.iter().flat_map(|file| file.lines());
    let recordings = lines.map(|line| {
        let line: Line = serde_json::from_str(line).expect("a recorded exchange");
        (line.name.clone(), Recording::from(line))
    });
    recordings.collect()
});

/// The engine that an exchange was with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A `kv_producer`.
    Prefill,
    /// A `kv_consumer`.
    Decode,
    /// An engine asked for whole answers.
    Aggregated,
    /// One with two data-parallel ranks.
    Dp,
    /// One with a LoRA adapter and a connector of its own, whose `kv_transfer_params` say nothing about vLLM's.
    Oot,
}

/// One recorded exchange.
#[derive(Debug, Clone)]
pub struct Recording {
    /// Its name in the recordings.
    pub name: String,
    /// Which engine answered.
    pub source: Source,
    /// HTTP method.
    pub method: String,
    /// Path, with the query.
    pub path: String,
    /// Headers that mattered.
    pub headers: BTreeMap<String, String>,
    /// The request's body.
    pub request: Option<Value>,
    /// What came back.
    pub answer: Answer,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    engine: Source,
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    request: Option<Value>,
    status: u16,
    content_type: Option<String>,
    answer: Option<Value>,
    stream: Option<String>,
    text: Option<String>,
}

impl From<Line> for Recording {
    fn from(line: Line) -> Self {
        let text = line.stream.or(line.text).unwrap_or_default();
        let mut answer = Answer::read(line.status, line.content_type, &text);
        if let Some(value) = line.answer {
            answer.body = Body::Json(value);
        }
        Self {
            name: line.name,
            source: line.engine,
            method: line.method,
            path: line.path,
            headers: line.headers,
            request: line.request,
            answer,
        }
    }
}

/// All recorded exchanges, by name.
pub fn all() -> &'static BTreeMap<String, Recording> {
    &RECORDINGS
}

/// The recorded exchange of this name.
pub fn named(name: &str) -> &'static Recording {
    all()
        .get(name)
        .unwrap_or_else(|| panic!("nothing is recorded as {name}"))
}

impl Recording {
    /// A field of the request's body.
    pub fn asked(&self, key: &str) -> &Value {
        static NULL: Value = Value::Null;
        self.request.as_ref().map_or(&NULL, |body| &body[key])
    }

    /// Prompt tokens that the engine said it had in its cache, if it said so.
    ///
    /// A decode leg repeats what its prefill said; what it had itself is not in the answer.
    pub fn cached_tokens(&self) -> Option<u64> {
        let answer = self.answer.json()?;
        let usage = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        usage.or(answer["kv_transfer_params"]["remote_prefill_cached_tokens"].as_u64())
    }
}
