//! Sets of more holders than fit into a word.
//!
//! Blocks of a shared prefix have the same holders, so a set is kept once and its number is written beside each of its
//! blocks. It never changes: a block that gets another holder gets another set. Numbers are used again, so a set also has a
//! serial number, and a reader that finds another one than it looked for knows that its block has moved on.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use hashbrown::HashTable;

use crate::sync::{AtomicBool, Place};
use crate::target::Holder;
use crate::word::{Holding, INLINE, MAX_SETS, SetName};

/// A set of holders.
#[derive(Debug)]
pub(crate) struct Set {
    serial: u64,
    /// In order: by target, lower tiers first.
    holders: Box<[Holder]>,
}

/// Where readers find sets by number.
#[derive(Debug)]
pub(crate) struct Directory {
    places: Box<[Place<Set>]>,
    /// There is another directory now, and new sets are only in that one.
    retired: AtomicBool,
}

impl Directory {
    fn new(size: usize, old: &[Option<Known>]) -> Self {
        let set = |number: usize| old.get(number)?.as_ref().map(|known| known.set.clone());
        Self {
            places: (0..size).map(|number| Place::new(set(number))).collect(),
            retired: AtomicBool::new(false),
        }
    }

    /// Looks at the holders of the set of that name, in order; nothing if the name is out of date, or this directory is.
    pub(crate) fn look<R>(&self, name: SetName, with: impl FnOnce(&[Holder]) -> R) -> Option<R> {
        let place = self.places.get(name.number as usize)?.load();
        let set = place.as_ref().filter(|set| name.is(set.serial))?;
        // Whoever read a name of a new set has seen that the old directory retired before.
        (!self.retired.load(Acquire)).then(|| with(&set.holders))
    }

    fn put(&self, number: u32, set: Option<Arc<Set>>) {
        self.places[number as usize].put(set);
    }
}

/// What the writer knows of a set.
#[derive(Debug)]
struct Known {
    set: Arc<Set>,
    hash: u64,
    /// How many blocks say so.
    blocks: u32,
}

/// The last step from one holding to the next. Neighbours in a sequence mostly take the same step.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: Holding,
    holder: Holder,
    to: Holding,
}

/// The sets, as the writer has them.
#[derive(Debug)]
pub(crate) struct Sets {
    directory: Arc<Directory>,
    known: Vec<Option<Known>>,
    free: Vec<u32>,
    by_holders: HashTable<u32>,
    serial: u64,
    /// Holders in all sets.
    holders: usize,
    added: Option<Step>,
    removed: Option<Step>,
    scratch: Vec<Holder>,
}

impl Sets {
    pub(crate) fn new() -> Self {
        Self {
            directory: Arc::new(Directory::new(0, &[])),
            known: Vec::new(),
            free: Vec::new(),
            by_holders: HashTable::new(),
            serial: 0,
            holders: 0,
            added: None,
            removed: None,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Makes room for one more set; whether there is a new directory now.
    pub(crate) fn make_room(&mut self) -> bool {
        if !self.free.is_empty() {
            return false;
        }
        let size = (self.known.len() * 2).clamp(64, MAX_SETS);
        assert!(
            size > self.known.len(),
            "there are more sets of holders than can be numbered"
        );
        self.resize(size);
        true
    }

    fn resize(&mut self, size: usize) {
        let new = Arc::new(Directory::new(size, &self.known));
        let old = std::mem::replace(&mut self.directory, new);
        old.retired.store(true, Release);
        self.free
            .extend((self.known.len() as u32..size as u32).rev());
        self.known.resize_with(size, || None);
    }

    fn len(&self) -> usize {
        self.known.len() - self.free.len()
    }

    fn get(&self, name: SetName) -> &Known {
        let known = &self.known[name.number as usize];
        known.as_ref().expect("a block's set is there")
    }

    /// Whether a holding has this holder.
    pub(crate) fn has(&self, holding: Holding, holder: Holder) -> bool {
        match holding.set() {
            None => holding.holders().any(|other| other == holder),
            Some(name) => self.get(name).set.holders.binary_search(&holder).is_ok(),
        }
    }

    /// A holding with one more holder; nothing if that is in it.
    pub(crate) fn with(&mut self, from: Holding, holder: Holder) -> Option<Holding> {
        if let Some(step) = known_step(self.added, from, holder) {
            return Some(step);
        }
        if self.has(from, holder) {
            return None;
        }
        if from.set().is_none()
            && let Some(to) = from.with(holder)
        {
            return Some(to);
        }
        self.load(from);
        let place = self.scratch.partition_point(|other| *other < holder);
        self.scratch.insert(place, holder);
        let to = self.intern();
        self.added = Some(Step { from, holder, to });
        Some(to)
    }

    /// A holding with one holder less; nothing if that is not in it.
    pub(crate) fn without(&mut self, from: Holding, holder: Holder) -> Option<Holding> {
        if from.set().is_none() {
            let place = from.holders().position(|other| other == holder)?;
            return Some(from.without(place));
        }
        if let Some(step) = known_step(self.removed, from, holder) {
            return Some(step);
        }
        if !self.has(from, holder) {
            return None;
        }
        self.load(from);
        self.scratch.retain(|other| *other != holder);
        let few = self.scratch.len() <= INLINE;
        let inline = few.then(|| Holding::of(&self.scratch)).flatten();
        let to = inline.unwrap_or_else(|| self.intern());
        self.removed = Some(Step { from, holder, to });
        Some(to)
    }

    /// Writes the holders into scratch, in order.
    fn load(&mut self, holding: Holding) {
        self.scratch.clear();
        match holding.set() {
            None => {
                self.scratch.extend(holding.holders());
                self.scratch.sort_unstable();
            }
            Some(name) => {
                let set = &self.known[name.number as usize];
                let holders = set.iter().flat_map(|known| known.set.holders.iter());
                self.scratch.extend(holders);
            }
        }
    }

    /// The set of the holders in scratch.
    fn intern(&mut self) -> Holding {
        let hash = hash(&self.scratch);
        let same = |number: &u32| {
            let known = self.known[*number as usize].as_ref();
            known.is_some_and(|known| *known.set.holders == *self.scratch)
        };
        if let Some(number) = self.by_holders.find(hash, same).copied() {
            let known = self.known[number as usize].as_ref();
            return Holding::of_set(SetName::new(number, known.map_or(0, |set| set.set.serial)));
        }
        self.add(hash)
    }

    fn add(&mut self, hash: u64) -> Holding {
        let number = self.free.pop().expect("room was made before");
        self.serial += 1;
        let set = Arc::new(Set {
            serial: self.serial,
            holders: self.scratch.as_slice().into(),
        });
        self.holders += set.holders.len();
        self.directory.put(number, Some(set.clone()));
        self.known[number as usize] = Some(Known {
            set,
            hash,
            blocks: 0,
        });
        let known = &self.known;
        let rehash = |number: &u32| known[*number as usize].as_ref().map_or(0, |set| set.hash);
        self.by_holders.insert_unique(hash, number, rehash);
        Holding::of_set(SetName::new(number, self.serial))
    }

    /// A block that said `from` says `to` now.
    pub(crate) fn moved(&mut self, from: Holding, to: Holding) {
        if let Some(name) = to.set()
            && let Some(known) = &mut self.known[name.number as usize]
        {
            known.blocks += 1;
        }
        if let Some(name) = from.set()
            && let Some(known) = &mut self.known[name.number as usize]
        {
            known.blocks -= 1;
            if known.blocks == 0 {
                self.forget(from, name);
            }
        }
    }

    fn forget(&mut self, holding: Holding, name: SetName) {
        let Some(known) = self.known[name.number as usize].take() else {
            return;
        };
        let entry = self
            .by_holders
            .find_entry(known.hash, |number| *number == name.number);
        if let Ok(entry) = entry {
            entry.remove();
        }
        self.directory.put(name.number, None);
        self.holders -= known.set.holders.len();
        self.free.push(name.number);
        for step in [&mut self.added, &mut self.removed] {
            if step.is_some_and(|step| step.from == holding || step.to == holding) {
                *step = None;
            }
        }
    }

    /// Whether most numbers are of no set.
    pub(crate) fn is_sparse(&self) -> bool {
        self.known.len() > 256 && self.len() < self.known.len() / 4
    }

    /// Gives the sets the lowest numbers. All blocks must be told their new holdings, in a table that no reader has yet.
    pub(crate) fn renumber(&mut self) -> impl Fn(Holding) -> Holding + use<> {
        let old = std::mem::take(&mut self.known);
        let mut numbers = vec![0; old.len()];
        self.free = Vec::new();
        self.by_holders = HashTable::with_capacity(self.known.len());
        (self.added, self.removed) = (None, None);
        for (number, known) in old.into_iter().enumerate() {
            if let Some(known) = known {
                numbers[number] = self.known.len() as u32;
                self.known.push(Some(known));
            }
        }
        let known = &self.known;
        let rehash = |number: &u32| known[*number as usize].as_ref().map_or(0, |set| set.hash);
        for number in 0..known.len() as u32 {
            self.by_holders
                .insert_unique(rehash(&number), number, rehash);
        }
        self.resize((self.known.len() * 2).max(64));
        move |holding| {
            holding.set().map_or(holding, |name| {
                Holding::of_set(name.renumbered(numbers[name.number as usize]))
            })
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.known.capacity() * (size_of::<Option<Known>>() + size_of::<Place<Set>>())
            + (self.free.capacity() + self.by_holders.capacity() * 8 / 7) * size_of::<u32>()
            + self.len() * (size_of::<Set>() + 2 * size_of::<usize>())
            + self.holders * size_of::<Holder>()
    }
}

fn known_step(step: Option<Step>, from: Holding, holder: Holder) -> Option<Holding> {
    let step = step.filter(|step| step.from == from && step.holder == holder);
    step.map(|step| step.to)
}

fn hash(holders: &[Holder]) -> u64 {
    holders.iter().fold(0_u64, |hash, holder| {
        let mixed = (hash ^ u64::from(holder.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    })
}
