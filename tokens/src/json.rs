//! JSON as Python's `json.loads` reads it: members in order, integers apart from floats.
//!
//! What Rust and Python would read differently is never guessed at: an engine's template prints these values.

use std::fmt;

use indexmap::IndexMap;
use minijinja::Value;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::python::unlike_python;

/// Beyond this a number may have been an integer that only Python keeps exactly.
const EXACT_INTEGERS: f64 = 9_223_372_036_854_775_808.0;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// A number that Python may hold more exactly. A template that touches it fails.
    Inexact,
    Str(String),
    List(Vec<Json>),
    Object(Object),
}

/// Members in the order in which their names first came; the last value of a name counts, as in Python.
pub(crate) type Object = IndexMap<String, Json>;

impl Json {
    /// The value, unless it is null.
    pub(crate) fn some(&self) -> Option<&Json> {
        (!matches!(self, Json::Null)).then_some(self)
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Json::Str(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_object(&self) -> Option<&Object> {
        match self {
            Json::Object(members) => Some(members),
            _ => None,
        }
    }

    /// What a reader calls this kind of value.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Int(_) | Json::Float(_) | Json::Inexact => "a number",
            Json::Str(_) => "a string",
            Json::List(_) => "an array",
            Json::Object(_) => "an object",
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Str(text.to_owned())
    }
}

impl From<Json> for Value {
    fn from(json: Json) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(truth) => Value::from(truth),
            Json::Int(number) => match i64::try_from(number) {
                Ok(small) => Value::from(small),
                Err(_) => Value::from(number),
            },
            Json::Float(number) => Value::from(number),
            Json::Inexact => Value::from(unlike_python("a number that cannot be held exactly")),
            Json::Str(text) => Value::from(text),
            Json::List(items) => items.into_iter().map(Value::from).collect(),
            Json::Object(members) => {
                members
                    .into_iter()
                    .map(|(name, value)| (name, Value::from(value)))
                    .collect::<Pairs>()
                    .0
            }
        }
    }
}

/// Collects pairs into a template's mapping.
struct Pairs(Value);

impl FromIterator<(String, Value)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(pairs: I) -> Pairs {
        Pairs(Value::from_object(
            pairs
                .into_iter()
                .map(|(name, value)| (Value::from(name), value))
                .collect::<IndexMap<Value, Value>>(),
        ))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Json, E> {
        Ok(Json::Bool(truth))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Int(number.into()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Int(number.into()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Json, E> {
        // `-0` is an integer to Python and a float here; a long integer is exact there and rounded here.
        let ambiguous =
            (number == 0.0 && number.is_sign_negative()) || number.abs() >= EXACT_INTEGERS;
        Ok(if ambiguous {
            Json::Inexact
        } else {
            Json::Float(number)
        })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Str(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Json, E> {
        Ok(Json::Str(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut members = Object::new();
        while let Some((name, value)) = entries.next_entry::<String, Json>()? {
            members.insert(name, value);
        }
        Ok(Json::Object(members))
    }
}
