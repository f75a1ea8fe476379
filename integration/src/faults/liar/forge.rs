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
    }
}
