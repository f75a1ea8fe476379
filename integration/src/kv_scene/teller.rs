//! An engine's KV events without the engine: what they tell is what the test says.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use baton_proto::hash::{Namespace, SequenceHash, sequence_hashes};
use baton_sidecar_vllm::follow::source::{EventSource, EventsConfig};
use bytes::Bytes;
use tempfile::TempDir;

use crate::emulated::vllm::MODEL;
use crate::emulated::vllm::events::{Batch, Event, Form, HashForm, Removed, Stored};
use crate::emulated::vllm::publisher::{EventFault, Publisher, PublisherConfig};
use crate::ports;

/// Tokens of a block.
pub const BLOCK: u32 = 16;

/// First frame of every message.
pub const TOPIC: &str = "kv@tiny";

/// A publisher and what it should have told. Every block is a sequence of its own, known by its number.
pub struct Teller {
    config: PublisherConfig,
    publisher: Option<Publisher>,
    held: BTreeSet<SequenceHash>,
    /// Its last message.
    told: (u64, Bytes),
    /// A clock that goes on from message to message, and from life to life.
    clock: u32,
}

/// Bound to ports of its own, with a replay socket and as much history as is asked for in tests.
pub fn tcp() -> PublisherConfig {
    PublisherConfig {
        endpoint: format!("tcp://*:{}", ports::free().port()),
        replay_endpoint: Some(format!("tcp://{}", ports::free())),
        topic: TOPIC.to_owned(),
        ..PublisherConfig::default()
    }
}

/// The same on paths in a folder.
pub fn ipc(folder: &TempDir) -> PublisherConfig {
    let endpoint = |name| format!("ipc://{}", folder.path().join(name).display());
    PublisherConfig {
        endpoint: endpoint("events"),
        replay_endpoint: Some(endpoint("replay")),
        ..tcp()
    }
}

/// The same, but it connects to whoever listens.
pub fn connecting() -> PublisherConfig {
    PublisherConfig {
        endpoint: format!("tcp://{}", ports::free()),
        ..tcp()
    }
}

/// Where an endpoint of this machine is.
pub fn address(endpoint: &str) -> SocketAddr {
    let address = endpoint.strip_prefix("tcp://").expect("it is TCP");
    address.replace('*', "127.0.0.1").parse().unwrap()
}

/// The block of this number.
pub fn block(number: u32) -> SequenceHash {
    let namespace = Namespace {
        model: MODEL,
        lora: "",
        salt: "",
    };
    let tokens = vec![number; BLOCK as usize];
    sequence_hashes(namespace.root().unwrap(), &tokens, BLOCK as usize)[0]
}

fn name(number: u32) -> [u8; 32] {
    let mut name = [7; 32];
    name[28..].copy_from_slice(&number.to_be_bytes());
    name
}

impl Teller {
    /// One that does not run yet.
    pub fn new(config: PublisherConfig) -> Self {
        Self {
            config,
            publisher: None,
            held: BTreeSet::new(),
            told: (0, Bytes::new()),
            clock: 0,
        }
    }

    /// One that runs.
    pub fn running(config: PublisherConfig) -> Self {
        let mut teller = Self::new(config);
        teller.begin();
        teller
    }

    /// Begins a life.
    pub fn begin(&mut self) {
        let publisher = Publisher::start(self.config.clone(), 0).unwrap();
        self.publisher = Some(publisher);
    }

    /// Ends its life, and what it held is gone.
    pub async fn die(&mut self) {
        self.publisher().stop().await;
        self.publisher = None;
        self.held.clear();
    }

    /// The publisher of this life.
    pub fn publisher(&self) -> &Publisher {
        self.publisher.as_ref().expect("it runs")
    }

    /// How it was started.
    pub fn config(&self) -> &PublisherConfig {
        &self.config
    }

    /// What a sidecar beside it is told of it.
    pub fn source(&self) -> EventSource {
        EventSource {
            rank: 0,
            config: EventsConfig {
                enable_kv_cache_events: true,
                publisher: Some("zmq".to_owned()),
                endpoint: self.config.endpoint.clone(),
                replay_endpoint: self.config.replay_endpoint.clone(),
                topic: self.config.topic.clone(),
            },
            host: "127.0.0.1".to_owned(),
            asked: Some(self.config.endpoint.clone()),
        }
    }

    /// What it holds.
    pub fn held(&self) -> &BTreeSet<SequenceHash> {
        &self.held
    }

    /// Number of its last message.
    pub fn last(&self) -> Option<u64> {
        self.publisher().next_sequence().checked_sub(1)
    }

    /// Something goes wrong with its messages.
    pub fn raise(&self, fault: EventFault) {
        self.publisher().faults().raise(fault);
    }

    /// Nothing goes wrong any more.
    pub fn calm(&self) {
        self.publisher().faults().clear();
    }

    /// Holds these blocks, and tells each in a message of its own.
    pub fn store(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            let stored = Stored {
                hashes: vec![name(number)],
                tokens: vec![number; BLOCK as usize],
                block_size: BLOCK,
                ..Stored::default()
            };
            if self.held.insert(block(number)) {
                self.tell(Event::Stored(stored));
            }
        }
    }

    /// Holds these blocks no longer.
    pub fn remove(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            let hashes = vec![name(number)];
            if self.held.remove(&block(number)) {
                let removed = Event::Removed(Removed { hashes });
                self.tell(removed);
            }
        }
    }

    /// Tells so many messages from which nothing follows.
    pub fn chatter(&mut self, messages: usize) {
        for _ in 0..messages {
            self.tell(Event::Removed(Removed {
                hashes: vec![[0xee; 32]],
            }));
        }
    }

    /// Sends its last message once more.
    pub fn repeat(&self) {
        let (number, payload) = self.told.clone();
        self.publisher().publish_recorded(number, payload);
    }

    fn tell(&mut self, event: Event) {
        self.clock += 1;
        let batch = Batch {
            ts: self.clock.into(),
            events: vec![event],
            rank: 0,
        };
        let payload = batch.encode(Form::Maps, HashForm::Bytes);
        self.told = (self.publisher().next_sequence(), payload.into());
        self.repeat();
    }

    /// Holds nothing any more.
    pub fn clear(&mut self) {
        self.held.clear();
        self.tell(Event::Cleared);
    }
}
