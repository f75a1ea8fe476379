//! What an assistant called, as the engine hands it to a template.

use crate::json::{Json, Object};
use crate::unknown::Unknown;

/// A call with its arguments as the object that templates expect. The members' order is that of the engine's own type.
pub(super) fn tool_call(call: &Json) -> Result<Json, Unknown> {
    let unsupported = |what: &str| Unknown::Unsupported(format!("a tool call {what}"));
    let members = call
        .as_object()
        .ok_or_else(|| unsupported("that is no object"))?;
    let text = |members: &Object, name: &str| {
        members
            .get(name)
            .filter(|value| value.as_str().is_some())
            .cloned()
    };
    let id = text(members, "id").ok_or_else(|| unsupported("without an id"))?;
    if members.get("type").and_then(Json::as_str) != Some("function") {
        return Err(unsupported("that is no function's"));
    }
    let function = members
        .get("function")
        .and_then(Json::as_object)
        .ok_or_else(|| unsupported("without a function"))?;
    let name = text(function, "name").ok_or_else(|| unsupported("without a name"))?;
    let arguments =
        text(function, "arguments").ok_or_else(|| unsupported("without arguments as text"))?;
    let arguments = parsed(arguments.as_str().unwrap_or_default())?;
    let function = with_rest([("arguments", arguments), ("name", name)], function);
    Ok(with_rest(
        [
            ("id", id),
            ("function", function),
            ("type", "function".into()),
        ],
        members,
    ))
}

/// These members, and then what else there was.
fn with_rest<const N: usize>(known: [(&str, Json); N], all: &Object) -> Json {
    let mut shown: Object = known
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    for (name, value) in all {
        if !shown.contains_key(name) {
            shown.insert(name.clone(), value.clone());
        }
    }
    Json::Object(shown)
}

fn parsed(arguments: &str) -> Result<Json, Unknown> {
    let nothing = || Ok(Json::Object(Object::new()));
    match serde_json::from_str(arguments) {
        Ok(Json::Object(members)) => Ok(Json::Object(members)),
        // The engine takes what is no object, and what is no JSON, for an empty object.
        Ok(_) => nothing(),
        Err(error) if is_json_nowhere(arguments, &error) => nothing(),
        Err(_) => Err(Unknown::Unsupported(
            "a call with arguments that only Python may read".into(),
        )),
    }
}

/// Python reads what the standard does not allow: numbers without bounds, some names, halves of characters, deep nesting.
fn is_json_nowhere(text: &str, error: &serde_json::Error) -> bool {
    const DEEP: usize = 100;
    let python_only = ["NaN", "Infinity", "\\u"]
        .into_iter()
        .any(|wide| text.contains(wide));
    let nested = text
        .bytes()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
        > DEEP;
    !python_only && !nested && !error.to_string().starts_with("number out of range")
}
