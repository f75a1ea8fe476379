//! What reached an engine, remembered byte for byte for tests.

use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::script::Leg;
use crate::client::Answer;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The engine works on it.
    Running,
    /// It was answered as far as the script allowed.
    Answered,
    /// Whoever asked went away before that.
    Aborted,
}

/// A request that reached the engine.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Which leg.
    pub leg: Leg,
    /// Path.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body, byte for byte.
    pub body: String,
    fate: Arc<Mutex<Fate>>,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Seen {
    pub(super) fn new(leg: Leg, path: &str, headers: &[(String, String)], body: String) -> Self {
        Self {
            leg,
            path: path.to_owned(),
            headers: headers.to_vec(),
            body,
            fate: Arc::new(Mutex::new(Fate::Running)),
            sent: Arc::default(),
        }
    }

    /// First header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("what reaches an engine is JSON")
    }

    /// What became of it.
    pub fn fate(&self) -> Fate {
        *self.fate.lock().unwrap()
    }

    /// All bytes that were sent in answer, head and framing included.
    pub fn sent(&self) -> Vec<u8> {
        self.sent.lock().unwrap().clone()
    }

    /// The answer as it was sent.
    pub fn answer(&self) -> Answer {
        Answer::parse(&self.sent())
    }

    pub(super) fn recorder(&self) -> Arc<Mutex<Vec<u8>>> {
        Arc::clone(&self.sent)
    }

    pub(super) fn ended(&self, fate: Fate) {
        let mut known = self.fate.lock().unwrap();
        if *known == Fate::Running {
            *known = fate;
        }
    }
}
