//! Tools as the engine hands them to a template: its own fields in its own order, absent ones as null.

use crate::json::{Json, Object};
use crate::unknown::Unknown;

pub(super) fn of(tools: &Json) -> Result<Json, Unknown> {
    match tools {
        Json::List(items) if items.is_empty() => {
            Err(Unknown::Refused("an empty list of tools".into()))
        }
        Json::List(items) => Ok(Json::List(
            items.iter().map(tool).collect::<Result<_, _>>()?,
        )),
        _ => Err(Unknown::Refused("tools that are no list".into())),
    }
}

fn tool(tool: &Json) -> Result<Json, Unknown> {
    let refused = |what: &str| Unknown::Refused(format!("a tool {what}"));
    let members = tool
        .as_object()
        .ok_or_else(|| refused("that is no object"))?;
    if members
        .get("type")
        .is_some_and(|kind| kind.as_str() != Some("function"))
    {
        return Err(refused("that is no function"));
    }
    let function = members
        .get("function")
        .and_then(Json::as_object)
        .ok_or_else(|| refused("without a function"))?;
    let mut shown = Object::new();
    shown.insert("type".into(), "function".into());
    // A tool's wish to be loaded later becomes its function's.
    let later = optional(members, "defer_loading", |value| {
        matches!(value, Json::Bool(_))
    })?;
    shown.insert("function".into(), function_of(function, &later)?);
    if later != Json::Null {
        shown.insert("defer_loading".into(), later);
    }
    Ok(Json::Object(shown))
}

fn function_of(function: &Object, later: &Json) -> Result<Json, Unknown> {
    let is_bool = |value: &Json| matches!(value, Json::Bool(_));
    let name = function.get("name").filter(|name| name.as_str().is_some());
    let name = name.ok_or_else(|| Unknown::Refused("a tool without a name".into()))?;
    let mut shown = Object::new();
    shown.insert("name".into(), name.clone());
    shown.insert(
        "description".into(),
        optional(function, "description", |value| value.as_str().is_some())?,
    );
    shown.insert(
        "parameters".into(),
        optional(function, "parameters", |value| value.as_object().is_some())?,
    );
    let own = optional(function, "defer_loading", is_bool)?;
    let later = if own == Json::Null {
        later.clone()
    } else {
        own
    };
    for (name, value) in [
        ("strict", optional(function, "strict", is_bool)?),
        ("defer_loading", later),
    ] {
        if value != Json::Null {
            shown.insert(name.into(), value);
        }
    }
    Ok(Json::Object(shown))
}

fn optional(members: &Object, name: &str, fits: fn(&Json) -> bool) -> Result<Json, Unknown> {
    match members.get(name).and_then(Json::some) {
        None => Ok(Json::Null),
        Some(value) if fits(value) => Ok(value.clone()),
        Some(value) => Err(Unknown::Unsupported(format!(
            "a tool's {name} as {}",
            value.kind()
        ))),
    }
}
