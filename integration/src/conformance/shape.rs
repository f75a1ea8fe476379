//! Compares what is seen with what was recorded, under the masks, and tells each difference by its place.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{Answer, Body, Frame};
use super::mask::{self, Masks, Part, Rule, When};

#[cfg(test)]
mod tests;

/// Something that is not as it was recorded, or a law that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The exchange, and the place in it.
    pub at: String,
    /// What is wrong there.
    pub what: String,
}

impl Difference {
    /// A difference at a place.
    pub fn new(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            at: at.into(),
            what: what.into(),
        }
    }

    /// The same difference, in this exchange.
    #[must_use]
    pub fn of(self, exchange: &str) -> Self {
        Self {
            at: format!("{exchange}: {}", self.at),
            what: self.what,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.at, self.what)
    }
}

/// Compares whole answers.
pub fn answers(recorded: &Answer, seen: &Answer, circumstances: &[When]) -> Vec<Difference> {
    answers_under(&mask::VLLM, recorded, seen, circumstances)
}

/// The same under these masks.
pub fn answers_under(
    masks: &Masks,
    recorded: &Answer,
    seen: &Answer,
    circumstances: &[When],
) -> Vec<Difference> {
    let mut comparison = Comparison::new(masks, circumstances);
    if recorded.status != seen.status {
        let what = format!("{} instead of {}", seen.status, recorded.status);
        comparison.found.push(Difference::new("status", what));
    }
    if recorded.content_type != seen.content_type {
        let what = format!(
            "{:?} instead of {:?}",
            seen.content_type, recorded.content_type
        );
        comparison.found.push(Difference::new("content-type", what));
    }
    match (&recorded.body, &seen.body) {
        (Body::Json(recorded), Body::Json(seen)) => comparison.values(recorded, seen),
        (Body::Stream(recorded), Body::Stream(seen)) => comparison.streams(recorded, seen),
        (recorded, seen) if recorded == seen => {}
        (recorded, seen) => {
            let what = format!("{} instead of {}", short(seen), short(recorded));
            comparison.found.push(Difference::new("body", what));
        }
    }
    comparison.found
}

/// Compares two documents.
pub fn documents(recorded: &Value, seen: &Value, circumstances: &[When]) -> Vec<Difference> {
    documents_under(&mask::VLLM, recorded, seen, circumstances)
}

/// The same under these masks.
pub fn documents_under(
    masks: &Masks,
    recorded: &Value,
    seen: &Value,
    circumstances: &[When],
) -> Vec<Difference> {
    let mut comparison = Comparison::new(masks, circumstances);
    comparison.values(recorded, seen);
    comparison.found
}

/// At most so much of a value is shown.
const SHOWN: usize = 160;

fn short(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    if text.chars().count() <= SHOWN {
        return text;
    }
    let start: String = text.chars().take(SHOWN).collect();
    format!("{start}…")
}

fn brief(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN {
        return text;
    }
    let start: String = text.chars().take(SHOWN).collect();
    format!("{start}…")
}

/// A comparison under way: where it is, and what it found.
struct Comparison<'a> {
    masks: &'a Masks,
    circumstances: &'a [When],
    path: Vec<Part>,
    /// Put before each path: which frame of a stream.
    frame: String,
    found: Vec<Difference>,
}

impl<'a> Comparison<'a> {
    fn new(masks: &'a Masks, circumstances: &'a [When]) -> Self {
        Self {
            masks,
            circumstances,
            path: Vec::new(),
            frame: String::new(),
            found: Vec::new(),
        }
    }

    fn differ(&mut self, what: String) {
        let path: String = self.path.iter().map(Part::to_string).collect();
        let at = format!("{}${path}", self.frame);
        self.found.push(Difference { at, what });
    }

    fn differs(&mut self, recorded: &Value, seen: &Value) {
        self.differ(format!("{} instead of {}", brief(seen), brief(recorded)));
    }

    fn within(&mut self, part: Part, compare: impl FnOnce(&mut Self)) {
        self.path.push(part);
        compare(self);
        self.path.pop();
    }

    fn values(&mut self, recorded: &Value, seen: &Value) {
        let rule = self
            .masks
            .mask_for(&self.path, self.circumstances)
            .map(|mask| mask.rule);
        match (rule, recorded, seen) {
            (Some(Rule::Ignored), _, _)
            | (_, Value::Null, Value::Null)
            | (Some(Rule::Text | Rule::TextIfAny), Value::String(_), Value::String(_))
            | (Some(Rule::Number), Value::Number(_), Value::Number(_)) => {}
            (Some(Rule::SameShape), Value::String(a), Value::String(b)) if shape(a) == shape(b) => {
            }
            (Some(Rule::SameButDigits), Value::String(a), Value::String(b))
                if without_digits(a) == without_digits(b) => {}
            (Some(Rule::Numbers), Value::Array(_), Value::Array(seen))
                if seen.iter().all(Value::is_number) => {}
            (Some(Rule::Each), Value::Array(recorded), Value::Array(seen)) => {
                self.each(recorded, seen);
            }
            (Some(Rule::Map), Value::Object(recorded), Value::Object(seen)) => {
                self.map(recorded, seen);
            }
            (None | Some(Rule::Number), Value::Array(recorded), Value::Array(seen)) => {
                self.arrays(recorded, seen);
            }
            (None, Value::Object(recorded), Value::Object(seen)) => self.objects(recorded, seen),
            (None, recorded, seen) if recorded == seen => {}
            (_, recorded, seen) => self.differs(recorded, seen),
        }
    }

    fn objects(&mut self, recorded: &Map<String, Value>, seen: &Map<String, Value>) {
        for (key, value) in recorded {
            self.within(Part::Key(key.clone()), |this| match seen.get(key) {
                Some(seen) => this.values(value, seen),
                None => this.unless_ignored(|this| this.differ("is missing".to_owned())),
            });
        }
        for (key, value) in seen.iter().filter(|(key, _)| !recorded.contains_key(*key)) {
            self.within(Part::Key(key.clone()), |this| {
                this.unless_ignored(|this| {
                    this.differ(format!("was never there, now {}", brief(value)));
                });
            });
        }
    }

    fn unless_ignored(&mut self, tell: impl FnOnce(&mut Self)) {
        let mask = self.masks.mask_for(&self.path, self.circumstances);
        let optional = [Rule::Ignored, Rule::TextIfAny];
        if mask.is_none_or(|mask| !optional.contains(&mask.rule)) {
            tell(self);
        }
    }

    fn arrays(&mut self, recorded: &[Value], seen: &[Value]) {
        if recorded.len() != seen.len() {
            let (now, then) = (seen.len(), recorded.len());
            self.differ(format!("{now} elements instead of {then}"));
            return;
        }
        for (index, (recorded, seen)) in recorded.iter().zip(seen).enumerate() {
            self.within(Part::Index(index), |this| this.values(recorded, seen));
        }
    }

    fn each(&mut self, recorded: &[Value], seen: &[Value]) {
        for (index, seen) in seen.iter().enumerate() {
            self.within(Part::Index(index), |this| this.like_one_of(recorded, seen));
        }
    }

    fn map(&mut self, recorded: &Map<String, Value>, seen: &Map<String, Value>) {
        let recorded: Vec<Value> = recorded.values().cloned().collect();
        for (key, seen) in seen {
            self.within(Part::Key(key.clone()), |this| {
                this.like_one_of(&recorded, seen)
            });
        }
    }

    /// Tells the differences to the recorded value that is least different.
    fn like_one_of(&mut self, recorded: &[Value], seen: &Value) {
        let mut least: Option<Vec<Difference>> = None;
        for recorded in recorded {
            let mut attempt = Comparison {
                path: self.path.clone(),
                frame: self.frame.clone(),
                ..Comparison::new(self.masks, self.circumstances)
            };
            attempt.values(recorded, seen);
            if attempt.found.is_empty() {
                return;
            }
            if least
                .as_ref()
                .is_none_or(|least| attempt.found.len() < least.len())
            {
                least = Some(attempt.found);
            }
        }
        match least {
            Some(least) => self.found.extend(least),
            None => self.differ(format!("the recorded one is empty, now {}", brief(seen))),
        }
    }

    /// Streams are alike if the same kinds of frames follow each other. How many of a kind there are in a row says only how
    /// many tokens shared a chunk.
    fn streams(&mut self, recorded: &[Frame], seen: &[Frame]) {
        let (recorded, seen) = (runs(recorded), runs(seen));
        let kinds = |runs: &[&Frame]| runs.iter().map(|frame| kind(frame)).collect::<Vec<_>>();
        if kinds(&recorded) != kinds(&seen) {
            let (seen, recorded) = (kinds(&seen), kinds(&recorded));
            self.differ(format!("frames {seen:?} instead of {recorded:?}"));
            return;
        }
        let mut circumstances = self.circumstances.to_vec();
        circumstances.push(When::Chunk);
        for (number, (recorded, seen)) in recorded.iter().zip(&seen).enumerate() {
            let (Frame::Data(recorded), Frame::Data(seen)) = (recorded, seen) else {
                continue;
            };
            let told = if kind_of(recorded) == "tokens" {
                &circumstances
            } else {
                self.circumstances
            };
            let mut frame = Comparison::new(self.masks, told);
            frame.frame = format!("frame kind {number} ");
            frame.values(recorded, seen);
            self.found.extend(frame.found);
        }
    }
}

/// The last frame of each run of frames of one kind.
fn runs(frames: &[Frame]) -> Vec<&Frame> {
    let mut runs: Vec<&Frame> = Vec::new();
    for frame in frames {
        match runs.last_mut() {
            Some(last) if kind(last) == kind(frame) && kind(frame) == "tokens" => *last = frame,
            _ => runs.push(frame),
        }
    }
    runs
}

fn kind(frame: &Frame) -> &'static str {
    match frame {
        Frame::Data(value) => kind_of(value),
        Frame::Done => "[DONE]",
        Frame::Other(_) => "no event",
    }
}

/// What a frame is there for.
fn kind_of(data: &Value) -> &'static str {
    let first = &data["choices"][0];
    match data["choices"].as_array() {
        _ if !data["error"].is_null() => "error",
        // SGLang's own streams.
        _ if data["meta_info"]["completion_tokens"].is_number() => {
            if data["meta_info"]["finish_reason"].is_null() {
                "tokens"
            } else {
                "end"
            }
        }
        Some(choices) if choices.is_empty() => "usage",
        Some(_) if !first["finish_reason"].is_null() => "end",
        Some(_) if !first["delta"]["role"].is_null() => "role",
        Some(_) if !first["prompt_token_ids"].is_null() => "first tokens",
        Some(_) => "tokens",
        None => "unknown",
    }
}

/// Random runs of hexadecimal digits, as ids have them, are at least this long.
const RANDOM_RUN: usize = 6;

/// Reduces runs of hexadecimal digits to their length.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        if run >= RANDOM_RUN {
            shape.extend(["<", &run.to_string(), ">"]);
            rest = &rest[run..];
        } else {
            let length = run.max(first.len_utf8());
            shape.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    shape
}

fn without_digits(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match (character.is_ascii_digit(), out.ends_with('#')) {
            (true, true) => {}
            (true, false) => out.push('#'),
            (false, _) => out.push(character),
        }
    }
    out
}
