//! A MessagePack message in parts that can be spoilt.

use baton_proto::frame;
use rmpv::Value;

/// A message as a value.
pub(super) fn value<T: serde::Serialize>(message: &T) -> Value {
    rmpv::decode::read_value(&mut &frame::to_bytes(message)[..]).unwrap()
}

/// A value's bytes.
pub(super) fn encoded(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// Members of a map.
pub(super) type Members = Vec<(Value, Value)>;

/// The members of a message.
pub(super) fn members(value: &mut Value) -> &mut Members {
    match value {
        Value::Map(members) => members,
        other => panic!("a message is a map, not {other}"),
    }
}

/// Gives a message's member another value.
pub(super) fn set(message: &mut Value, name: &str, value: Value) {
    let mut all = members(message).iter_mut();
    let member = all.find(|(known, _)| known.as_str() == Some(name));
    member.expect("the message has this member").1 = value;
}

/// Places of all members of a map and of the maps in it.
pub(super) fn places(value: &Value) -> Vec<Vec<usize>> {
    let Value::Map(members) = value else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (at, (_, inner)) in members.iter().enumerate() {
        let below = places(inner).into_iter();
        found.extend(below.map(|place| [vec![at], place].concat()));
        found.push(vec![at]);
    }
    found
}

/// The map that holds the member at a place, and that member's own place in it.
pub(super) fn holder<'a>(message: &'a mut Value, place: &[usize]) -> (&'a mut Members, usize) {
    match place {
        [at, rest @ ..] if !rest.is_empty() => holder(&mut members(message)[*at].1, rest),
        _ => (members(message), place[0]),
    }
}

/// A value of every type.
pub(super) fn strangers() -> Vec<(&'static str, Value)> {
    vec![
        ("nil", Value::Nil),
        ("a truth", true.into()),
        ("a negative number", (-1).into()),
        ("a fraction", 1.5.into()),
        ("an empty text", "".into()),
        ("a long text", "x".repeat(5000).into()),
        ("a text with line ends", "x\r\ny: z".into()),
        ("bytes", Value::Binary(vec![0xff; 3])),
        ("a list", Value::Array(vec![1.into()])),
        ("a map", Value::Map(vec![("a".into(), 1.into())])),
        ("an extension", Value::Ext(1, vec![2])),
    ]
}
