//! Conversations, and what the KV caches of the engines that serve them announce.
//!
//! Shared system prompts, a quarter of the conversations begin with one of some hundred documents, most requests continue a
//! conversation. A request goes where its conversation went, or in one case of five anywhere. Engines evict the blocks that
//! were used longest ago, and of a request the last one first.

use std::collections::{HashMap, VecDeque};

use dynamo_kv_router::protocols::{LocalBlockHash, compute_next_seq_hash};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Blocks that a prefill announces at once.
const CHUNK: usize = 128;
/// Blocks that an eviction announces at once.
const EVICTED: usize = 64;
const SYSTEM_PROMPTS: f64 = 64.0;
const DOCUMENTS: f64 = 400.0;
/// Longest conversation, in blocks.
const LONGEST: usize = 8000;

/// A block as an event names it: by its own tokens, and with all before it.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) local: u64,
    pub(crate) sequence: u64,
}

/// Blocks that follow each other from the beginning.
pub(crate) type Sequence = Vec<Block>;

/// What a worker announces.
#[derive(Clone, Copy)]
pub(crate) enum Event<'a> {
    Stored {
        worker: usize,
        /// Where in its sequence the first block is, and what is before it.
        start: usize,
        parent: Option<u64>,
        blocks: &'a [Block],
    },
    Removed {
        worker: usize,
        blocks: &'a [u64],
    },
}

impl Event<'_> {
    pub(crate) fn worker(&self) -> usize {
        match *self {
            Event::Stored { worker, .. } | Event::Removed { worker, .. } => worker,
        }
    }

    /// How many blocks it is of.
    pub(crate) fn len(&self) -> usize {
        match self {
            Event::Stored { blocks, .. } => blocks.len(),
            Event::Removed { blocks, .. } => blocks.len(),
        }
    }
}

/// Events, without the blocks.
enum Stub {
    Stored {
        worker: usize,
        start: usize,
        parent: Option<u64>,
        end: usize,
    },
    Removed {
        worker: usize,
        end: usize,
    },
}

/// All that happens.
pub(crate) struct Workload {
    stubs: Vec<Stub>,
    stored: Vec<Block>,
    removed: Vec<u64>,
    /// Events before this one fill the caches; what follows happens while there are finds.
    pub(crate) filled: usize,
    /// What the last requests before that asked for.
    pub(crate) asked: Vec<Sequence>,
    /// Blocks that the workers hold after that, each counted with each worker.
    pub(crate) resident: usize,
}

/// How large it is.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) workers: usize,
    /// Blocks in all caches.
    pub(crate) resident: usize,
    /// Requests whose sequences are asked for.
    pub(crate) asked: usize,
}

impl Workload {
    pub(crate) fn new(size: Size) -> Self {
        let requests = size.resident / 30;
        let mut engines: Vec<Engine> = (0..size.workers).map(|_| Engine::default()).collect();
        let mut conversations = Conversations::new(42);
        let mut random = StdRng::seed_from_u64(7);
        let mut workload = Self {
            stubs: Vec::new(),
            stored: Vec::new(),
            removed: Vec::new(),
            filled: 0,
            asked: Vec::new(),
            resident: 0,
        };
        for request in 0..requests + requests / 10 {
            if request == requests {
                workload.settle(&engines);
            }
            let (prompt, output) = conversations.next();
            let place = mix(prompt[prompt.len().min(24) - 1].sequence, 5) as usize;
            let stray = random.random::<f64>() < 0.2;
            let worker = if stray {
                random.random_range(0..size.workers)
            } else {
                place % size.workers
            };
            let capacity = size.resident / size.workers;
            workload.serve(worker, &mut engines[worker], &prompt, output, capacity);
            if request < requests && request + size.asked >= requests {
                workload.asked.push(prompt);
            }
        }
        workload
    }

    fn settle(&mut self, engines: &[Engine]) {
        self.filled = self.stubs.len();
        self.resident = engines.iter().map(|engine| engine.used.len()).sum();
    }

    fn serve(
        &mut self,
        worker: usize,
        engine: &mut Engine,
        prompt: &[Block],
        output: usize,
        capacity: usize,
    ) {
        let cached = prompt
            .iter()
            .take_while(|block| engine.used.contains_key(&block.sequence));
        let cached = cached.count();
        let mut all = prompt.to_vec();
        for place in 0..output {
            let last = all[all.len() - 1].sequence;
            extend(&mut all, mix(prompt[0].sequence ^ last, place as u64 + 999));
        }
        let ends = (cached..prompt.len())
            .step_by(CHUNK)
            .map(|from| (from, (from + CHUNK).min(prompt.len())));
        let decoded = (prompt.len()..all.len()).map(|from| (from, from + 1));
        for (from, to) in ends.chain(decoded) {
            self.stored.extend(&all[from..to]);
            self.stubs.push(Stub::Stored {
                worker,
                start: from,
                parent: from.checked_sub(1).map(|before| all[before].sequence),
                end: self.stored.len(),
            });
        }
        engine.touch(&all);
        let evicted = engine.evict(capacity);
        for part in evicted.chunks(EVICTED) {
            self.removed.extend(part);
            let end = self.removed.len();
            self.stubs.push(Stub::Removed { worker, end });
        }
    }

    /// The events that fill the caches.
    pub(crate) fn filling(&self) -> impl Iterator<Item = Event<'_>> {
        self.events().take(self.filled)
    }

    /// All events in order.
    pub(crate) fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let (mut stored, mut removed) = (0, 0);
        self.stubs.iter().map(move |stub| match *stub {
            Stub::Stored {
                worker,
                start,
                parent,
                end,
            } => {
                let blocks = &self.stored[stored..end];
                stored = end;
                Event::Stored {
                    worker,
                    start,
                    parent,
                    blocks,
                }
            }
            Stub::Removed { worker, end } => {
                let blocks = &self.removed[removed..end];
                removed = end;
                Event::Removed { worker, blocks }
            }
        })
    }
}

/// One engine's cache.
#[derive(Default)]
struct Engine {
    used: HashMap<u64, u64, BuildMixed>,
    queue: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Engine {
    fn touch(&mut self, blocks: &[Block]) {
        for block in blocks.iter().rev() {
            self.clock += 1;
            self.used.insert(block.sequence, self.clock);
            self.queue.push_back((block.sequence, self.clock));
        }
    }

    fn evict(&mut self, capacity: usize) -> Vec<u64> {
        let mut evicted = Vec::new();
        while self.used.len() > capacity
            && let Some((block, time)) = self.queue.pop_front()
        {
            if self.used.get(&block) == Some(&time) {
                self.used.remove(&block);
                evicted.push(block);
            }
        }
        evicted
    }
}

/// Conversations that go on.
struct Conversations {
    random: StdRng,
    open: Vec<(Sequence, u32)>,
    /// Makes blocks that no other has.
    unique: u64,
}

impl Conversations {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            open: Vec::new(),
            unique: 0,
        }
    }

    /// The next request: its prompt, and how many blocks are answered.
    fn next(&mut self) -> (Sequence, usize) {
        let place = self.turn();
        let question = 8 + self.exponential(60.0);
        let answer = 1 + self.exponential(22.0);
        self.say(place, question);
        let prompt = self.open[place].0.clone();
        self.say(place, answer);
        let (sequence, turns) = &mut self.open[place];
        *turns += 1;
        if *turns > 12 || self.random.random::<f64>() < 0.12 || sequence.len() > LONGEST {
            self.open.swap_remove(place);
        }
        (prompt, answer)
    }

    /// Which conversation goes on.
    fn turn(&mut self) -> usize {
        if self.open.len() > 50 && self.random.random::<f64>() < 0.7 {
            return self.random.random_range(0..self.open.len());
        }
        let system = (self.random.random::<f64>().powi(3) * SYSTEM_PROMPTS) as u64;
        let mut sequence = Vec::new();
        (0..8 + system % 7 * 24)
            .for_each(|place| extend(&mut sequence, mix(0xabcd + system, place)));
        if self.random.random::<f64>() < 0.25 {
            let document = (self.random.random::<f64>().powi(2) * DOCUMENTS) as u64;
            let length = 64 + mix(document, 3) % 960;
            (0..length).for_each(|place| extend(&mut sequence, mix(0xd0c0_0000 + document, place)));
        }
        self.open.push((sequence, 0));
        self.open.len() - 1
    }

    fn say(&mut self, conversation: usize, blocks: usize) {
        for _ in 0..blocks {
            self.unique += 1;
            extend(&mut self.open[conversation].0, mix(77, self.unique));
        }
    }

    fn exponential(&mut self, mean: f64) -> usize {
        (-(1.0 - self.random.random::<f64>()).ln() * mean) as usize
    }
}

/// A sequence of so many blocks that nothing else has.
pub(crate) fn sequence(seed: u64, length: usize) -> Sequence {
    let mut sequence = Vec::with_capacity(length);
    (0..length as u64).for_each(|place| extend(&mut sequence, mix(0xf00d + seed, place)));
    sequence
}

fn extend(sequence: &mut Sequence, local: u64) {
    let parent = sequence.last().map(|block| block.sequence);
    // As one of the peers wants it computed; ours takes any good hash.
    let with_parent = |parent| compute_next_seq_hash(parent, LocalBlockHash(local));
    let hash = parent.map_or(local, with_parent);
    sequence.push(Block {
        local,
        sequence: hash,
    });
}

fn mix(seed: u64, number: u64) -> u64 {
    let mut mixed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    mixed ^ mixed >> 32
}

/// Keys of the engines' caches are hashes already.
#[derive(Default, Clone)]
struct BuildMixed;

impl std::hash::BuildHasher for BuildMixed {
    type Hasher = Mixed;

    fn build_hasher(&self) -> Mixed {
        Mixed(0)
    }
}

struct Mixed(u64);

impl std::hash::Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = self.0.rotate_left(5) ^ key;
    }
}
