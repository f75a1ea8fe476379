//! MessagePack as JSON, so that one comparison serves for everything.

use rmpv::Value as Packed;
use serde_json::{Map, Number, Value};

/// Reads one MessagePack value; binary strings become `hex:…`.
pub fn unpacked(bytes: &[u8]) -> Result<Value, String> {
    let mut rest = bytes;
    let value = rmpv::decode::read_value(&mut rest).map_err(|error| error.to_string())?;
    if rest.is_empty() {
        Ok(json(&value))
    } else {
        Err(format!("{} bytes after the value", rest.len()))
    }
}

fn json(value: &Packed) -> Value {
    match value {
        Packed::Nil => Value::Null,
        Packed::Boolean(value) => Value::Bool(*value),
        Packed::Integer(value) => integer(*value),
        Packed::F32(value) => float(f64::from(*value)),
        Packed::F64(value) => float(*value),
        Packed::String(value) => {
            Value::String(String::from_utf8_lossy(value.as_bytes()).into_owned())
        }
        Packed::Binary(bytes) => Value::String(format!("hex:{}", hex(bytes))),
        Packed::Array(values) => Value::Array(values.iter().map(json).collect()),
        Packed::Map(pairs) => {
            let pair = |(key, value): &(Packed, Packed)| (name(key), json(value));
            Value::Object(pairs.iter().map(pair).collect::<Map<_, _>>())
        }
        Packed::Ext(kind, bytes) => Value::String(format!("ext {kind}:{}", hex(bytes))),
    }
}

fn integer(value: rmpv::Integer) -> Value {
    let number = value.as_u64().map(Number::from);
    let number = number.or_else(|| value.as_i64().map(Number::from));
    number.map_or(Value::Null, Value::Number)
}

fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn name(key: &Packed) -> String {
    key.as_str()
        .map_or_else(|| json(key).to_string(), str::to_owned)
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| {
        [
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]
    });
    digits.map(char::from).collect()
}

/// Reads hexadecimal digits.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}
