//! An engine's answer, whether it was recorded or has just arrived.

use serde_json::Value;

/// Status, kind of content, and the body as what it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `content-type`, if there was one.
    pub content_type: Option<String>,
    /// The body.
    pub body: Body,
}

/// A body.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A JSON document.
    Json(Value),
    /// The frames of an event stream.
    Stream(Vec<Frame>),
    /// Anything else.
    Text(String),
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// `data:` with a JSON document.
    Data(Value),
    /// `data: [DONE]`.
    Done,
    /// What should not be in a stream.
    Other(String),
}

impl Answer {
    /// Reads a body as its content type says.
    pub fn read(status: u16, content_type: Option<String>, body: &str) -> Self {
        let kind = content_type.as_deref().unwrap_or_default();
        let body = if kind.starts_with("text/event-stream") {
            Body::Stream(frames(body))
        } else {
            serde_json::from_str(body).map_or_else(|_| Body::Text(body.to_owned()), Body::Json)
        };
        Self {
            status,
            content_type,
            body,
        }
    }

    /// The body's JSON document.
    pub fn json(&self) -> Option<&Value> {
        match &self.body {
            Body::Json(value) => Some(value),
            Body::Stream(_) | Body::Text(_) => None,
        }
    }

    /// The JSON documents of an answer: the body's one, or those of the frames.
    pub fn documents(&self) -> Vec<&Value> {
        match &self.body {
            Body::Json(value) => vec![value],
            Body::Stream(frames) => frames.iter().filter_map(Frame::data).collect(),
            Body::Text(_) => Vec::new(),
        }
    }

    /// The generated token ids of each choice, in the order of their index; `None` without `return_token_ids`.
    pub fn tokens(&self) -> Option<Vec<Vec<u64>>> {
        let mut choices: Vec<Vec<u64>> = Vec::new();
        let mut found = false;
        for choice in self.documents().into_iter().flat_map(choices_of) {
            let index = usize::try_from(choice["index"].as_u64()?).ok()?;
            choices.resize(choices.len().max(index + 1), Vec::new());
            if let Some(ids) = choice["token_ids"].as_array() {
                found = true;
                choices[index].extend(ids.iter().filter_map(Value::as_u64));
            }
        }
        found.then_some(choices)
    }

    /// The generated text of each choice, in the order of their index.
    pub fn texts(&self) -> Vec<String> {
        let mut texts: Vec<String> = Vec::new();
        for choice in self.documents().into_iter().flat_map(choices_of) {
            let index = choice["index"].as_u64().unwrap_or_default();
            let index = usize::try_from(index).unwrap_or_default();
            texts.resize(texts.len().max(index + 1), String::new());
            let text = [
                &choice["text"],
                &choice["message"]["content"],
                &choice["delta"]["content"],
            ];
            let text = text.iter().find_map(|text| text.as_str());
            texts[index].push_str(text.unwrap_or_default());
        }
        texts
    }

    /// The last usage that the answer tells, which of a stream is the whole one.
    pub fn usage(&self) -> Option<&Value> {
        let documents = self.documents();
        let mut usages = documents.iter().map(|document| &document["usage"]);
        usages.rfind(|usage| usage.is_object())
    }

    /// What decode needs, from the answer to a prefill.
    pub fn ticket(&self) -> Option<&Value> {
        let ticket = &self.json()?["kv_transfer_params"];
        ticket.is_object().then_some(ticket)
    }
}

/// The choices of a document.
pub fn choices_of(document: &Value) -> impl Iterator<Item = &Value> {
    document["choices"].as_array().into_iter().flatten()
}

impl Frame {
    /// The frame's JSON document.
    pub fn data(&self) -> Option<&Value> {
        match self {
            Self::Data(value) => Some(value),
            Self::Done | Self::Other(_) => None,
        }
    }
}

fn frames(text: &str) -> Vec<Frame> {
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    events
        .map(|event| match event.strip_prefix("data: ") {
            Some("[DONE]") => Frame::Done,
            Some(data) => serde_json::from_str(data)
                .map_or_else(|_| Frame::Other(event.to_owned()), Frame::Data),
            None => Frame::Other(event.to_owned()),
        })
        .collect()
}
