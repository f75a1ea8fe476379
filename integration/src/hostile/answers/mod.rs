//! Answers of an engine: the right one to a request, in parts that a generator can spoil, and what must become of a bad one.

pub mod asking;
pub mod bodies;
pub mod framing;
pub mod poisons;
pub mod prefills;
pub mod status;
pub mod streams;

use serde_json::{Value, json};

use super::plain::{mark, prompt};
use crate::emulated::model;
use crate::emulated::vllm::script::{End, Fault, REQUEST, RawAnswer};

/// Words of every right answer.
const WORDS: usize = 4;

/// Which kind of answer is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// A chat, or a completion.
    pub chat: bool,
    /// A stream, or one body.
    pub stream: bool,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self {
            chat: false,
            stream: false,
        },
        Self {
            chat: true,
            stream: false,
        },
        Self {
            chat: false,
            stream: true,
        },
        Self {
            chat: true,
            stream: true,
        },
    ];
}

/// A request of a client, and all that is needed to answer it.
#[derive(Debug, Clone)]
pub struct Question {
    /// Its mark.
    pub mark: String,
    /// Route.
    pub path: &'static str,
    /// Body.
    pub body: String,
    /// What kind of answer it wants.
    pub shape: Shape,
    /// The right words.
    pub words: Vec<String>,
}

impl Question {
    /// A new one.
    pub fn new(shape: Shape) -> Self {
        let mark = mark();
        let prompt = prompt(&mark);
        let messages = json!([{"role": "user", "content": prompt}]);
        let text = if shape.chat {
            model::chat_text(&messages, WORDS)
        } else {
            model::text(&prompt, WORDS)
        };
        let mut body = json!({"model": "tiny", "max_tokens": WORDS, "stream": shape.stream});
        if shape.chat {
            body["messages"] = messages;
        } else {
            body["prompt"] = prompt.into();
        }
        let words = text
            .split_inclusive(' ')
            .skip(1)
            .map(|word| format!(" {}", word.trim()));
        Self {
            mark,
            path: if shape.chat {
                "/v1/chat/completions"
            } else {
                "/v1/completions"
            },
            body: body.to_string(),
            shape,
            words: words.collect(),
        }
    }

    /// The right text.
    pub fn text(&self) -> String {
        self.words.concat()
    }

    /// The right answer as one JSON value.
    pub fn value(&self) -> Value {
        let text = self.text();
        let mut choice =
            json!({"index": 0, "logprobs": null, "finish_reason": "length", "stop_reason": null});
        if self.shape.chat {
            choice["message"] = json!({"role": "assistant", "content": text, "refusal": null});
        } else {
            choice["text"] = text.into();
        }
        json!({
            "id": self.id(), "object": if self.shape.chat { "chat.completion" } else { "text_completion" }, "created": 1, "model": "tiny",
            "choices": [choice], "usage": {"prompt_tokens": 21, "total_tokens": 25, "completion_tokens": 4}, "kv_transfer_params": null,
        })
    }

    fn id(&self) -> String {
        let kind = if self.shape.chat { "chatcmpl" } else { "cmpl" };
        format!("{kind}-{REQUEST}")
    }

    /// The chunk of one word.
    pub fn chunk(&self, at: usize) -> Value {
        let finish = (at + 1 == self.words.len()).then_some("length");
        let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": finish});
        if self.shape.chat {
            choice["delta"] = json!({"content": self.words[at]});
        } else {
            choice["text"] = self.words[at].clone().into();
        }
        self.around(&choice)
    }

    /// The chunk with which a chat begins.
    pub fn role(&self) -> Value {
        self.around(&json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}))
    }

    fn around(&self, choice: &Value) -> Value {
        let object = if self.shape.chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        json!({"id": self.id(), "object": object, "created": 1, "model": "tiny", "choices": [choice]})
    }

    /// The data of the right events, the end included.
    pub fn events(&self) -> Vec<String> {
        let role = self.shape.chat.then(|| self.role().to_string());
        let words = (0..self.words.len()).map(|at| self.chunk(at).to_string());
        role.into_iter()
            .chain(words)
            .chain(["[DONE]".to_owned()])
            .collect()
    }

    /// Events before the one that carries the first word.
    pub fn preamble(&self) -> usize {
        usize::from(self.shape.chat)
    }

    /// The right body, whatever its kind.
    pub fn content(&self) -> String {
        if self.shape.stream {
            self.events().iter().map(|data| event(data)).collect()
        } else {
            self.value().to_string()
        }
    }

    /// The right content type.
    pub fn content_type(&self) -> &'static str {
        if self.shape.stream {
            "text/event-stream; charset=utf-8"
        } else {
            "application/json"
        }
    }

    /// The right head, but for how the body is framed.
    pub fn head(&self, framing: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: {}\r\n{framing}\r\n",
            self.content_type()
        )
    }

    /// A whole answer with this body in one chunk.
    pub fn chunked(&self, body: &[u8]) -> Vec<u8> {
        [
            self.head("transfer-encoding: chunked\r\n").as_bytes(),
            &chunk(body),
            b"0\r\n\r\n",
        ]
        .concat()
    }

    /// A whole answer with this body and its length.
    pub fn sized(&self, body: &[u8]) -> Vec<u8> {
        let head = self.head(&format!("content-length: {}\r\n", body.len()));
        [head.as_bytes(), body].concat()
    }
}

/// An event with this data.
pub fn event(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// One chunk; nothing for nothing, which would be the last one.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// What must become of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is unusual and right: it is taken.
    Taken,
    /// It is none: another attempt makes up for it, and if there is none with a better answer, the client is told.
    Useless,
    /// It breaks off after its first word: one honest error behind the words that came.
    Breaks,
    /// It breaks off, and how its bytes arrive decides on which side of its first word.
    MayBreak,
    /// It is the engine's judgement on the request: the client gets it, with this status.
    Judgement(u16),
    /// It does not come in time.
    Late,
}

/// An answer of an engine that is not an ordinary one.
#[derive(Debug, Clone)]
pub struct Odd {
    /// What is odd about it.
    pub name: String,
    /// What it answers.
    pub question: Question,
    /// What the engine does.
    pub fault: Fault,
    /// What must become of it.
    pub outcome: Outcome,
}

impl Odd {
    /// An answer to this question.
    pub fn new(
        name: impl Into<String>,
        question: &Question,
        fault: impl Into<Fault>,
        outcome: Outcome,
    ) -> Self {
        let Shape { chat, stream } = question.shape;
        let kind = match (chat, stream) {
            (false, false) => "completion",
            (true, false) => "chat",
            (false, true) => "streamed completion",
            (true, true) => "streamed chat",
        };
        Self {
            name: format!("{kind}: {}", name.into()),
            question: question.clone(),
            fault: fault.into(),
            outcome,
        }
    }
}

impl From<RawAnswer> for Fault {
    fn from(answer: RawAnswer) -> Self {
        Self::Raw(answer)
    }
}

/// These bytes, after which the connection waits for the next request.
fn keeping(bytes: impl Into<Vec<u8>>) -> RawAnswer {
    RawAnswer::new(End::Keep).bytes(bytes.into())
}

/// These bytes, after which the connection is closed.
fn closing(bytes: impl Into<Vec<u8>>) -> RawAnswer {
    RawAnswer::new(End::Close).bytes(bytes.into())
}
