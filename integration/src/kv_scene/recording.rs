//! Recorded logs of KV events, and who publishes them once more.

use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};

use super::teller;
use crate::emulated::vllm::publisher::{Faults, Publisher, PublisherConfig};

/// A message as it was published.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its number.
    pub seq: u64,
    /// Its third frame.
    pub payload: Bytes,
}

/// What one publisher, or several lives of one, published.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The first frame of all its messages.
    pub topic: String,
    /// In order; in each life, numbers begin anew.
    pub lives: Vec<Vec<Message>>,
}

impl Recording {
    /// Those of real engines, by name.
    pub fn all() -> Vec<(&'static str, Self)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/vllm/kv_events");
        let names = [
            "agg",
            "decode",
            "prefill",
            "dp_rank0_sha256cbor_bytes",
            "lora_salt_session_bytes_hash",
        ];
        let read = |name| (name, Self::read(&folder.join(format!("{name}.jsonl"))));
        names.map(read).into()
    }

    /// Reads one message a line, and passes over what a sidecar's recording has between them.
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        let mut recording = Self {
            topic: String::new(),
            lives: Vec::new(),
        };
        let mut last = None;
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let Some(frames) = line["frames_hex"].as_array() else {
                continue;
            };
            let [topic, seq, payload] = [0, 1, 2].map(|at| unhex(frames[at].as_str().unwrap()));
            recording.topic = String::from_utf8(topic).unwrap();
            let seq = u64::from_be_bytes(seq.try_into().unwrap());
            if last.is_none_or(|last| seq <= last) {
                recording.lives.push(Vec::new());
            }
            last = Some(seq);
            let payload = payload.into();
            let message = Message { seq, payload };
            recording.lives.last_mut().unwrap().push(message);
        }
        recording
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Publishes recorded messages, byte for byte and under their own numbers, and answers for them.
pub struct Stage {
    config: PublisherConfig,
    publisher: Option<Publisher>,
}

impl Stage {
    /// One that publishes under this topic, and nothing yet.
    pub fn of(recording: &Recording) -> Self {
        Self {
            config: PublisherConfig {
                topic: recording.topic.clone(),
                ..teller::tcp()
            },
            publisher: None,
        }
    }

    /// How it was started.
    pub fn config(&self) -> &PublisherConfig {
        &self.config
    }

    /// The same as an engine has it in its `--kv-events-config`.
    pub fn events_config(&self) -> Value {
        json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": self.config.endpoint,
            "replay_endpoint": self.config.replay_endpoint,
            "topic": self.config.topic,
        })
    }

    /// Ends the life before, if there was one, and begins one.
    pub async fn begin(&mut self) {
        if let Some(before) = self.publisher.take() {
            before.stop().await;
        }
        self.publisher = Some(Publisher::start(self.config.clone(), 0).unwrap());
    }

    fn publisher(&self) -> &Publisher {
        self.publisher.as_ref().expect("a life has begun")
    }

    /// What goes wrong.
    pub fn faults(&self) -> Faults {
        self.publisher().faults()
    }

    /// Publishes a message.
    pub fn publish(&self, message: &Message) {
        let payload = message.payload.clone();
        self.publisher().publish_recorded(message.seq, payload);
    }
}
