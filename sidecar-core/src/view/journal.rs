//! The journal: the last changes of a view, as watchers get them.

use std::collections::VecDeque;

use baton_proto::event::{Blocks, KvEvent};
use baton_proto::frame;
use baton_proto::watch::WatchFrame;
use bytes::Bytes;

/// Most bytes that are kept for watchers that lag. One that lags further gets a snapshot, which is cheaper by then.
const MOST_BYTES: usize = 16 << 20;

/// Most entries that are kept.
const MOST_ENTRIES: usize = 65_536;

/// Most blocks of one entry: a frame has a bound.
pub(super) const MOST_BLOCKS: usize = 65_536;

/// Numbered changes, encoded once for all watchers.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Number of the last entry; the first one has 1.
    last: u64,
    entries: VecDeque<Bytes>,
    bytes: usize,
}

impl Journal {
    pub(super) fn push(&mut self, rank: u32, event: KvEvent) {
        match event {
            KvEvent::Stored { blocks, tier } => {
                self.push_blocks(rank, blocks, |blocks| KvEvent::Stored { blocks, tier });
            }
            KvEvent::Removed { blocks, tier } => {
                self.push_blocks(rank, blocks, |blocks| KvEvent::Removed { blocks, tier });
            }
            other => self.push_one(rank, other),
        }
    }

    fn push_blocks(&mut self, rank: u32, blocks: Blocks, event: impl Fn(Blocks) -> KvEvent) {
        if blocks.0.len() <= MOST_BLOCKS {
            return self.push_one(rank, event(blocks));
        }
        for part in blocks.0.chunks(MOST_BLOCKS) {
            self.push_one(rank, event(Blocks(part.to_vec())));
        }
    }

    fn push_one(&mut self, rank: u32, event: KvEvent) {
        self.last += 1;
        let entry = frame::encode(&WatchFrame::Event {
            seq: self.last,
            rank,
            event,
        });
        self.bytes += entry.len();
        self.entries.push_back(entry);
        while self.bytes > MOST_BYTES || self.entries.len() > MOST_ENTRIES {
            let dropped = self.entries.pop_front().map_or(0, |entry| entry.len());
            self.bytes -= dropped;
        }
    }

    /// Number of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The entries after this one, oldest first; nothing if some of them are no longer there, or it was never there.
    pub(super) fn after(&self, seq: u64) -> Option<impl Iterator<Item = &Bytes>> {
        let missing = usize::try_from(self.last.checked_sub(seq)?).ok()?;
        let first = self.entries.len().checked_sub(missing)?;
        Some(self.entries.range(first..))
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::frame::FrameReader;
    use baton_proto::hash::SequenceHash;
    use baton_proto::worker::Tier;

    use super::*;

    fn stored(blocks: usize) -> KvEvent {
        KvEvent::Stored {
            blocks: Blocks((0..blocks as u64).map(SequenceHash).collect()),
            tier: Tier::Device,
        }
    }

    fn read(journal: &Journal, seq: u64) -> Option<Vec<(u64, usize)>> {
        let mut reader = FrameReader::default();
        for entry in journal.after(seq)? {
            reader.push(entry);
        }
        let mut read = Vec::new();
        while let Some(frame) = reader.next::<WatchFrame>().unwrap() {
            match frame {
                WatchFrame::Event {
                    seq,
                    event: KvEvent::Stored { blocks, .. },
                    ..
                } => read.push((seq, blocks.0.len())),
                other => panic!("{other:?}"),
            }
        }
        Some(read)
    }

    #[test]
    fn entries_are_numbered_from_one_and_long_ones_are_cut() {
        let mut journal = Journal::default();
        assert_eq!(read(&journal, 0), Some(vec![]));
        journal.push(0, stored(3));
        journal.push(0, stored(MOST_BLOCKS + 1));
        assert_eq!(
            read(&journal, 0),
            Some(vec![(1, 3), (2, MOST_BLOCKS), (3, 1)])
        );
        assert_eq!(read(&journal, 2), Some(vec![(3, 1)]));
        assert_eq!(read(&journal, 3), Some(vec![]));
        assert_eq!(read(&journal, 4), None, "what never was cannot go on");
    }

    #[test]
    fn what_is_too_much_is_forgotten_from_the_oldest() {
        let mut journal = Journal::default();
        let entries = 2 * MOST_BYTES / (8 * MOST_BLOCKS);
        for _ in 0..entries {
            journal.push(0, stored(MOST_BLOCKS));
        }
        assert!(journal.bytes <= MOST_BYTES);
        assert_eq!(read(&journal, 0), None);
        let kept = read(&journal, journal.last() - 3).unwrap();
        assert_eq!(kept.len(), 3);
        let mut journal = Journal::default();
        for _ in 0..MOST_ENTRIES + 5 {
            journal.push(0, KvEvent::Certain);
        }
        assert!(journal.after(4).is_none());
        assert_eq!(journal.after(5).map(Iterator::count), Some(MOST_ENTRIES));
    }
}
