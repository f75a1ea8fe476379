//! Filters whose outcome in Jinja2 differs from minijinja's own.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::methods::{in_case, strip};
use super::rewrite::{AS_TEXT, ITERATED, MEMBER};
use crate::python::{self, Dumps, unlike_python};

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python::str(value));
    environment.add_filter(AS_TEXT, |value: &Value| python::str(value));
    environment.add_filter("trim", trim);
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    for case in ["upper", "lower", "capitalize"] {
        environment.add_filter(case, move |value: &Value| {
            in_case(&python::str(value)?, case)
        });
    }
    environment.add_filter(MEMBER, member);
    environment.add_filter(ITERATED, iterated);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq
                | ValueKind::Map
                | ValueKind::String
                | ValueKind::Iterable
                | ValueKind::Undefined
        )
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands arguments over"
)]
fn tojson(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    if !positional.is_empty() {
        return Err(unlike_python("tojson is given arguments without names"));
    }
    let mut dumps = Dumps::default();
    if let Some(ascii) = named.get::<Option<bool>>("ensure_ascii")? {
        dumps.ensure_ascii = ascii;
    }
    if let Some(sort) = named.get::<Option<bool>>("sort_keys")? {
        dumps.sort_keys = sort;
    }
    if let Some(indent) = named
        .get::<Option<Value>>("indent")?
        .filter(|indent| !indent.is_none())
    {
        dumps.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        });
        // With an indent, a line break takes the place of the blank.
        dumps.item_separator = ",".into();
    }
    if let Some(separators) = named
        .get::<Option<Value>>("separators")?
        .filter(|separators| !separators.is_none())
    {
        let pair = separators
            .try_iter()?
            .checked()
            .collect::<Result<Vec<_>, _>>()?;
        let [item, key] = pair.as_slice() else {
            return Err(unlike_python("tojson takes two separators"));
        };
        (dumps.item_separator, dumps.key_separator) = (python::str(item)?, python::str(key)?);
    }
    named.assert_all_used()?;
    dumps.write(value)
}

fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = python::str(value)?;
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => strip(&text).to_owned(),
    })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands arguments over"
)]
fn join(value: &Value, separator: Option<&str>, attribute: Rest<Value>) -> Result<String, Error> {
    if !attribute.is_empty() || matches!(value.kind(), ValueKind::Map | ValueKind::String) {
        return Err(unlike_python("join of anything but a list"));
    }
    let texts = value
        .try_iter()?
        .checked()
        .map(|item| python::str(&item?))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join(separator.unwrap_or_default()))
}

/// `int(value)`, or 0 for what is no number.
fn int(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Ok(value.clone()),
        ValueKind::String => int_of_text(value.as_str().unwrap_or_default()),
        ValueKind::Number => {
            let float = f64::try_from(value.clone())?.trunc();
            // Every integer so small is a float exactly.
            #[expect(clippy::cast_possible_truncation, reason = "checked to be small")]
            let small = (float.abs() < 1e15).then_some(float as i64);
            small
                .map(Value::from)
                .ok_or_else(|| unlike_python("a large float as an integer"))
        }
        kind => Err(unlike_python(&format!("{kind} as an integer"))),
    }
}

fn int_of_text(text: &str) -> Result<Value, Error> {
    let plain = strip(text);
    if let Ok(number) = plain.parse::<i64>() {
        return Ok(Value::from(number));
    }
    // Python also reads floats, underscores, other scripts' digits, and `inf`.
    let certainly_none = plain.chars().all(|c| c.is_ascii() && !c.is_ascii_digit())
        && !plain.to_ascii_lowercase().contains(['n', 'i']);
    if certainly_none {
        Ok(Value::from(0))
    } else {
        Err(unlike_python("such a text as an integer"))
    }
}

/// What has a length and members by number or name; of an iterator it cannot be told here which one Python has.
fn is_sequence(value: &Value) -> Result<bool, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined => Ok(true),
        ValueKind::Iterable | ValueKind::Plain => Err(unlike_python("whether this is a sequence")),
        _ => Ok(false),
    }
}

/// A member of a name that Python's mappings have a method of: without the member, that is what Python finds.
fn member(value: Value) -> Result<Value, Error> {
    if value.is_undefined() {
        Err(unlike_python("a method of a mapping"))
    } else {
        Ok(value)
    }
}

/// What a loop is over: Python does not loop over `None`.
fn iterated(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        Err(unlike_python("a loop over none"))
    } else {
        Ok(value)
    }
}
