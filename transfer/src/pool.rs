//! Registered memory, handed out in slots.
//!
//! A slot that a transfer may still write to belongs to nobody but that transfer. There is no way to end one (NIXL has
//! none): when its deadline passes or its caller goes away, its slots are in *quarantine* until it has ended by itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::raw::Memory;

/// Memory that an agent has registered, in slots of one size. It stays registered as long as the pool or one of its slots
/// is there.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    slot_bytes: usize,
    free: Mutex<BTreeSet<usize>>,
    quarantined: AtomicUsize,
    agent: u64,
    retired: Arc<Retired>,
}

/// Registered memory that nobody has any more, by address: the agent deregisters it.
#[derive(Debug, Default)]
pub(crate) struct Retired(Mutex<Vec<u64>>);

impl Retired {
    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        lock(&self.retired.0).push(self.memory.address());
    }
}

impl Pool {
    pub(crate) fn new(
        memory: Arc<Memory>,
        slot_bytes: usize,
        agent: u64,
        retired: Arc<Retired>,
    ) -> Self {
        let slots = memory.len() / slot_bytes;
        Self(Arc::new(Shared {
            memory,
            slot_bytes,
            free: Mutex::new((0..slots).collect()),
            quarantined: AtomicUsize::new(0),
            agent,
            retired,
        }))
    }

    /// Takes slots, those with the lowest addresses first. `None` if there are too few; those in quarantine count for none.
    pub fn take(&self, count: usize) -> Option<Slots> {
        let mut free = lock(&self.0.free);
        if free.len() < count {
            return None;
        }
        let indexes = (0..count).filter_map(|_| free.pop_first()).collect();
        Some(Slots {
            pool: Arc::clone(&self.0),
            indexes,
            quarantined: AtomicBool::new(false),
        })
    }

    /// Slots that can be taken.
    pub fn available(&self) -> usize {
        lock(&self.0.free).len()
    }

    /// Slots that a transfer may still write to though nobody waits for it any more.
    pub fn quarantined(&self) -> usize {
        self.0.quarantined.load(Ordering::Relaxed)
    }

    /// Bytes of each slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.slot_bytes
    }
}

/// Slots of a pool. Dropping them gives them back.
#[derive(Debug)]
pub struct Slots {
    pool: Arc<Shared>,
    indexes: Vec<usize>,
    quarantined: AtomicBool,
}

impl Slots {
    /// How many.
    pub fn count(&self) -> usize {
        self.indexes.len()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.indexes.len() * self.pool.slot_bytes
    }

    /// Where a slot is, as others have to know it who read it.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn span(&self, slot: usize) -> Span {
        Span {
            address: self.pool.memory.address()
                + (self.indexes[slot] * self.pool.slot_bytes) as u64,
            bytes: self.pool.slot_bytes,
            device: 0,
        }
    }

    /// Copies bytes out of a slot.
    ///
    /// # Panics
    /// If there are no such bytes.
    pub fn read(&self, slot: usize, at: usize, into: &mut [u8]) {
        let start = self.check(slot, at, into.len());
        let read = self.pool.memory.read(start, into);
        read.expect("a slot is inside the memory");
    }

    /// Copies bytes into a slot.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn write(&mut self, slot: usize, at: usize, bytes: &[u8]) {
        let start = self.check(slot, at, bytes.len());
        let written = self.pool.memory.write(start, bytes);
        written.expect("a slot is inside the memory");
    }

    /// All their bytes, one slot after the other.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes()];
        for (slot, bytes) in bytes.chunks_mut(self.pool.slot_bytes).enumerate() {
            self.read(slot, 0, bytes);
        }
        bytes
    }

    fn check(&self, slot: usize, at: usize, bytes: usize) -> usize {
        let fits = at
            .checked_add(bytes)
            .is_some_and(|end| end <= self.pool.slot_bytes);
        assert!(fits, "{bytes} bytes at {at} are not inside a slot");
        self.indexes[slot] * self.pool.slot_bytes + at
    }

    /// Which agent has registered them.
    pub(crate) fn agent(&self) -> u64 {
        self.pool.agent
    }

    /// Nobody waits for them any more, but they may still be written to.
    pub(crate) fn quarantine(&self) {
        if !self.quarantined.swap(true, Ordering::Relaxed) {
            self.pool
                .quarantined
                .fetch_add(self.indexes.len(), Ordering::Relaxed);
        }
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.pool.memory
    }

    /// Where the bytes of remote spans go: pieces of the slots, in order, each of them no longer than what is left of a slot
    /// and of a span. `None` if there is not room for all.
    pub(crate) fn scatter(&self, remote: &[Span]) -> Option<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(remote.len().max(self.indexes.len()));
        let (mut slot, mut at) = (0, 0);
        for span in remote {
            let mut done = 0;
            while done < span.bytes {
                if at == self.pool.slot_bytes {
                    (slot, at) = (slot + 1, 0);
                }
                let bytes = (span.bytes - done).min(self.pool.slot_bytes - at);
                pieces.push(Piece {
                    offset: self.indexes.get(slot)? * self.pool.slot_bytes + at,
                    remote: Span {
                        address: span.address.checked_add(done as u64)?,
                        bytes,
                        device: span.device,
                    },
                });
                (done, at) = (done + bytes, at + bytes);
            }
        }
        Some(pieces)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if *self.quarantined.get_mut() {
            self.pool
                .quarantined
                .fetch_sub(self.indexes.len(), Ordering::Relaxed);
        }
        lock(&self.pool.free).extend(self.indexes.drain(..));
    }
}

/// Memory of an agent, as it names it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub address: u64,
    /// How many bytes.
    pub bytes: usize,
    /// On which device; 0 for ordinary memory.
    pub device: u64,
}

/// A part of a read: from there to this offset of the pool's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: usize,
    pub(crate) remote: Span,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(slots: usize, slot_bytes: usize) -> Pool {
        let memory = Arc::new(Memory::zeroed(slots * slot_bytes).unwrap());
        Pool::new(memory, slot_bytes, 0, Arc::default())
    }

    fn remote(address: u64, bytes: usize) -> Span {
        Span {
            address,
            bytes,
            device: 0,
        }
    }

    #[test]
    fn slots_are_handed_out_once_and_come_back() {
        let pool = pool(3, 8);
        let mut two = pool.take(2).unwrap();
        assert!(pool.take(2).is_none());
        assert_eq!(two.span(1).address, two.span(0).address + 8);
        two.write(1, 4, b"abcd");
        assert_eq!(two.to_vec(), b"\0\0\0\0\0\0\0\0\0\0\0\0abcd");
        two.quarantine();
        two.quarantine();
        assert_eq!((pool.available(), pool.quarantined()), (1, 2));
        drop(two);
        assert_eq!((pool.available(), pool.quarantined()), (3, 0));
    }

    #[test]
    #[should_panic(expected = "not inside a slot")]
    fn a_slot_ends_where_it_ends() {
        pool(2, 8).take(1).unwrap().write(0, 5, b"abcd");
    }

    #[test]
    fn spans_fill_one_slot_after_the_other() {
        let pool = pool(4, 8);
        let first = pool.take(1).unwrap();
        let taken = pool.take(2).unwrap();
        drop(first);
        let pieces = taken.scatter(&[remote(100, 3), remote(200, 10)]).unwrap();
        let piece = |offset, address, bytes| Piece {
            offset,
            remote: remote(address, bytes),
        };
        assert_eq!(
            pieces,
            [piece(8, 100, 3), piece(11, 200, 5), piece(16, 205, 5)]
        );
        assert!(taken.scatter(&[remote(0, 17)]).is_none());
        assert!(taken.scatter(&[remote(u64::MAX - 7, 16)]).is_none());
    }

    #[test]
    fn memory_that_nobody_has_is_retired() {
        let retired: Arc<Retired> = Arc::default();
        let memory = Arc::new(Memory::zeroed(8).unwrap());
        let address = memory.address();
        let pool = Pool::new(memory, 8, 0, Arc::clone(&retired));
        let slots = pool.take(1).unwrap();
        drop(pool);
        assert!(retired.take().is_empty());
        drop(slots);
        assert_eq!(retired.take(), [address]);
    }
}
