//! Naive books of what an engine's KV events say that it holds.
//!
//! They share nothing with the sidecar's decoder and mirror but the definition of a block's sequence hash. What they do not
//! expect of vLLM 0.32.0 or SGLang 0.5.23 is an error, not something to cope with.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, bail, ensure};
use baton_proto::hash::{Namespace, SequenceHash};
use rmpv::Value;

/// What one life of an engine said of its blocks.
#[derive(Debug)]
pub struct Books {
    model: String,
    /// Every block that was ever named.
    names: HashMap<Name, SequenceHash>,
    /// How many copies of a block are there.
    copies: HashMap<Name, u64>,
    /// What was counted.
    pub counts: Counts,
}

/// How often the engine said what.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// Messages.
    pub messages: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Blocks stored while another copy was there.
    pub again: u64,
    /// Blocks removed.
    pub removed: u64,
    /// Blocks removed while another copy was there.
    pub removed_copies: u64,
    /// `AllBlocksCleared`.
    pub cleared: u64,
    /// Blocks of an adapter.
    pub adapted: u64,
    /// First blocks with a salt.
    pub salted: u64,
}

/// How the engine calls a block: a number, or the bytes of a digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Name {
    Number(u64),
    Digest(Vec<u8>),
}

/// An event's fields.
struct Fields<'v>(&'v [(Value, Value)]);

impl<'v> Fields<'v> {
    fn get(&self, name: &str) -> Option<&'v Value> {
        let mut pairs = self.0.iter();
        let found = pairs.find(|(key, _)| key.as_str() == Some(name));
        found
            .map(|(_, value)| value)
            .filter(|value| !value.is_nil())
    }

    fn text(&self, name: &str) -> Option<&'v str> {
        self.get(name).and_then(Value::as_str)
    }

    fn list(&self, name: &str) -> Result<&'v [Value]> {
        let list = self.get(name).and_then(Value::as_array);
        list.map(Vec::as_slice)
            .with_context(|| format!("an event without {name}"))
    }

    fn names(&self) -> Result<Vec<Name>> {
        self.list("block_hashes")?.iter().map(name).collect()
    }
}

fn name(value: &Value) -> Result<Name> {
    match value {
        Value::Integer(number) => {
            let signed = || number.as_i64().map(i64::cast_unsigned);
            let number = number.as_u64().or_else(signed);
            Ok(Name::Number(number.context("a hash that is no integer")?))
        }
        Value::Binary(bytes) => Ok(Name::Digest(bytes.clone())),
        _ => bail!("a block is called {value}"),
    }
}

impl Books {
    /// Of an engine that said nothing yet.
    pub fn new(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            names: HashMap::new(),
            copies: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// The blocks that are there.
    pub fn held(&self) -> BTreeSet<SequenceHash> {
        self.copies.keys().map(|name| self.names[name]).collect()
    }

    /// Blocks with all their copies: what they take of the engine's memory.
    pub fn copies(&self) -> u64 {
        self.copies.values().sum()
    }

    /// Takes one message.
    pub fn apply(&mut self, payload: &[u8]) -> Result<()> {
        let mut rest = payload;
        let batch = rmpv::decode::read_value(&mut rest).context("a message is no MessagePack")?;
        ensure!(rest.is_empty(), "something follows a message");
        let batch = batch.as_array().map(Vec::as_slice);
        let Some([Value::F64(_), Value::Array(events), ..]) = batch else {
            bail!("a message is no batch of events");
        };
        self.counts.messages += 1;
        for event in events {
            let fields = event.as_map().context("an event is no map")?;
            self.event(&Fields(fields))
                .with_context(|| format!("in {event}"))?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Fields<'_>) -> Result<()> {
        match event.text("type") {
            Some("BlockStored") => self.stored(event),
            Some("BlockRemoved") => self.removed(event),
            Some("AllBlocksCleared") => {
                self.counts.cleared += 1;
                self.copies.clear();
                Ok(())
            }
            _ => bail!("an unknown event"),
        }
    }

    fn stored(&mut self, event: &Fields<'_>) -> Result<()> {
        let names = event.names()?;
        let size = event.get("block_size").and_then(Value::as_u64);
        let size = usize::try_from(size.context("no block size")?)?;
        let tokens: Option<Vec<u32>> = event.list("token_ids")?.iter().map(token).collect();
        let tokens = tokens.context("something is no token")?;
        ensure!(
            size > 0 && tokens.len() == names.len() * size,
            "{} tokens",
            tokens.len()
        );
        let mut before = match event.get("parent_block_hash") {
            Some(parent) => *self.names.get(&name(parent)?).context("unknown parent")?,
            None => self.root(event)?,
        };
        if event.text("lora_name").is_some() {
            self.counts.adapted += names.len() as u64;
        }
        for (name, tokens) in names.into_iter().zip(tokens.chunks_exact(size)) {
            before = before.child(tokens, &[]);
            let known = *self.names.entry(name.clone()).or_insert(before);
            ensure!(known == before, "{name:?} is two blocks");
            let copies = self.copies.entry(name).or_default();
            self.counts.stored += 1;
            self.counts.again += u64::from(*copies > 0);
            *copies += 1;
        }
        Ok(())
    }

    /// What comes before the first block of a sequence: its namespace. vLLM has a salt among other keys, SGLang apart.
    fn root(&mut self, event: &Fields<'_>) -> Result<SequenceHash> {
        let lora = event.text("lora_name").unwrap_or_default();
        let keys = match event.get("extra_keys") {
            Some(keys) => keys.as_array().and_then(|keys| keys.first()),
            None => None,
        };
        let keys: Vec<&str> = match keys.and_then(Value::as_array) {
            Some(keys) => keys.iter().filter_map(Value::as_str).collect(),
            None => Vec::new(),
        };
        let salt = match (lora, keys.as_slice()) {
            (_, []) => event.text("cache_salt").unwrap_or_default(),
            (lora, [only]) if !lora.is_empty() && *only == lora => "",
            ("", [salt]) => salt,
            (lora, [first, salt]) if *first == lora => salt,
            _ => bail!("extra keys {keys:?}"),
        };
        self.counts.salted += u64::from(!salt.is_empty());
        let model = &self.model;
        let root = Namespace { model, lora, salt }.root();
        root.context("a name has a zero byte")
    }

    fn removed(&mut self, event: &Fields<'_>) -> Result<()> {
        for name in event.names()? {
            let copies = self.copies.get_mut(&name);
            let copies =
                copies.with_context(|| format!("{name:?} is removed and was not there"))?;
            self.counts.removed += 1;
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(&name);
            } else {
                self.counts.removed_copies += 1;
            }
        }
        Ok(())
    }
}

fn token(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::conformance::wire;

    /// Messages of the recorded logs, from the start of each process.
    fn recorded(text: &str) -> Vec<Books> {
        #[derive(serde::Deserialize)]
        struct Line {
            frames_hex: [String; 3],
        }
        let mut lives: Vec<Books> = Vec::new();
        for line in text.lines() {
            let line: Line = serde_json::from_str(line).unwrap();
            let [_, seq, payload] = line
                .frames_hex
                .each_ref()
                .map(|hex| wire::unhex(hex).unwrap());
            if seq == [0; 8] {
                lives.push(Books::new("tiny"));
            }
            lives.last_mut().unwrap().apply(&payload).unwrap();
        }
        lives
    }

    /// The blocks that fit beside the null block.
    const USABLE: u64 = 63;

    #[test]
    fn a_recorded_engine_never_holds_more_than_fits() {
        let lives = recorded(include_str!("../../recordings/vllm/kv_events/agg.jsonl"));
        for books in lives {
            assert!(books.copies() <= USABLE, "{:?}", books.counts);
            assert!(books.held().len() as u64 <= books.copies());
        }
    }

    #[test]
    fn adapters_and_salts_set_blocks_apart() {
        let text =
            include_str!("../../recordings/vllm/kv_events/lora_salt_session_bytes_hash.jsonl");
        let counts: Vec<Counts> = recorded(text)
            .into_iter()
            .map(|books| books.counts)
            .collect();
        assert!(counts.iter().any(|counts| counts.adapted > 0));
        assert!(counts.iter().any(|counts| counts.salted > 0));
    }

    #[test]
    fn copies_go_one_by_one() {
        let mut books = Books::new("tiny");
        let stored = event(&[
            ("type", "BlockStored".into()),
            ("block_hashes", Value::Array(vec![7.into()])),
            ("parent_block_hash", Value::Nil),
            ("token_ids", Value::Array(vec![1.into(), 2.into()])),
            ("block_size", 2.into()),
        ]);
        let removed = event(&[
            ("type", "BlockRemoved".into()),
            ("block_hashes", Value::Array(vec![7.into()])),
        ]);
        for (payload, held) in [(&stored, 1), (&stored, 1), (&removed, 1), (&removed, 0)] {
            books.apply(payload).unwrap();
            assert_eq!(books.held().len(), held);
        }
        assert!(books.apply(&removed).is_err(), "it was not there");
    }

    fn event(fields: &[(&str, Value)]) -> Vec<u8> {
        let fields: BTreeMap<&str, Value> = fields.iter().cloned().collect();
        let fields = fields.into_iter().map(|(key, value)| (key.into(), value));
        let batch = Value::Array(vec![
            Value::F64(1.0),
            Value::Array(vec![Value::Map(fields.collect())]),
            0.into(),
        ]);
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &batch).unwrap();
        bytes
    }
}
