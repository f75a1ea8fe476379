//! What an engine holds, from its messages alone.
//!
//! Written plainly and apart from all that sidecars do: MessagePack is read into values, blocks are kept by the engine's
//! names, and nothing is forgotten or guessed. Only hashes and digests are the protocol's own.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::digest::BlockSetDigest;
use baton_proto::hash::{Namespace, SequenceHash};
use rmpv::Value;

use super::recording::Message;

/// What is known of one name.
#[derive(Debug, Clone, Copy)]
struct Block {
    sequence: SequenceHash,
    /// `None` at the beginning of a sequence.
    parent: Option<SequenceHash>,
    copies: u32,
}

/// One rank of an engine.
#[derive(Debug, Default)]
pub struct Oracle {
    /// By the engine's name, as MessagePack.
    blocks: BTreeMap<String, Block>,
}

/// What a router shows of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// All is known.
    pub certain: bool,
    /// No block lacks the one before it.
    pub whole: bool,
    /// How many blocks there are.
    pub blocks: u64,
    /// Their digest, in hex; nothing of no blocks.
    pub digest: Option<String>,
}

impl Oracle {
    /// After these messages, from an empty cache.
    pub fn after<'a>(model: &str, messages: impl IntoIterator<Item = &'a Message>) -> Self {
        let mut oracle = Self::default();
        for message in messages {
            oracle.apply(model, message);
        }
        oracle
    }

    /// One message.
    pub fn apply(&mut self, model: &str, message: &Message) {
        for event in events(message) {
            match event["type"].as_str().unwrap() {
                "BlockStored" => self.store(model, &event),
                "BlockRemoved" => self.remove(&event),
                "AllBlocksCleared" => self.blocks.clear(),
                other => panic!("unknown event {other}"),
            }
        }
    }

    fn store(&mut self, model: &str, event: &Value) {
        let names = event["block_hashes"].as_array().unwrap();
        let tokens = event["token_ids"].as_array().unwrap().iter();
        let tokens: Vec<u32> = tokens
            .map(|token| token.as_u64().unwrap().try_into().unwrap())
            .collect();
        let size = usize::try_from(event["block_size"].as_u64().unwrap()).unwrap();
        assert_eq!(tokens.len(), names.len() * size);
        let parent = &event["parent_block_hash"];
        let mut parent = (!parent.is_nil()).then(|| self.blocks[&parent.to_string()].sequence);
        for (name, tokens) in names.iter().zip(tokens.chunks(size)) {
            let before = parent.unwrap_or_else(|| root(model, event));
            let block = Block {
                sequence: before.child(tokens, &[]),
                parent,
                copies: 0,
            };
            let held = self.blocks.entry(name.to_string()).or_insert(block);
            assert_eq!(held.sequence, block.sequence, "one name, one block");
            held.copies += 1;
            parent = Some(block.sequence);
        }
    }

    fn remove(&mut self, event: &Value) {
        for name in event["block_hashes"].as_array().unwrap() {
            let name = name.to_string();
            let held = self.blocks.get_mut(&name).expect("it was stored");
            held.copies -= 1;
            if held.copies == 0 {
                self.blocks.remove(&name);
            }
        }
    }

    /// The blocks.
    pub fn held(&self) -> BTreeSet<SequenceHash> {
        self.blocks.values().map(|block| block.sequence).collect()
    }

    /// What a router shows that knows all of it.
    pub fn shown(&self) -> Shown {
        let held = self.held();
        let mut parents = self.blocks.values().filter_map(|block| block.parent);
        Shown {
            whole: parents.all(|parent| held.contains(&parent)),
            ..Shown::exactly(&held)
        }
    }
}

impl Shown {
    /// A view that is certain, whole, and has these blocks.
    pub fn exactly(held: &BTreeSet<SequenceHash>) -> Self {
        let digest: BlockSetDigest = held.iter().copied().collect();
        Self {
            certain: true,
            whole: true,
            blocks: held.len() as u64,
            digest: (!held.is_empty()).then(|| format!("{:016x}", digest.value())),
        }
    }
}

/// Whether the cache is empty at some point of this message.
pub fn clears(message: &Message) -> bool {
    let mut events = events(message).into_iter();
    events.any(|event| event["type"].as_str() == Some("AllBlocksCleared"))
}

fn events(message: &Message) -> Vec<Value> {
    let batch = rmpv::decode::read_value(&mut &message.payload[..]).unwrap();
    batch[1].as_array().unwrap().clone()
}

/// A sequence's namespace is in its first block's extra keys: the adapter, which is named beside them, and the salt.
fn root(model: &str, event: &Value) -> SequenceHash {
    let lora = event["lora_name"].as_str().unwrap_or_default();
    let keys = event["extra_keys"][0].as_array().into_iter().flatten();
    let mut salts = keys.map(|key| key.as_str().unwrap());
    let salt = salts.find(|key| *key != lora).unwrap_or_default();
    let namespace = Namespace { model, lora, salt };
    namespace.root().unwrap()
}
