//! The ids under which a prefill and a decode engine know one handoff.
//!
//! An engine numbers its own requests below 2^40, so ids of handoffs are at least that, and below 2^63 (`disagg_utils.py`). Both
//! engines keep state by them, also of requests that are over: an id that comes twice mixes two requests up. Every leg has a
//! request id of its own, drawn from 128 bits by its router and never used for a retry, so the handoff's id is made of that one:
//! routers and sidecars, restarted or not, need no agreement and no memory. Of the 2^63 ids two that live at once meet by chance
//! only. And it makes an answer tell whose it is: the engine says the id again, while it names its answers by random ids of its own.

use baton_proto::RequestId;

/// Ids below are an engine's own.
const FIRST: u64 = 1 << 40;

/// Ids end here.
const END: u64 = i64::MAX as u64;

/// The id of the handoff of a prefill leg.
pub(crate) fn of_leg(request: &RequestId) -> u64 {
    let digest = blake3::hash(request.as_str().as_bytes());
    let first = digest.as_bytes().first_chunk().copied();
    fold(u64::from_le_bytes(first.unwrap_or_default()))
}

/// An id of which nothing was said before: for a handoff that exists before its leg.
pub(crate) fn fresh() -> u64 {
    let drawn = baton_daemon::fresh::hex_id();
    fold(u64::from_str_radix(&drawn[..16], 16).unwrap_or_default())
}

fn fold(number: u64) -> u64 {
    FIRST + number % (END - FIRST)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_no_engines_own_and_differ() {
        let legs = (0..1000).map(|leg| of_leg(&format!("{leg:032x}").parse().unwrap()));
        let ids: Vec<u64> = legs.chain((0..1000).map(|_| fresh())).collect();
        assert!(ids.iter().all(|id| (FIRST..END).contains(id)));
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert_eq!((fold(0), fold(END - FIRST)), (FIRST, FIRST));
        assert_eq!(fold(u64::MAX), FIRST + u64::MAX % (END - FIRST));
    }

    #[test]
    fn a_leg_has_one_id() {
        let leg: RequestId = "a".parse().unwrap();
        assert_eq!(of_leg(&leg), of_leg(&leg));
    }
}
