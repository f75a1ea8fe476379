//! Methods of Python's strings, lists and mappings.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::python::unlike_python;

/// Calls a method as Python would, or fails.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(outcome) = value
        .as_str()
        .and_then(|text| of_string(text, method, args).transpose())
    {
        return outcome;
    }
    match (value.kind(), method) {
        (ValueKind::Map, "items" | "keys" | "values" | "get") => {
            pycompat::unknown_method_callback(state, value, method, args)
        }
        (
            ValueKind::String,
            "startswith" | "endswith" | "replace" | "join" | "count" | "find" | "rfind",
        ) => pycompat::unknown_method_callback(state, value, method, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// None: another place knows this method.
fn of_string(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let trimmed = |chars: Option<&str>, left: bool, right: bool| {
        let trim = |c: char| chars.map_or_else(|| is_python_space(c), |chars| chars.contains(c));
        let text = if left {
            text.trim_start_matches(trim)
        } else {
            text
        };
        Value::from(if right {
            text.trim_end_matches(trim)
        } else {
            text
        })
    };
    let chars = || from_args::<(Option<&str>,)>(args).map(|(chars,)| chars);
    Ok(Some(match method {
        "strip" => trimmed(chars()?, true, true),
        "lstrip" => trimmed(chars()?, true, false),
        "rstrip" => trimmed(chars()?, false, true),
        "split" => split(text, args)?,
        "upper" | "lower" | "capitalize" => {
            from_args::<()>(args)?;
            Value::from(in_case(text, method)?)
        }
        _ => return Ok(None),
    }))
}

/// A text in another case. Beyond ASCII the outcome depends on Unicode's version.
pub(super) fn in_case(text: &str, case: &str) -> Result<String, Error> {
    if !text.is_ascii() {
        return Err(unlike_python("the case of letters beyond ASCII"));
    }
    let mut changed = if case == "upper" {
        text.to_ascii_uppercase()
    } else {
        text.to_ascii_lowercase()
    };
    if case == "capitalize"
        && let Some(first) = changed.get_mut(..1)
    {
        first.make_ascii_uppercase();
    }
    Ok(changed)
}

fn split(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most) = from_args::<(Option<&str>, Option<i64>)>(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok());
    match separator {
        Some("") => Err(unlike_python("split at nothing")),
        Some(separator) => Ok(match most {
            Some(most) => text.splitn(most + 1, separator).map(Value::from).collect(),
            None => text.split(separator).map(Value::from).collect(),
        }),
        None if most.is_some() => Err(unlike_python("split at blanks, a number of times")),
        None => Ok(text
            .split(is_python_space)
            .filter(|word| !word.is_empty())
            .map(Value::from)
            .collect()),
    }
}

/// What `str.isspace` holds for: Unicode's white space and four old separators.
pub(super) fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// A text without the blanks around it, as `str.strip` gives it.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_python_space)
}

/// A text without the blanks at its end, as `str.rstrip` gives it.
pub(crate) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_python_space)
}
