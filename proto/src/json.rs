//! A JSON object seen only at its top level, and edits there that leave every other byte alone.
//!
//! The client's body and the engine's answers are theirs: Baton reads a few top-level keys, replaces or removes a few
//! more and never re-serialises the rest. Keys are compared with their escapes decoded, and a key given twice is refused
//! because engines and gateways disagree on which one counts.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Most members at the top level. Requests and answers have some dozens; each costs a hundred bytes of memory here, which
/// would make a large body of tiny members many times as large.
const MOST_MEMBERS: usize = 1024;

/// Why bytes are no usable JSON object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadJson {
    /// Not JSON, or not UTF-8, or something follows the value.
    #[error("the body is not valid JSON: {0}")]
    Syntax(String),
    /// JSON of another type, or a duplicate key.
    #[error("the body is not a valid request object: {0}")]
    Shape(String),
}

/// A top-level member: decoded key and where its value stands in the source.
#[derive(Debug, Clone)]
struct Member<'a> {
    key: Cow<'a, str>,
    value: Range<usize>,
}

/// A JSON object, borrowed, of which only the top level was looked at (the rest was checked for syntax).
#[derive(Debug, Clone)]
pub struct RawObject<'a> {
    source: &'a str,
    members: Arc<[Member<'a>]>,
}

/// Where the members of an object stand, without its bytes: what is read once need not be read again.
#[derive(Debug, Clone)]
pub(crate) struct Layout(Arc<[Member<'static>]>);

impl<'a> RawObject<'a> {
    /// Reads an object.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadJson> {
        let source = std::str::from_utf8(bytes)
            .map_err(|_| BadJson::Syntax("it is not UTF-8".to_owned()))?;
        let mut deserializer = serde_json::Deserializer::from_str(source);
        let members = TopLevel { source }
            .deserialize(&mut deserializer)
            .map_err(|error| {
                if error.is_data() {
                    BadJson::Shape(error.to_string())
                } else {
                    BadJson::Syntax(error.to_string())
                }
            })?;
        deserializer
            .end()
            .map_err(|error| BadJson::Syntax(error.to_string()))?;
        let members = members.into();
        Ok(Self { source, members })
    }

    /// Where its members stand.
    pub(crate) fn layout(&self) -> Layout {
        let owned = |member: &Member<'_>| Member {
            key: Cow::Owned(member.key.clone().into_owned()),
            value: member.value.clone(),
        };
        Layout(self.members.iter().map(owned).collect())
    }

    /// The object in `source`, of which this layout was taken; `None` if it is not even text.
    pub(crate) fn laid_out(source: &'a [u8], layout: &Layout) -> Option<Self> {
        let source = std::str::from_utf8(source).ok()?;
        let members = Arc::clone(&layout.0);
        Some(Self { source, members })
    }

    /// Decoded top-level keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.key.as_ref())
    }

    /// The raw JSON of a member.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let member = self.members.iter().find(|member| member.key == key)?;
        self.source.get(member.value.clone())
    }

    /// The raw JSON of a member that is neither absent nor `null`.
    pub fn get_set(&self, key: &str) -> Option<&'a str> {
        self.get(key).filter(|raw| *raw != "null")
    }

    /// A member that decodes as `T`; `None` if absent, `null` or of another type.
    pub fn get_as<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<T> {
        serde_json::from_str(self.get_set(key)?).ok()
    }

    /// Starts an edited copy.
    pub fn edit(&self) -> Edit<'_> {
        Edit {
            object: self,
            values: vec![Change::Keep; self.members.len()],
            added: Vec::new(),
        }
    }
}

#[derive(Debug, Clone)]
enum Change {
    Keep,
    Set(String),
    Remove,
}

/// An edited copy of an object in the making.
#[derive(Debug)]
pub struct Edit<'a> {
    object: &'a RawObject<'a>,
    values: Vec<Change>,
    added: Vec<(String, String)>,
}

impl Edit<'_> {
    /// Gives a member this raw JSON value, in place if the member exists, else at the end.
    #[must_use]
    pub fn set(mut self, key: &str, raw_json: impl Into<String>) -> Self {
        debug_assert!(
            !self.added.iter().any(|(added, _)| added == key),
            "one edit a key"
        );
        match self
            .object
            .members
            .iter()
            .position(|member| member.key == key)
        {
            Some(at) => self.values[at] = Change::Set(raw_json.into()),
            None => self.added.push((key.to_owned(), raw_json.into())),
        }
        self
    }

    /// Removes a member if it exists.
    #[must_use]
    pub fn remove(mut self, key: &str) -> Self {
        if let Some(at) = self
            .object
            .members
            .iter()
            .position(|member| member.key == key)
        {
            self.values[at] = Change::Remove;
        }
        self
    }

    /// The edited object. Bytes of untouched members, their keys and their spacing are those of the source.
    pub fn finish(self) -> String {
        let source = self.object.source;
        let open = source.find('{').map_or(0, |at| at + 1);
        let mut out = String::with_capacity(source.len() + 256);
        out.push_str(&source[..open]);
        let mut previous_end = open;
        let mut first = true;
        for (member, change) in self.object.members.iter().zip(&self.values) {
            // The gap holds a comma (but before the first member), the key, the colon and spacing.
            let gap = &source[previous_end..member.value.start];
            previous_end = member.value.end;
            let value = match change {
                Change::Remove => continue,
                Change::Keep => &source[member.value.clone()],
                Change::Set(raw) => raw.as_str(),
            };
            let gap = if first { without_comma(gap) } else { gap };
            out.push_str(gap);
            out.push_str(value);
            first = false;
        }
        for (key, value) in &self.added {
            if !first {
                out.push(',');
            }
            out.push_str(&serde_json::Value::from(key.as_str()).to_string());
            out.push(':');
            out.push_str(value);
            first = false;
        }
        out.push_str(&source[previous_end..]);
        out
    }
}

/// A gap that no longer follows a member.
fn without_comma(gap: &str) -> &str {
    gap.trim_start().strip_prefix(',').unwrap_or(gap)
}

struct TopLevel<'a> {
    source: &'a str,
}

impl<'de> DeserializeSeed<'de> for TopLevel<'de> {
    type Value = Vec<Member<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TopLevel<'de> {
    type Value = Vec<Member<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<Member<'de>> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(CowStr(key)) = map.next_key()? {
            if members.len() >= MOST_MEMBERS {
                return Err(serde::de::Error::custom(format_args!(
                    "there are more than {MOST_MEMBERS} keys"
                )));
            }
            if !seen.insert(key.clone()) {
                return Err(serde::de::Error::custom(format_args!(
                    "the key {key:?} is given twice"
                )));
            }
            let raw: &RawValue = map.next_value()?;
            // A borrowed RawValue is a slice of the source, so its place is the distance of the two pointers.
            let start = raw.get().as_ptr() as usize - self.source.as_ptr() as usize;
            members.push(Member {
                key,
                value: start..start + raw.get().len(),
            });
        }
        Ok(members)
    }
}

/// A string that borrows from the source unless it has escapes.
#[derive(serde::Deserialize)]
struct CowStr<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edited(source: &str, edit: impl for<'a> FnOnce(Edit<'a>) -> Edit<'a>) -> String {
        edit(RawObject::parse(source.as_bytes()).unwrap().edit()).finish()
    }

    #[test]
    fn edits_touch_nothing_else() {
        let source = " { \"a\" : 1.50 ,\n\"b\":{\"a\": [1 , 2]} , \"c\\u0061\":\"\\ud800\"  } ";
        assert_eq!(edited(source, |e| e), source);
        assert_eq!(
            edited(source, |e| e.set("b", "0")),
            " { \"a\" : 1.50 ,\n\"b\":0 , \"c\\u0061\":\"\\ud800\"  } "
        );
        assert_eq!(
            edited(source, |e| e.remove("a")),
            " {\n\"b\":{\"a\": [1 , 2]} , \"c\\u0061\":\"\\ud800\"  } "
        );
        assert_eq!(
            edited(source, |e| e.remove("ca")),
            " { \"a\" : 1.50 ,\n\"b\":{\"a\": [1 , 2]}  } "
        );
        assert_eq!(edited("{}", |e| e.set("k\"", "[]")), "{\"k\\\"\":[]}");
        assert_eq!(edited("{\"a\":1}", |e| e.remove("a")), "{}");
        assert_eq!(
            edited("{\"a\":1}", |e| e.remove("a").set("b", "2")),
            "{\"b\":2}"
        );
        assert_eq!(
            edited("{\"a\":1,\"b\":2}", |e| e.remove("a").remove("b")),
            "{}"
        );
    }

    #[test]
    fn numbers_stay_as_written() {
        let source = r#"{"seed":18446744073709551617,"temperature":1e-400,"x":-0.0}"#;
        let object = RawObject::parse(source.as_bytes()).unwrap();
        assert_eq!(object.get("seed"), Some("18446744073709551617"));
        assert_eq!(
            object.edit().set("y", "1").finish(),
            format!("{},\"y\":1}}", &source[..source.len() - 1])
        );
    }

    #[test]
    fn duplicate_keys_are_refused_however_spelled() {
        let error = RawObject::parse(br#"{"model":1,"m\u006fdel":2}"#).unwrap_err();
        assert!(error.to_string().contains("given twice"), "{error}");
        assert!(
            RawObject::parse(br#"{"a":{"b":1,"b":2}}"#).is_ok(),
            "nested ones are the engine's business"
        );
    }

    #[test]
    fn more_members_than_any_request_has_are_refused() {
        let of = |count: usize| {
            let members: Vec<String> = (0..count).map(|at| format!("\"k{at}\":{at}")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(RawObject::parse(of(MOST_MEMBERS).as_bytes()).is_ok());
        let error = RawObject::parse(of(MOST_MEMBERS + 1).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("1024 keys"), "{error}");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for bad in [
            "",
            "[]",
            "1",
            "null",
            "{",
            "{}{}",
            "{\"a\":1,}",
            "{\"a\":NaN}",
            "{'a':1}",
            "\u{feff}{}",
        ] {
            assert!(RawObject::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(RawObject::parse(b"{\"a\":\"\xff\"}").is_err());
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert!(
            RawObject::parse(deep.as_bytes()).is_ok(),
            "depth costs no stack"
        );
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::btree_map("[a-e\"\\\\]{0,2}", inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn edits_equal_those_of_a_parsed_value(
            map in prop::collection::btree_map("[a-e\"\\\\]{0,2}", json(), 0..6),
            set in prop::collection::btree_map("[a-e]{0,2}", json(), 0..3),
            remove in prop::collection::btree_set("[a-e]{0,2}", 0..3),
            pretty in any::<bool>(),
        ) {
            let mut expected: serde_json::Map<_, _> = map.into_iter().collect();
            let text = if pretty { serde_json::to_string_pretty(&expected) } else { serde_json::to_string(&expected) }.unwrap();
            let object = RawObject::parse(text.as_bytes()).unwrap();
            let mut edit = object.edit();
            for (key, value) in set.iter().filter(|(key, _)| !remove.contains(*key)) {
                edit = edit.set(key, value.to_string());
                expected.insert(key.clone(), value.clone());
            }
            for key in &remove {
                edit = edit.remove(key);
                expected.remove(key);
            }
            let got: serde_json::Value = serde_json::from_str(&edit.finish()).unwrap();
            prop_assert_eq!(got, serde_json::Value::Object(expected));
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(object) = RawObject::parse(&bytes) {
                let _ = object.edit().set("a", "1").remove("b").finish();
            }
        }
    }
}
