//! Filters whose outcome in Jinja2 differs from minijinja's own.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::methods::strip;
use super::rewrite::AS_TEXT;
use crate::python::{self, Dumps, unlike_python};

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python::str(value));
    environment.add_filter(AS_TEXT, |value: &Value| python::str(value));
    environment.add_filter("trim", trim);
    environment.add_filter("join", join);
}

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
