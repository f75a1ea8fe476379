//! The tokens of pieces of text that were encoded before, within a bound of bytes.

use std::fmt;
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// What an entry costs beside its text and tokens, about: two allocations and its place in the table.
const ENTRY_BYTES: u64 = 96;

/// A cache of pieces. It compares whole texts, so that a collision of hashes is a miss and never another text's tokens.
pub(crate) struct Pieces {
    cache: Cache<Box<str>, Arc<[u32]>, Bytes>,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Box<str>, Arc<[u32]>> for Bytes {
    fn weight(&self, text: &Box<str>, tokens: &Arc<[u32]>) -> u64 {
        ENTRY_BYTES + text.len() as u64 + size_of_val::<[u32]>(tokens) as u64
    }
}

impl Pieces {
    /// A cache of at most so many bytes.
    pub(crate) fn new(bytes: u64) -> Pieces {
        // The estimate only sizes the first table.
        let about_entries = usize::try_from(bytes / 1024)
            .unwrap_or(usize::MAX)
            .clamp(16, 1 << 16);
        Pieces {
            cache: Cache::with_weighter(about_entries, bytes, Bytes),
        }
    }

    pub(crate) fn get(&self, text: &str) -> Option<Arc<[u32]>> {
        self.cache.get(text)
    }

    pub(crate) fn put(&self, text: &str, tokens: Arc<[u32]>) {
        self.cache.insert(text.into(), tokens);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.cache.weight()
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pieces")
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_without_room_remembers_nothing() {
        let pieces = Pieces::new(0);
        for nth in 0..100 {
            pieces.put(&format!("piece {nth}"), Arc::new([nth]));
        }
        assert_eq!((pieces.get("piece 99"), pieces.bytes()), (None, 0));
    }

    #[test]
    fn a_piece_that_is_too_large_drives_out_no_other() {
        let pieces = Pieces::new(4_096);
        pieces.put("small", Arc::new([1]));
        pieces.put(&"large".repeat(10_000), vec![2; 10_000].into());
        assert_eq!(pieces.get("small").as_deref(), Some(&[1][..]));
        assert!(pieces.bytes() < 4_096);
    }
}
