//! Ranks without sockets: they reach each other's KV by call, so a paused clock makes all of their time virtual.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::core::{
    Core, CoreConfig, Failure, Listener, Measured, Mortal, Network, Pending, Remote, Request,
    Submitted,
};
use super::pool::Change;
use super::tokenizer::Tokenizer;

/// Ranks by `engine_id`.
#[derive(Debug, Clone, Default)]
pub struct Ranks(Arc<Mutex<HashMap<String, Arc<Core>>>>);

/// What a rank told, and what it died of.
#[derive(Debug, Default)]
pub struct Told {
    changes: Mutex<Vec<Change>>,
    measured: Mutex<Vec<Measured>>,
    died_of: Mutex<Option<String>>,
}

/// A rank that works until it is dropped.
#[derive(Debug)]
pub struct Rank {
    core: Arc<Core>,
    told: Arc<Told>,
    work: tokio::task::JoinHandle<()>,
}

impl Ranks {
    /// Starts a rank under an `engine_id`.
    pub fn start(&self, engine_id: &str, config: CoreConfig) -> Rank {
        let told = Arc::new(Told::default());
        let core = Core::new(
            config,
            Arc::new(Tokenizer::Builtin),
            Arc::new(self.clone()),
            Arc::clone(&told) as Arc<dyn Listener>,
            Arc::clone(&told) as Arc<dyn Mortal>,
        );
        let mut known = self.0.lock().unwrap();
        known.insert(engine_id.to_owned(), Arc::clone(&core));
        let work = tokio::spawn(Arc::clone(&core).run());
        Rank { core, told, work }
    }

    fn find(&self, remote: &Remote) -> Result<Arc<Core>, Failure> {
        let known = self.0.lock().unwrap();
        let found = known.get(&remote.engine_id).cloned();
        found.ok_or_else(|| Failure::Handshake("there is no such engine".to_owned()))
    }
}

impl Network for Ranks {
    fn fetch(
        &self,
        remote: Remote,
        first_token: usize,
        tokens: usize,
    ) -> Pending<Result<Vec<u8>, Failure>> {
        let holder = self.find(&remote);
        Box::pin(async move {
            let holder = holder?;
            let block_size = holder.config().block_size as usize;
            let blocks = first_token / block_size..tokens.div_ceil(block_size);
            let mut rows = Vec::new();
            for id in remote.blocks.get(blocks).ok_or(Failure::NoSuchBlock)? {
                let block = holder.read_block(*id).ok_or(Failure::NoSuchBlock)?;
                holder.link().carry(block.len()).await;
                rows.extend(block);
            }
            holder.notified(format!("{}:1", remote.request_id).as_bytes());
            Ok(rows)
        })
    }

    fn notify(&self, remote: Remote, message: String) -> Pending<()> {
        let holder = self.find(&remote);
        Box::pin(async move {
            if let Ok(holder) = holder {
                holder.notified(message.as_bytes());
            }
        })
    }
}

impl Listener for Told {
    fn changed(&self, changes: Vec<Change>) {
        self.changes.lock().unwrap().extend(changes);
    }

    fn measured(&self, measured: Vec<Measured>) {
        self.measured.lock().unwrap().extend(measured);
    }
}

impl Mortal for Told {
    fn die(&self, of: &str) {
        self.died_of
            .lock()
            .unwrap()
            .get_or_insert_with(|| of.to_owned());
    }
}

impl Rank {
    /// Its scheduler.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Takes a request.
    pub fn submit(&self, request: Request) -> Submitted {
        self.core.submit(request)
    }

    /// What happened to its cache since the last call.
    pub fn take_changes(&self) -> Vec<Change> {
        std::mem::take(&mut *self.told.changes.lock().unwrap())
    }

    /// What was measured since the last call.
    pub fn take_measured(&self) -> Vec<Measured> {
        std::mem::take(&mut *self.told.measured.lock().unwrap())
    }

    /// What it died of.
    pub fn died_of(&self) -> Option<String> {
        self.told.died_of.lock().unwrap().clone()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.work.abort();
    }
}
