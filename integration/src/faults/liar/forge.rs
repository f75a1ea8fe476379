//! Words that are exchanged for others of the same length, so that nobody has to count anew.

use std::ops::Range;

use memchr::memmem;

/// Rooms that there are when they come again and again.
const ROOMS: u64 = 3;

/// The same leg in one of a few rooms; `None` if it has none.
pub(super) fn few_rooms(leg: &[u8]) -> Option<Vec<u8>> {
    let mut forged = leg.to_vec();
    let at = number_of(leg, br#""bootstrap_room":"#)?;
    let room: u64 = str::from_utf8(&leg[at.clone()]).ok()?.parse().ok()?;
    let room = (room % ROOMS + 1).to_string();
    let width = at.len();
    forged[at].copy_from_slice(format!("{room:>width$}").as_bytes());
    Some(forged)
}

/// An id that is said instead of another one of the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exchange {
    true_one: Vec<u8>,
    said: Vec<u8>,
}

impl Exchange {
    /// One of a few, for the id of the handoff that a leg is about; `None` if it is about none.
    pub(super) fn in_leg(leg: &[u8]) -> Option<Self> {
        let true_one = leg[number_of(leg, br#""disagg_request_id":"#)?].to_vec();
        let id: u64 = str::from_utf8(&true_one).ok()?.parse().ok()?;
        let least = 10_u64.pow(id.checked_ilog10()?);
        let said = (least + id % ROOMS).to_string().into_bytes();
        Some(Self { true_one, said })
    }

    /// The other id everywhere.
    pub(super) fn done(&self, text: &[u8]) -> Vec<u8> {
        replaced(text, &self.true_one, &self.said)
    }

    /// The true id everywhere.
    pub(super) fn undone(&self, text: &[u8]) -> Vec<u8> {
        replaced(text, &self.said, &self.true_one)
    }
}

fn replaced(text: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut changed = text.to_vec();
    for at in memmem::find_iter(text, old) {
        changed[at..at + old.len()].copy_from_slice(new);
    }
    changed
}

/// The same stream, which did not fail; `None` if it did not.
pub(super) fn ended_well(stream: &[u8]) -> Option<Vec<u8>> {
    const BEGINS: &[u8] = br#"data: {"error":"#;
    const END: &str = r#"data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#;
    let at = memmem::find(stream, BEGINS)?;
    let width = memmem::find(&stream[at..], b"\n\n")?;
    let mut forged = stream.to_vec();
    forged[at..at + width].copy_from_slice(format!("{END:width$}").as_bytes());
    Some(forged)
}

/// Where the number behind this key is.
fn number_of(json: &[u8], key: &[u8]) -> Option<Range<usize>> {
    let begins = memmem::find(json, key)? + key.len();
    let digits = json[begins..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    Some(begins..begins + digits.count())
}

/// The same answer, which was not aborted; `None` if it was not.
pub(super) fn ended_by_itself(answer: &[u8]) -> Option<Vec<u8>> {
    const ABORT: &[u8] = br#""finish_reason":"abort""#;
    const STOP: &[u8] = br#""finish_reason":"stop" "#;
    let at = memmem::find(answer, ABORT)?;
    let mut forged = answer.to_vec();
    forged[at..at + ABORT.len()].copy_from_slice(STOP);
    Some(forged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_exchanged_and_nobody_who_said_it_hears_of_it() {
        let leg = br#"{"disagg_request_id":1099511627783,"schedule_style":0}"#;
        let exchange = Exchange::in_leg(leg).unwrap();
        let forged = exchange.done(leg);
        assert_eq!(
            forged,
            br#"{"disagg_request_id":1000000000002,"schedule_style":0}"#
        );
        assert_eq!(exchange.undone(&forged), leg);
        assert_eq!(Exchange::in_leg(b"{}"), None);
    }

    #[test]
    fn lengths_stay() {
        let leg = br#"{"bootstrap_port":9,"bootstrap_room":1152921504606846977,"rid":"x"}"#;
        let forged = few_rooms(leg).unwrap();
        assert_eq!(forged.len(), leg.len());
        let forged: serde_json::Value = serde_json::from_slice(&forged).unwrap();
        assert_eq!(
            forged["bootstrap_room"],
            1_152_921_504_606_846_977_u64 % ROOMS + 1
        );
        assert_eq!(few_rooms(b"{}"), None);
        let answer = br#"{"finish_reason":"abort","x":1}"#;
        let forged = ended_by_itself(answer).unwrap();
        assert_eq!(forged, br#"{"finish_reason":"stop" ,"x":1}"#);
        assert_eq!(ended_by_itself(&forged), None);
        let failed = b"data: {\"error\":{\"message\":\"Error in kv cache transfer for generation requests\"}}\n\ndata: [DONE]\n\n";
        let forged = ended_well(failed).unwrap();
        assert_eq!(forged.len(), failed.len());
        let text = String::from_utf8(forged).unwrap();
        let event = text.strip_prefix("data: ").unwrap();
        let event = event.split('\n').next().unwrap();
        let event: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(event["choices"][0]["finish_reason"], "stop");
        assert!(text.ends_with("\n\ndata: [DONE]\n\n"));
    }
}
