//! What the fleet is known to hold: the same exact, slightly late view for every policy that cares.

use std::collections::HashMap;

use super::policy::{Cached, KvChange};

/// Workers at most: one bit of a word each.
pub const MOST_WORKERS: usize = 64;

/// Who holds which block.
#[derive(Debug)]
pub struct View {
    holders: HashMap<u64, u64>,
    /// Workers whose events come.
    known: u64,
    workers: usize,
}

impl View {
    /// Of so many workers, all of which tell what they hold but those that are named.
    pub fn new(workers: usize, silent: &[usize]) -> Self {
        assert!(workers <= MOST_WORKERS, "a bit for each worker");
        let known = silent
            .iter()
            .fold(u64::MAX, |known, worker| known & !(1 << worker));
        Self {
            holders: HashMap::new(),
            known,
            workers,
        }
    }

    /// Whether a worker's events come.
    pub fn knows(&self, worker: usize) -> bool {
        self.known >> worker & 1 == 1
    }

    /// A worker's cache changed.
    pub fn apply(&mut self, worker: usize, changes: &[KvChange]) {
        let bit = 1 << worker;
        for change in changes {
            match change {
                KvChange::Stored(block) => *self.holders.entry(*block).or_default() |= bit,
                KvChange::Removed(block) => {
                    if let Some(holders) = self.holders.get_mut(block) {
                        *holders &= !bit;
                        if *holders == 0 {
                            self.holders.remove(block);
                        }
                    }
                }
            }
        }
    }

    /// How much of a prompt each worker is known to hold.
    pub fn find(&self, prompt: &[u64], cached: &mut Vec<Cached>) {
        cached.clear();
        cached.extend((0..self.workers).map(|worker| Cached {
            blocks: 0,
            known: self.knows(worker),
        }));
        let mut holding = u64::MAX;
        for block in prompt {
            holding &= self.holders.get(block).copied().unwrap_or_default();
            if holding == 0 {
                return;
            }
            let mut left = holding;
            while left != 0 {
                cached[left.trailing_zeros() as usize].blocks += 1;
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_ends_at_the_first_block_that_is_missing() {
        let mut view = View::new(3, &[2]);
        view.apply(0, &[1, 2, 3].map(KvChange::Stored));
        view.apply(1, &[1, 3].map(KvChange::Stored));
        let mut cached = Vec::new();
        view.find(&[1, 2, 3, 4], &mut cached);
        let blocks: Vec<u32> = cached.iter().map(|cached| cached.blocks).collect();
        assert_eq!(blocks, [3, 1, 0]);
        assert_eq!(
            cached.iter().map(|cached| cached.known).collect::<Vec<_>>(),
            [true, true, false]
        );
        view.apply(0, &[KvChange::Removed(2)]);
        view.find(&[1, 2, 3, 4], &mut cached);
        assert_eq!((cached[0].blocks, cached[1].blocks), (1, 1));
    }
}
