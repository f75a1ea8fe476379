//! Bootstrap rooms: the numbers under which a prefill and a decode engine find each other.
//!
//! Both engines keep state by room, for requests that live and for some that are over: a room that comes twice crashes them or
//! mixes two requests up (0.5.23; sglang issue 40125). Decode engines meet the rooms of many prefill engines. So a room is used
//! once in the whole fleet: each life of a sidecar begins at a place of its own, drawn from 2^60, and counts up. That two lives
//! come to the same room takes two draws that lie closer together than the requests that one of them serves.

use std::sync::atomic::{AtomicU64, Ordering};

/// Hexadecimal digits of the place to begin at. What is left of an engine's 63 bits is never reached by counting.
const DIGITS: usize = 15;

/// Rooms of one sidecar's life. Room 0 is none of them: with it an engine waits for ever (0.5.23).
#[derive(Debug)]
pub struct Rooms(AtomicU64);

impl Rooms {
    /// Rooms that nobody has used.
    pub fn new() -> Self {
        let drawn = baton_daemon::fresh::hex_id();
        let place = u64::from_str_radix(&drawn[..DIGITS], 16);
        Self::from(place.unwrap_or_default() + 1)
    }

    fn from(first: u64) -> Self {
        Self(AtomicU64::new(first))
    }

    /// The next room. A prefill engine of several data-parallel ranks takes the room modulo their number as its rank, so they
    /// take turns.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Default for Rooms {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Largest room that an engine takes (0.5.23).
    const LAST: u64 = i64::MAX as u64;

    #[test]
    fn no_room_comes_twice_in_any_life() {
        let lives: Vec<Rooms> = (0..100).map(|_| Rooms::new()).collect();
        let rooms = lives.iter().flat_map(|life| (0..100).map(|_| life.next()));
        let rooms: Vec<u64> = rooms.collect();
        assert!(rooms.iter().all(|room| (1..=LAST).contains(room)));
        assert_eq!(rooms.iter().collect::<HashSet<_>>().len(), rooms.len());
    }

    #[test]
    fn the_last_place_to_begin_at_leaves_room_for_all_requests_of_a_life() {
        let last = Rooms::from(u64::from_str_radix(&"f".repeat(DIGITS), 16).unwrap() + 1);
        assert!(LAST - last.next() > 1 << 62);
    }

    #[test]
    fn ranks_take_turns() {
        let rooms = Rooms::new();
        let ranks: HashSet<u64> = (0..4).map(|_| rooms.next() % 4).collect();
        assert_eq!(ranks.len(), 4);
    }
}
