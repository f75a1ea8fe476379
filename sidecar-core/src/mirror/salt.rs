//! How hashes become places in a table.

use std::hash::{BuildHasher, RandomState};

/// A secret. Whoever chooses prompts does not know it, or could make many blocks meet in one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Salt(u64);

impl Salt {
    /// One that nobody knows.
    pub(super) fn new() -> Self {
        Self(RandomState::new().hash_one("salt") | 1)
    }

    /// One that makes all small numbers meet.
    #[cfg(test)]
    pub(super) fn weak() -> Self {
        Self(1)
    }

    /// The upper bits say where a number belongs, also of numbers that were counted up.
    #[inline]
    pub(super) fn spread(self, number: u64) -> u64 {
        let mixed = number.wrapping_mul(self.0);
        (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Which of so many buckets a place is in; 0 if there are none.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half of the product is less than the number of buckets"
)]
pub(super) fn bucket_of(place: u64, buckets: usize) -> usize {
    ((u128::from(place) * buckets as u128) >> 64) as usize
}
