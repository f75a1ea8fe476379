//! What is odd in a stream of events: how its bytes are cut, how its lines are written, what comes before the first word,
//! how it breaks after it, and what comes behind its end.

use serde_json::{Value, json};

use super::{Odd, Outcome, Question, Shape, chunk, event, keeping};
use crate::emulated::vllm::script::{End, RawAnswer};
use Outcome::{Breaks, Taken, Useless};

/// All cases of this page, but for those that only time ends.
pub fn cases(shape: Shape) -> Vec<Odd> {
    if !shape.stream {
        return Vec::new();
    }
    [
        torn(shape),
        written(shape),
        before(shape),
        nothing_said(shape),
        errors_before(shape),
        breaks(shape),
        errors_after(shape),
        garbage_after(shape),
        behind(shape),
    ]
    .concat()
}

const CODED: &str = "transfer-encoding: chunked\r\n";
const LAST: &str = "0\r\n\r\n";

fn whole(name: impl Into<String>, question: &Question, body: &[u8], outcome: Outcome) -> Odd {
    Odd::new(name, question, keeping(question.chunked(body)), outcome)
}

/// The right stream in two chunks, cut at every byte, and in chunks of every small size. A chunk is read apart from the
/// next one, however they travel.
fn torn(shape: Shape) -> Vec<Odd> {
    let length = Question::new(shape).content().len();
    // A chat is no other stream, but for its first event.
    let step = if shape.chat { 9 } else { 1 };
    let in_two = (1..length).step_by(step).map(|at| {
        let question = Question::new(shape);
        let content = question.content();
        let (first, second) = content.as_bytes().split_at(at);
        let first = [question.head(CODED).as_bytes(), &chunk(first)].concat();
        let second = [&chunk(second), LAST.as_bytes()].concat();
        let answer = keeping(first).bytes(second);
        Odd::new(format!("torn at {at}"), &question, answer, Taken)
    });
    let in_many = (1..12).map(|size| {
        let question = Question::new(shape);
        let content = question.content();
        let parts = content.as_bytes().chunks(size);
        let answer = parts.fold(keeping(question.head(CODED)), |answer, part| {
            answer.bytes(chunk(part))
        });
        let name = format!("in chunks of {size}");
        Odd::new(name, &question, answer.bytes(LAST), Taken)
    });
    in_two.chain(in_many).collect()
}

type Write = fn(&str) -> String;

/// An event written in every way that the specification of event streams allows.
#[rustfmt::skip]
const WRITTEN: &[(&str, Write)] = &[
    ("CRLF", |data| format!("data: {data}\r\n\r\n")),
    ("CRLF and LF", |data| format!("data: {data}\r\n\n")),
    ("no space", |data| format!("data:{data}\n\n")),
    ("comments before", |data| format!(": x\n: [DONE]\n:\ndata: {data}\n\n")),
    ("comments behind", |data| format!("data: {data}\n: error\n\n")),
    ("comments between", |data| format!("data: {data}\n\n: ping - \"error\" [DONE]\n\n")),
    ("an event's name", |data| format!("event: completion\ndata: {data}\n\n")),
    ("ids and retries", |data| format!("id: 7\nretry: 1000\ndata: {data}\n\n")),
    ("unknown fields", |data| format!("x: y\ndatas: x\ndata: {data}\nx\n\n")),
    ("empty data", |data| format!("data:\n\ndata: {data}\n\ndata: \n\n")),
    ("empty lines", |data| format!("\n\n\ndata: {data}\n\n\n\n")),
    ("events without data", |data| format!("event: ping\n\nid: 1\n\ndata: {data}\n\n")),
    ("spaces behind", |data| format!("data: {data}  \n\n")),
    ("an error that is null", |data| event(&data.replacen('{', "{\"error\":null,", 1))),
    ("error as a word", |data| event(&data.replacen("\"tiny\"", "\"error [DONE] \\\"error\\\":{}\"", 1))),
    ("a thousand comments", |data| format!("{}data: {data}\n\n", ": ping\n\n".repeat(1000))),
    ("data on two lines", |data| event(&data.replacen(',', ",\ndata: ", 1))),
    ("data on many lines", |data| event(&data.replacen(',', ",\nid: 1\ndata:\ndata:  ", 1))),
];

fn written(shape: Shape) -> Vec<Odd> {
    let case = |(name, write): &(&str, Write)| {
        let question = Question::new(shape);
        let body: String = question.events().iter().map(|data| write(data)).collect();
        whole(*name, &question, body.as_bytes(), Taken)
    };
    WRITTEN.iter().map(case).collect()
}

/// The right events up to so many words.
fn words(question: &Question, count: usize) -> String {
    let events = question.events();
    let first = events[..question.preamble() + count].iter();
    first.map(|data| event(data)).collect()
}

/// Bodies instead of the first word, behind the role of a chat and without one.
fn instead(shape: Shape, name: &str, body: &dyn Fn(&Question) -> Vec<u8>) -> Vec<Odd> {
    let case = |role: bool| {
        let question = Question::new(shape);
        let start = if role {
            words(&question, 0)
        } else {
            String::new()
        };
        let body = [start.as_bytes(), &body(&question)].concat();
        let name = format!("{name}, behind a role: {role}");
        whole(name, &question, &body, Useless)
    };
    if shape.chat {
        vec![case(true), case(false)]
    } else {
        vec![case(false)]
    }
}

/// Data that is no JSON object, or not one.
#[rustfmt::skip]
const STRANGE: &[&str] = &[
    "", "{", "}", "null", "[]", "7", "\"x\"", "[DONE", "[done]", "DONE", "<html>", "{\"a\":1}x", "{\"a\":\"\u{0}\"}", "{\"choices\":1,\"choices\":2}",
];

/// What comes instead of the first word.
fn before(shape: Shape) -> Vec<Odd> {
    let end = event("[DONE]");
    let first = |question: &Question| event(&question.chunk(0).to_string());
    [
        instead(shape, "nothing", &|_| Vec::new()),
        instead(shape, "the end", &|_| end.clone().into()),
        instead(shape, "comments and the end", &|_| {
            format!(": x\n\n: y\n\n{end}").into()
        }),
        instead(shape, "one event without its end", &|question| {
            first(question).trim_end().into()
        }),
        instead(shape, "half an event", &|question| {
            first(question)[..20].into()
        }),
        instead(shape, "an answer that is no stream", &|question| {
            let shape = Shape {
                stream: false,
                ..shape
            };
            Question {
                shape,
                ..question.clone()
            }
            .content()
            .into()
        }),
        instead(shape, "bytes that are no text", &|_| {
            [NO_TEXT, end.as_bytes()].concat()
        }),
        instead(shape, "roles without an end", &|question| {
            event(&question.role().to_string()).repeat(8000).into()
        }),
    ]
    .concat()
}

/// Events that are none, or that carry no word, and then the end.
fn nothing_said(shape: Shape) -> Vec<Odd> {
    let choices = json!([
        null, [], {}, 7, "x", [null], [[]], [{}], [{"text": ""}], [{"delta": {}}], [{"delta": {"role": "assistant", "content": null}}]
    ]);
    let choices = choices.as_array().into_iter().flatten();
    let wordless = choices.map(|choices| json!({"choices": choices}).to_string());
    let strange = STRANGE.iter().map(|data| (*data).to_owned());
    let case = |data: String| {
        let name = format!("data {data:?} and the end");
        instead(shape, &name, &|_| (event(&data) + &event("[DONE]")).into())
    };
    strange.chain(wordless).flat_map(case).collect()
}

/// An event whose text is not UTF-8.
const NO_TEXT: &[u8] = b"data: {\"choices\":[{\"text\":\"\xff\xfe\"}]}\n\n";

/// An error instead of the first word.
fn errors_before(shape: Shape) -> Vec<Odd> {
    let errors = json!([
        {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}, {}, "x", 7,
        {"message": null}, []
    ]);
    let mut cases = Vec::new();
    for error in errors.as_array().into_iter().flatten() {
        for end in ["", "data: [DONE]\n\n"] {
            let event = event(&json!({"error": error}).to_string());
            let name = format!("the error {error}, then {end:?}");
            cases.extend(instead(shape, &name, &|_| format!("{event}{end}").into()));
        }
    }
    cases
}

/// Streams that go on like this after one, two and three words.
fn after(
    shape: Shape,
    name: &str,
    end: End,
    go_on: impl Fn(&Question, usize) -> Vec<u8>,
) -> Vec<Odd> {
    let case = |count: usize| {
        let question = Question::new(shape);
        let start = chunk(words(&question, count).as_bytes());
        let start = [question.head(CODED).as_bytes(), &start].concat();
        let tail = if end == End::Keep { LAST } else { "" };
        let rest = [&chunk(&go_on(&question, count)), tail.as_bytes()].concat();
        let answer = RawAnswer::new(end).bytes(start).bytes(rest);
        let name = format!("after {count} words {name}");
        Odd::new(name, &question, answer, Breaks)
    };
    vec![case(1), case(2), case(3)]
}

fn next(question: &Question, at: usize) -> String {
    event(&question.chunk(at).to_string())
}

fn breaks(shape: Shape) -> Vec<Odd> {
    [
        after(shape, "it ends", End::Keep, |_, _| Vec::new()),
        after(shape, "it is closed", End::Close, |_, _| Vec::new()),
        after(shape, "half an event", End::Keep, |question, at| {
            next(question, at)[..30].into()
        }),
        after(
            shape,
            "an event without its end",
            End::Close,
            |question, at| next(question, at).trim_end().into(),
        ),
    ]
    .concat()
}

/// Streams that say nothing more after some words.
pub fn stalls(shape: Shape) -> Vec<Odd> {
    [
        after(shape, "it stops", End::Hang, |_, _| Vec::new()),
        after(shape, "it stops in an event", End::Hang, |question, at| {
            next(question, at)[..30].into()
        }),
    ]
    .concat()
}

const ERROR: &str = r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#;

/// An error after some words, in every way to write it, with nothing or with more behind it.
fn errors_after(shape: Shape) -> Vec<Odd> {
    let ways = [
        ("an error", event(ERROR)),
        ("an error without a space", format!("data:{ERROR}\n\n")),
        ("an error with CRLF", format!("data: {ERROR}\r\n\r\n")),
        (
            "an error with a name",
            format!("event: error\ndata: {ERROR}\n\n"),
        ),
        (
            "an error behind a comment",
            format!(": x\n\n: y\ndata: {ERROR}\n\n"),
        ),
        (
            "an error on two lines",
            event(&ERROR.replacen(':', ":\ndata: ", 1)),
        ),
    ];
    let mut cases = Vec::new();
    for (how, error) in ways {
        let end = event("[DONE]");
        cases.extend(after(shape, how, End::Keep, |_, _| error.clone().into()));
        let name = format!("{how} and the end");
        cases.extend(after(shape, &name, End::Keep, |_, _| {
            format!("{error}{end}").into()
        }));
        let name = format!("{how} and more words");
        cases.extend(after(shape, &name, End::Keep, |question, at| {
            format!("{error}{}{end}", next(question, at)).into()
        }));
    }
    cases
}

#[rustfmt::skip]
const GARBAGE: &[&str] = &[
    "{", "}", "null", "[]", "7", "[DONE", "<html>", "{\"choices\":[{\"text\":\" x\"}]", "\"choices\":[{\"text\":\" x\"}]}",
    "{\"choices\":[{\"text\":\"error\"}}",
];

/// Something that is no event, and then the end as if nothing had been.
fn garbage_after(shape: Shape) -> Vec<Odd> {
    let mut cases = after(shape, "bytes that are no text", End::Keep, |_, _| {
        [NO_TEXT, event("[DONE]").as_bytes()].concat()
    });
    for garbage in GARBAGE {
        let name = format!("data {garbage:?} and the end");
        cases.extend(after(shape, &name, End::Keep, |_, _| {
            (event(garbage) + &event("[DONE]")).into()
        }));
    }
    cases
}

/// What comes behind the end of a stream: nobody hears it.
fn behind(shape: Shape) -> Vec<Odd> {
    let words: Value = json!({"choices": [{"index": 0, "text": " wrong", "delta": {"content": " wrong"}, "finish_reason": null}]});
    let behind = [
        ("more words", event(&words.to_string())),
        ("another end", event("[DONE]")),
        ("an error", event(ERROR)),
        ("half an event", "data: {".to_owned()),
        ("garbage", "\0\u{1}garbage\n\n".to_owned()),
        ("a comment", ": bye\n\n".to_owned()),
    ];
    let mut cases = Vec::new();
    for (name, more) in behind {
        for at_once in [true, false] {
            for end in [End::Keep, End::Close, End::Hang] {
                let question = Question::new(shape);
                let content = question.content();
                let tail = if end == End::Keep { LAST } else { "" };
                let parts = if at_once {
                    vec![format!("{content}{more}")]
                } else {
                    vec![content, more.clone()]
                };
                let head = RawAnswer::new(end).bytes(question.head(CODED));
                let answer = parts
                    .iter()
                    .fold(head, |answer, part| answer.bytes(chunk(part.as_bytes())));
                let name = format!("{name} behind the end, at once: {at_once}, then {end:?}");
                cases.push(Odd::new(name, &question, answer.bytes(tail), Taken));
            }
        }
    }
    cases
}
