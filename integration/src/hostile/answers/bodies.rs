//! What is odd in a body that is one JSON value: cut, no JSON, JSON of another shape, an error where an answer should be.

use serde_json::{Value, json};

use super::{Odd, Outcome, Question, Shape, keeping};
use Outcome::{Taken, Useless};

/// All cases of this page.
pub fn cases(shape: Shape) -> Vec<Odd> {
    if shape.stream {
        return Vec::new();
    }
    [
        texts(shape),
        spoilt(shape),
        shapes(shape),
        errors(shape),
        harmless(shape),
    ]
    .concat()
}

/// An answer whose right text is written anew.
fn written<B: AsRef<[u8]>>(
    shape: Shape,
    name: impl Into<String>,
    outcome: Outcome,
    write: impl FnOnce(&str) -> B,
) -> Odd {
    let question = Question::new(shape);
    let body = write(&question.content());
    let answer = keeping(question.sized(body.as_ref()));
    Odd::new(name, &question, answer, outcome)
}

#[rustfmt::skip]
const NO_ANSWERS: &[&str] = &[
    "", " ", "\n", "null", "true", "0", "\"text\"", "[]", "[{}]", "{", "{}", "OK", "Internal Server Error",
    "<html><body>It works!</body></html>", "data: [DONE]\n\n", "[DONE]",
];

/// Bodies that are something else, or not all there.
fn texts(shape: Shape) -> Vec<Odd> {
    let cuts = (0..10).map(|tenth| {
        written(shape, format!("{tenth} tenths of it"), Useless, |right| {
            right[..right.len() * tenth / 10].to_owned()
        })
    });
    let others = NO_ANSWERS.iter();
    let others = others.map(|body| written(shape, format!("body {body:?}"), Useless, |_| *body));
    cuts.chain(others).collect()
}

/// What may not be inside a text.
#[rustfmt::skip]
const INSIDE: &[&[u8]] = &[b"\0", b"\x01", b"\n", b"\x80", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\"", b"\\x"];

/// What may not be around an object.
#[rustfmt::skip]
const AROUND: &[(&str, &str)] = &[
    ("\u{feff}", ""), ("", "x"), ("", "{}"), ("", ","), ("", "\0"), (")]}'\n", ""), ("data: ", "\n\n"), ("/**/", ""), ("[", "]"),
];

/// Bodies that are no JSON, or an object that two readers could read in two ways.
fn spoilt(shape: Shape) -> Vec<Odd> {
    let inside = INSIDE.iter().map(|bytes| {
        let name = format!("{:?} inside a text", String::from_utf8_lossy(bytes));
        written(shape, name, Useless, |right| {
            let (before, after) = right.split_at(right.find("length\"").unwrap_or(1));
            [before.as_bytes(), bytes, after.as_bytes()].concat()
        })
    });
    let around = AROUND.iter().map(|(before, after)| {
        let name = format!("between {before:?} and {after:?}");
        written(shape, name, Useless, |right| {
            format!("{before}{right}{after}")
        })
    });
    let twice = ["choices", "usage", "id"].map(|key| {
        written(shape, format!("{key} twice"), Useless, |right| {
            format!("{},\"{key}\":null}}", &right[..right.len() - 1])
        })
    });
    let others = [
        written(shape, "UTF-16", Useless, |right| {
            let units = right.encode_utf16().flat_map(u16::to_le_bytes);
            units.collect::<Vec<u8>>()
        }),
        written(shape, "what begins like gzip", Useless, |right| {
            [b"\x1f\x8b\x08\0\0\0\0\0\0\x03", right.as_bytes()].concat()
        }),
        written(shape, "NaN for a number", Useless, |right| {
            right.replace("\"created\":1", "\"created\":NaN")
        }),
    ];
    inside.chain(around).chain(twice).chain(others).collect()
}

/// The right answer with one thing changed.
fn changed(shape: Shape, name: String, change: impl FnOnce(&mut Value)) -> Odd {
    let question = Question::new(shape);
    let mut value = question.value();
    change(&mut value);
    let answer = keeping(question.sized(value.to_string().as_bytes()));
    Odd::new(name, &question, answer, Useless)
}

/// JSON in which the choices are no choices.
fn shapes(shape: Shape) -> Vec<Odd> {
    let content = if shape.chat { "message" } else { "text" };
    let strangers = json!([
        null,
        false,
        0,
        1.5,
        "",
        "x",
        [],
        {},
        [null],
        [[]],
        [{}],
        [7],
        ["x"]
    ]);
    let mut cases = Vec::new();
    for stranger in strangers.as_array().into_iter().flatten() {
        let name = format!("choices are {stranger}");
        cases.push(changed(shape, name, |value| {
            value["choices"] = stranger.clone();
        }));
        let name = format!("a choice is {stranger}");
        cases.push(changed(shape, name, |value| {
            value["choices"][0] = stranger.clone();
        }));
    }
    // An empty text is a text, and a message may carry something else than one.
    for stranger in [json!(null), json!(false), json!(7), json!([])] {
        let name = format!("{content} is {stranger}");
        cases.push(changed(shape, name, |value| {
            value["choices"][0][content] = stranger;
        }));
    }
    cases.push(changed(shape, format!("no {content}"), |value| {
        let choice = value["choices"][0].as_object_mut();
        choice.and_then(|choice| choice.remove(content));
    }));
    let name = "choices under another name".to_owned();
    cases.push(changed(shape, name, |value| {
        *value = json!({"Choices": value["choices"].take()});
    }));
    cases
}

/// A 200 with an error in it.
fn errors(shape: Shape) -> Vec<Odd> {
    let errors = json!([
        {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}, {"message": "x"},
        {"code": 500}, {"code": "500"}, {"message": null}, {"message": 7, "code": 99999}, {}, [], "text", "", true, 500,
        {"error": {"error": {}}}
    ]);
    let mut cases = Vec::new();
    for error in errors.as_array().into_iter().flatten() {
        for beside in [true, false] {
            let question = Question::new(shape);
            let mut value = if beside { question.value() } else { json!({}) };
            value["error"] = error.clone();
            let answer = keeping(question.sized(value.to_string().as_bytes()));
            let name = format!("error {error}, beside an answer: {beside}");
            cases.push(Odd::new(name, &question, answer, Useless));
        }
    }
    cases.push(written(
        shape,
        "error in another spelling",
        Useless,
        |right| right.replacen('{', r#"{"\u0065rror":{"message":"x"},"#, 1),
    ));
    cases
}

/// More members. Baton has no business with them.
#[rustfmt::skip]
const MORE: &[&str] = &[
    r#""error":null"#, r#""x":[{"error":{"message":"x"}}]"#, r#""x":{"a":1,"a":2}"#, r#""x":123456789012345678901234567890"#,
    r#""transfer_params":{"do_remote_prefill":true}"#,
];

fn harmless(shape: Shape) -> Vec<Odd> {
    let more = MORE.iter().map(|member| {
        written(shape, format!("with {member}"), Taken, |right| {
            format!("{},{member}}}", &right[..right.len() - 1])
        })
    });
    let others = [
        written(shape, "spaces around", Taken, |right| {
            format!(" \r\n\t{right}\n\n")
        }),
        written(shape, "no usage", Taken, |right| {
            right.replace("usage", "usage_was")
        }),
    ];
    more.chain(others).collect()
}
