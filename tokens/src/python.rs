//! Values written as Python writes them: `json.dumps`, `str` and `repr`.
//!
//! Templates were written for Jinja2, where `{{ value }}` and `tojson` are Python's; a space or a quote that differs is
//! another token.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// How `json.dumps` is asked to write.
#[derive(Clone, Debug)]
pub(crate) struct Dumps {
    pub(crate) ensure_ascii: bool,
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    pub(crate) sort_keys: bool,
}

impl Default for Dumps {
    fn default() -> Dumps {
        Dumps {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }
}

impl Dumps {
    /// The value as JSON text.
    pub(crate) fn write(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(value, 1, &mut out)?;
        Ok(out)
    }

    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(value, out)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => self.list(value, depth, out)?,
            ValueKind::Map => self.object(value, depth, out)?,
            kind => return Err(unlike_python(&format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&self, list: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in list.try_iter()?.checked() {
            self.separate(&mut empty, depth, out);
            self.value(&item?, depth + 1, out)?;
        }
        self.close(empty, depth, ']', out);
        Ok(())
    }

    fn object(&self, object: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('{');
        let mut keys = object
            .try_iter()?
            .checked()
            .collect::<Result<Vec<_>, _>>()?;
        if self.sort_keys {
            keys.sort_by(|left, right| left.as_str().cmp(&right.as_str()));
        }
        let mut empty = true;
        for key in keys {
            let name = key
                .as_str()
                .ok_or_else(|| unlike_python("a key that is no string"))?;
            self.separate(&mut empty, depth, out);
            self.string(name, out);
            out.push_str(&self.key_separator);
            self.value(&object.get_item(&key)?, depth + 1, out)?;
        }
        self.close(empty, depth, '}', out);
        Ok(())
    }

    fn separate(&self, empty: &mut bool, depth: usize, out: &mut String) {
        if !std::mem::replace(empty, false) {
            out.push_str(&self.item_separator);
        }
        self.new_line(depth, out);
    }

    fn close(&self, empty: bool, depth: usize, bracket: char, out: &mut String) {
        if !empty {
            self.new_line(depth - 1, out);
        }
        out.push(bracket);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                // DEL is ASCII, yet Python escapes it when asked for ASCII only.
                _ if character < ' ' || (self.ensure_ascii && character > '~') => {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// What `str(value)` gives, which is what `{{ value }}` prints.
pub(crate) fn str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        _ => repr(value, &mut out)?,
    }
    Ok(out)
}

fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out)?,
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out)?,
        ValueKind::Seq if !value.is_tuple() => {
            out.push('[');
            for (nth, item) in value.try_iter()?.checked().enumerate() {
                out.push_str(if nth == 0 { "" } else { ", " });
                repr(&item?, out)?;
            }
            out.push(']');
        }
        // Macros, namespaces and the like are mappings here and print an address there.
        ValueKind::Map
            if value.as_object().is_some_and(|object| {
                object
                    .downcast_ref::<indexmap::IndexMap<Value, Value>>()
                    .is_some()
            }) =>
        {
            out.push('{');
            for (nth, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                out.push_str(if nth == 0 { "" } else { ", " });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        kind => return Err(unlike_python(&format!("a value of kind {kind} is printed"))),
    }
    Ok(())
}

fn repr_string(text: &str, out: &mut String) -> Result<(), Error> {
    // Which characters Python thinks printable depends on its Unicode tables.
    if !text.chars().all(|c| c.is_ascii() || c.is_alphanumeric()) {
        return Err(unlike_python(
            "a list or mapping with unusual characters is printed",
        ));
    }
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => {
                out.push('\\');
                out.push(quote);
            }
            _ if character.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
    Ok(())
}

fn number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return Ok(());
    }
    let float = f64::try_from(value.clone())?;
    if !float.is_finite() {
        return Err(unlike_python("a number that is not finite"));
    }
    out.push_str(&repr_float(float));
    Ok(())
}

/// The shortest digits that read back as the same number, with an exponent where Python sets one.
fn repr_float(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The error of a place where Python's outcome is not known here.
pub(crate) fn unlike_python(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_as_python_prints_them() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (-2.5e300, "-2.5e+300"),
            (123_456.789, "123456.789"),
        ];
        for (float, text) in cases {
            assert_eq!(repr_float(float), text);
        }
    }
}
