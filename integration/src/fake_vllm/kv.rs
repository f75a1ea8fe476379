//! One engine life's paged KV, and the wire on which other engines read it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::Life;

/// Held KV of a finished prefill.
#[derive(Debug)]
struct Held {
    ids: Vec<usize>,
    expires: Instant,
}

/// The paged KV of one engine life.
#[derive(Debug)]
pub struct Pool {
    contents: Vec<u64>,
    free: VecDeque<usize>,
    held: HashMap<String, Held>,
    cache: HashMap<(Option<String>, Vec<u32>), Vec<u64>>,
    scribbles: u64,
}

impl Pool {
    /// Block 0 is vLLM's null block.
    pub fn new(blocks: usize) -> Self {
        Self {
            contents: vec![0; blocks],
            free: (1..blocks).collect(),
            held: HashMap::new(),
            cache: HashMap::new(),
            scribbles: 0,
        }
    }

    /// Holds KV for decode under a request id; its block ids. `None` if there is no room.
    pub fn hold(&mut self, request: &str, kv: &[u64], lease: Duration) -> Option<Vec<usize>> {
        self.expire();
        if self.free.len() < kv.len() {
            return None;
        }
        let ids: Vec<usize> = self.free.drain(..kv.len()).collect();
        for (id, content) in ids.iter().zip(kv) {
            self.contents[*id] = *content;
        }
        let held = Held {
            ids: ids.clone(),
            expires: Instant::now() + lease,
        };
        self.held.insert(request.to_owned(), held);
        Some(ids)
    }

    /// What is in these blocks now, whoever they belong to; `None` if there are no such blocks.
    fn read(&mut self, ids: &[usize]) -> Option<Vec<u64>> {
        self.expire();
        ids.iter()
            .map(|id| self.contents.get(*id).copied())
            .collect()
    }

    /// Gives blocks back. Their content is overwritten at once: the earliest that it can happen to a real engine.
    fn release(&mut self, request: &str) {
        if let Some(held) = self.held.remove(request) {
            self.scribble(held.ids);
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let over: Vec<String> = self
            .held
            .iter()
            .filter(|(_, held)| held.expires <= now)
            .map(|(request, _)| request.clone())
            .collect();
        for request in over {
            self.release(&request);
        }
    }

    fn scribble(&mut self, ids: Vec<usize>) {
        for id in ids {
            self.scribbles += 1;
            self.contents[id] = self.scribbles;
            self.free.push_back(id);
        }
    }

    /// How many requests hold KV for decode.
    pub fn held(&mut self) -> usize {
        self.expire();
        self.held.len()
    }

    /// Overwrites all held KV, as an engine does that ran out of patience or memory.
    pub fn overwrite_held(&mut self) {
        for request in self.held.keys().cloned().collect::<Vec<_>>() {
            self.release(&request);
        }
    }

    /// Prefix cache, whole prompts only: what is cached under a salt.
    pub fn cached(&self, salt: Option<&str>, tokens: &[u32]) -> Option<Vec<u64>> {
        self.cache
            .get(&(salt.map(str::to_owned), tokens.to_vec()))
            .cloned()
    }

    /// Caches a prompt's KV, right or wrong.
    pub fn cache(&mut self, salt: Option<&str>, tokens: &[u32], kv: &[u64]) {
        self.cache
            .insert((salt.map(str::to_owned), tokens.to_vec()), kv.to_vec());
    }
}

/// The wire between engines: whose KV is behind which side channel. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Wire(Arc<Mutex<HashMap<u16, Weak<Life>>>>);

impl Wire {
    pub(super) fn plug_in(&self, port: u16, life: &Arc<Life>) {
        self.0.lock().unwrap().insert(port, Arc::downgrade(life));
    }

    pub(super) fn unplug(&self, port: u16) {
        self.0.lock().unwrap().remove(&port);
    }

    /// Reads KV as a decode engine with these agents in its memory does. `None` is a failed transfer.
    pub(super) fn pull(
        &self,
        agents: &Mutex<HashMap<String, String>>,
        port: u16,
        engine_id: &str,
        request: &str,
        ids: &[usize],
    ) -> Option<Vec<u64>> {
        let holder = self.0.lock().unwrap().get(&port)?.upgrade()?;
        if holder.engine_id != engine_id {
            return None;
        }
        // The agent of an engine_id is kept for an hour, so a restart under the same engine_id fails every transfer.
        let known = agents
            .lock()
            .unwrap()
            .entry(engine_id.to_owned())
            .or_insert_with(|| holder.agent.clone())
            .clone();
        if known != holder.agent {
            return None;
        }
        let mut pool = holder.pool.lock().unwrap();
        let kv = pool.read(ids)?;
        pool.release(request);
        Some(kv)
    }
}
