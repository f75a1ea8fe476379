//! What was recorded of a real SGLang 0.5.23, sent again to an emulated one.
//!
//! The recordings are whole sessions: their exchanges are sent in the recorded order to engines that were started as the
//! recorded ones were, legs of one room at once. What may differ is listed in [`MASKS`], what is not sent in [`LEFT_OUT`].

pub mod laws;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::answer::{Answer, Body, Frame};
use super::mask::{Mask, Masks, Rule, always};
use super::shape::{self, Difference};

/// Which engine an exchange was with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// One that is not disaggregated.
    Aggregated,
    /// Prefill's API.
    Prefill,
    /// Prefill's bootstrap server.
    Bootstrap,
    /// Decode's API.
    Decode,
    /// A port where nobody listens.
    Nobody,
}

/// A recorded session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// One server.
    Aggregated,
    /// A pair, and how its legs fail.
    Pair,
    /// A pair whose prefill evicts.
    Evict,
    /// A pair whose prefill is killed.
    Kill,
    /// A pair whose decode has a radix cache.
    Radix,
}

impl Session {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Aggregated,
        Self::Pair,
        Self::Evict,
        Self::Kill,
        Self::Radix,
    ];

    /// Its name in the recordings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "agg",
            Self::Pair => "pd",
            Self::Evict => "pd_evict",
            Self::Kill => "pd_kill",
            Self::Radix => "pd_nixl_decode_radix",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Aggregated => include_str!("../../recordings/sglang/http_agg.jsonl"),
            Self::Pair => include_str!("../../recordings/sglang/http_pd.jsonl"),
            Self::Evict => include_str!("../../recordings/sglang/http_pd_evict.jsonl"),
            Self::Kill => include_str!("../../recordings/sglang/http_pd_kill.jsonl"),
            Self::Radix => include_str!("../../recordings/sglang/http_pd_nixl_decode_radix.jsonl"),
        }
    }

    /// Its exchanges, in the order in which they were recorded.
    pub fn exchanges(self) -> Vec<Exchange> {
        let lines = self.text().lines().enumerate();
        lines
            .map(|(number, line)| {
                let line: Line = serde_json::from_str(line).expect("a recorded exchange");
                line.exchange(self, number)
            })
            .collect()
    }
}

/// One recorded exchange.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// Session and line, as they are told apart.
    pub name: String,
    /// What was tried.
    pub note: String,
    /// With whom.
    pub role: Role,
    /// HTTP method.
    pub method: String,
    /// Path, with the query.
    pub path: String,
    /// The request's body; null for none.
    pub request: Value,
    /// What came back; `None` if the client gave up or was hung up on.
    pub answer: Option<Answer>,
    /// How long it took.
    pub seconds: f64,
}

#[derive(Deserialize)]
struct Line {
    note: String,
    request: Asked,
    response: Answered,
    secs: f64,
}

#[derive(Deserialize)]
struct Asked {
    method: String,
    url: String,
    body: Value,
}

#[derive(Deserialize)]
struct Answered {
    status: Option<u16>,
    headers: BTreeMap<String, String>,
    body: Value,
}

impl Line {
    fn exchange(self, session: Session, number: usize) -> Exchange {
        let url = self.request.url.trim_start_matches("http://127.0.0.1:");
        let (port, path) = url.split_once('/').expect("a path");
        let role = match port {
            "30110" => Role::Aggregated,
            "30120" => Role::Prefill,
            "30121" => Role::Decode,
            "8998" => Role::Bootstrap,
            _ => Role::Nobody,
        };
        let body = match &self.response.body {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut headers = self.response.headers.into_iter();
        let content_type = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let content_type = content_type.map(|(_, value)| value);
        let answer = |status| Answer::read(status, content_type, &body);
        Exchange {
            name: format!("{}:{number}", session.name()),
            note: self.note,
            role,
            method: self.request.method,
            path: format!("/{path}"),
            request: self.request.body,
            answer: self.response.status.map(answer),
            seconds: self.secs,
        }
    }
}

impl Exchange {
    /// The room that it names, if it names one.
    pub fn room(&self) -> Option<&Value> {
        Some(&self.request["bootstrap_room"]).filter(|room| !room.is_null())
    }
}

const TIME: &str = "a time of day, or how long something took";
const WINDOW: &str = "told if decode took long enough to be measured";
const RANDOM_ID: &str = "ids are drawn anew for each request";
const TEXT: &str = "text is the model's, and weights differ";
const SAMPLED: &str = "ids are the model's, and weights differ; how many there are is compared";
const LOGITS: &str =
    "what the model thinks, and weights differ; how much of it there is is compared";
const LOAD: &str = "what a scheduler has done so far; that it is told is compared";
const MODEL: &str = "facts of the recorded model's kind that nobody asks an engine for";
const PORT: &str = "ports are another run's";
const PYTHON: &str = "a quarter of it is paths and source lines of the engine";

/// What may differ, each with its reason.
pub const MASKS: &[Mask] = &[
    always("**.id", Rule::Text, RANDOM_ID),
    always("**.created", Rule::Number, TIME),
    always("**.timestamp", Rule::Ignored, TIME),
    always("**.forward_entry_time", Rule::Number, TIME),
    always("**.prefill_finished_time", Rule::Number, TIME),
    always("**.queue_time", Rule::Number, TIME),
    always("**.e2e_latency", Rule::Number, TIME),
    always("**.first_token_latency", Rule::Number, TIME),
    always("**.request_received_ts", Rule::Number, TIME),
    always("**.api_server_dispatch_finish_ts", Rule::Number, TIME),
    always("**.request_finished_ts", Rule::Number, TIME),
    // Told with the first chunk of a stream only, or with the last one.
    always("**.response_sent_to_client_ts", Rule::Ignored, TIME),
    always("**.decode_throughput", Rule::Ignored, WINDOW),
    always("**.text", Rule::Text, TEXT),
    always("**.content", Rule::Text, TEXT),
    always("**.output_ids.*", Rule::Number, SAMPLED),
    always("**.output_token_logprobs.*.*", Rule::Number, LOGITS),
    always("loads.*.total_prefill_uncached_tokens", Rule::Number, LOAD),
    always("loads.*.total_prefill_busy_us", Rule::Number, LOAD),
    always("loads.*.cache_hit_rate", Rule::Number, LOAD),
    always("loads.*.utilization", Rule::Number, LOAD),
    always("loads.*.decode_moments.*", Rule::Number, LOAD),
    always("loads.*.memory.*", Rule::Number, LOAD),
    always("model_path", Rule::Text, PORT),
    always("tokenizer_path", Rule::Text, PORT),
    always("embedding", Rule::Ignored, MODEL),
    always("prefill_http_port", Rule::Number, PORT),
    always("rank_port", Rule::Number, PORT),
    always("rank_ip", Rule::Text, PORT),
];

static READY: LazyLock<Masks> = LazyLock::new(|| Masks::new(MASKS));

/// Exchanges that are not sent again: session and line, reason.
pub const LEFT_OUT: &[(&str, &str)] = &[
    (
        "agg:3",
        "a dump of the whole configuration; its keys are compared by a law",
    ),
    (
        "agg:4",
        "a dump of the whole configuration; its keys are compared by a law",
    ),
    ("agg:11", "metrics: their names are compared by a law"),
    (
        "agg:13",
        "HiCache's storage backend, which Baton does not switch",
    ),
    (
        "agg:14",
        "HiCache's storage layout, which Baton does not ask for",
    ),
    ("agg:33", PYTHON),
    (
        "pd:3",
        "a dump of the whole configuration; its keys are compared by a law",
    ),
    ("pd:6", "metrics: their names are compared by a law"),
    (
        "pd:11",
        "a dump of the whole configuration; its keys are compared by a law",
    ),
    ("pd:14", "metrics: their names are compared by a law"),
    (
        "pd_nixl_decode_radix:6",
        "ends where the recorded weights drew the end of sequence, behind pages that they wrote; it is sent beside its prefill",
    ),
];

/// Compares an answer with the recorded one. Messages name ids, rooms and times that are anybody's.
pub fn compare(recorded: &Exchange, seen: &Answer) -> Vec<Difference> {
    let Some(answer) = &recorded.answer else {
        return vec![Difference::new("answer", "there was none")];
    };
    let (recorded_answer, seen) = (nameless(answer), nameless(seen));
    shape::answers_under(&READY, &recorded_answer, &seen, &[])
        .into_iter()
        .map(|difference| difference.of(&recorded.name))
        .collect()
}

/// The same with every message reduced to its words.
fn nameless(answer: &Answer) -> Answer {
    let mut answer = answer.clone();
    match &mut answer.body {
        Body::Json(value) => reduce(value),
        Body::Stream(frames) => {
            for frame in frames {
                if let Frame::Data(value) = frame {
                    reduce(value);
                }
            }
        }
        Body::Text(_) => {}
    }
    answer
}

fn reduce(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(text) if key == "message" => *text = words(text),
                    value => reduce(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(reduce),
        _ => {}
    }
}

/// Whatever is quoted, and whatever is made of digits, becomes one mark.
fn words(text: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    for character in text.chars() {
        if character == '\'' {
            quoted = !quoted;
        } else if !(quoted || character.is_ascii_digit() && out.ends_with('#')) {
            out.push(if character.is_ascii_digit() {
                '#'
            } else {
                character
            });
        }
    }
    out
}
