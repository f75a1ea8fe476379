//! vLLM's KV events: messages of its event socket and of its replay socket, in the sidecar's terms.
//!
//! A message is `[topic, sequence number, payload]` ([`message`]), its payload a batch of events in MessagePack
//! ([`decoder`]). Written against 0.32.0, whose events are maps; older versions send arrays with the same fields in the
//! order of `field::STORED`, and newer ones may send the batch as a map, too. Either is read, in any order of keys.
//!
//! Nothing unknown is fatal, and nothing passes in silence: see [`oddity`]. The payload is untrusted. Reading it takes no
//! memory that its own bytes do not stand for, no recursion, and one look at each byte (two at extra keys); one that is no
//! batch is one error and has no events.

mod cursor;
pub mod decoder;
mod event;
mod extra_keys;
mod field;
pub mod message;
mod number;
pub mod oddity;
mod reading;
#[cfg(test)]
mod tests;

pub use cursor::Malformed;
