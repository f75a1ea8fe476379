//! What an engine tells of its KV cache, and in exactly which bytes (vLLM 0.32.0).
//!
//! A batch is an array `[ts, events, data_parallel_rank]`; its events are maps whose keys come in a fixed order, the last
//! ones only where they say something. Releases before that wrote the events as arrays with the tag first ([`Form`]).
//! The recordings in `recordings/vllm/kv_events` are re-encoded byte for byte in the tests.

use serde::ser::{Serialize, Serializer};
use serde_bytes::Bytes;
use sha2::{Digest, Sha256};

use super::super::publisher::Told;

/// vLLM's own hash of a block and all before it.
pub type BlockHash = [u8; 32];

/// What an engine says of where a block is. vLLM on CPUs says so, too.
const MEDIUM: &str = "GPU";

/// Kind of the one KV cache group that an emulated engine has.
const SPEC_KIND: &str = "full_attention";

/// How an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// A map, as in 0.32.0.
    #[default]
    Maps,
    /// An array, the tag first and without the keys that came later, as in older releases. Not recorded.
    Arrays,
}

/// How a block's hash is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashForm {
    /// Its last eight bytes as a big-endian number: `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=1`, the default.
    #[default]
    Int,
    /// All 32 bytes.
    Bytes,
}

/// What one scheduler step changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Seconds since 1970.
    pub ts: f64,
    /// In the order in which it happened.
    pub events: Vec<Event>,
    /// Data-parallel rank.
    pub rank: u32,
}

/// One change of the KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks are full and can be found.
    Stored(Stored),
    /// Blocks are gone.
    Removed(Removed),
    /// Everything is gone.
    Cleared,
}

/// `BlockStored`. Only full blocks are told; those that came by a transfer are told like computed ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// Of each block.
    pub hashes: Vec<BlockHash>,
    /// Hash of the block before the first one. `None` says that the first one begins a sequence, which is also what
    /// puts the salt into its extra keys.
    pub parent: Option<BlockHash>,
    /// Of all blocks: as many blocks times `block_size`.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// vLLM's own number of the adapter.
    pub lora_id: Option<u64>,
    /// Name of the adapter, in the extra keys of every block.
    pub lora_name: Option<String>,
    /// The request's `cache_salt`, in the extra keys of the sequence's first block.
    pub salt: Option<String>,
    /// The request's session.
    pub session_id: Option<String>,
}

/// `BlockRemoved`. In practice one hash an event, the tail of a sequence first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// Of each block.
    pub hashes: Vec<BlockHash>,
}

impl Event {
    /// Events as a publisher wants them: written once it is known when and by whom they are told.
    pub fn write(
        events: Vec<Self>,
        form: Form,
        hash_form: HashForm,
    ) -> impl FnOnce(Told) -> Vec<u8> {
        move |Told { ts, rank }| Batch { ts, events, rank }.encode(form, hash_form)
    }
}

impl Batch {
    /// As MessagePack.
    pub fn encode(&self, form: Form, hash_form: HashForm) -> Vec<u8> {
        let events: Vec<WireEvent<'_>> = self
            .events
            .iter()
            .map(|event| WireEvent::new(event, form, hash_form))
            .collect();
        encode(self.ts, &events, self.rank)
    }
}

/// A batch of whatever can be written.
fn encode<E: Serialize>(ts: f64, events: &[E], rank: u32) -> Vec<u8> {
    rmp_serde::to_vec(&(ts, events, rank)).expect("a batch is writable")
}

/// An event as it is written.
struct WireEvent<'a> {
    form: Form,
    tag: &'static str,
    /// There in every release, also when they are nil.
    always: Vec<(&'static str, Field<'a>)>,
    /// What maps have in addition, unless it is the default.
    said: Vec<(&'static str, Field<'a>)>,
}

impl<'a> WireEvent<'a> {
    fn new(event: &'a Event, form: Form, hash_form: HashForm) -> Self {
        let (tag, always, said) = match event {
            Event::Stored(stored) => (
                "BlockStored",
                stored.always(hash_form).to_vec(),
                stored.said(),
            ),
            Event::Removed(removed) => (
                "BlockRemoved",
                vec![
                    ("block_hashes", hashes(&removed.hashes, hash_form)),
                    ("medium", Field::Text(MEDIUM)),
                ],
                vec![("group_idx", Field::Number(0))],
            ),
            Event::Cleared => ("AllBlocksCleared", Vec::new(), Vec::new()),
        };
        Self {
            form,
            tag,
            always,
            said,
        }
    }
}

impl Stored {
    fn always(&self, hash_form: HashForm) -> [(&'static str, Field<'_>); 7] {
        let parent = self.parent.as_ref();
        [
            ("block_hashes", hashes(&self.hashes, hash_form)),
            (
                "parent_block_hash",
                parent.map_or(Field::Nil, |hash| Field::Hash(WireHash { hash, hash_form })),
            ),
            ("token_ids", Field::Tokens(&self.tokens)),
            ("block_size", Field::Number(self.block_size.into())),
            ("lora_id", self.lora_id.map_or(Field::Nil, Field::Number)),
            ("medium", Field::Text(MEDIUM)),
            ("lora_name", text(self.lora_name.as_deref())),
        ]
    }

    fn said(&self) -> Vec<(&'static str, Field<'_>)> {
        let mut said = vec![
            ("extra_keys", Field::ExtraKeys(self.extra_keys())),
            ("group_idx", Field::Number(0)),
            ("kv_cache_spec_kind", Field::Text(SPEC_KIND)),
        ];
        if let Some(session) = &self.session_id {
            said.push(("session_id", Field::Text(session)));
        }
        said
    }

    /// Per block, without tags: the adapter in each, the salt in the sequence's first.
    fn extra_keys(&self) -> Vec<Option<Vec<&str>>> {
        let begins_sequence = self.parent.is_none();
        let of_block = |block: usize| {
            let salt = self
                .salt
                .as_deref()
                .filter(|_| begins_sequence && block == 0);
            let keys: Vec<&str> = self.lora_name.as_deref().into_iter().chain(salt).collect();
            (!keys.is_empty()).then_some(keys)
        };
        (0..self.hashes.len()).map(of_block).collect()
    }
}

#[derive(Clone, serde::Serialize)]
#[serde(untagged)]
enum Field<'a> {
    Nil,
    Number(u64),
    Text(&'a str),
    Hash(WireHash<'a>),
    Hashes(Vec<WireHash<'a>>),
    Tokens(&'a [u32]),
    ExtraKeys(Vec<Option<Vec<&'a str>>>),
}

fn text(text: Option<&str>) -> Field<'_> {
    text.map_or(Field::Nil, Field::Text)
}

fn hashes(hashes: &[BlockHash], hash_form: HashForm) -> Field<'_> {
    let wire = |hash| WireHash { hash, hash_form };
    Field::Hashes(hashes.iter().map(wire).collect())
}

#[derive(Clone, Copy)]
struct WireHash<'a> {
    hash: &'a BlockHash,
    hash_form: HashForm,
}

impl Serialize for WireHash<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.hash_form {
            HashForm::Int => serializer.serialize_u64(as_int(self.hash)),
            HashForm::Bytes => Bytes::new(self.hash).serialize(serializer),
        }
    }
}

/// A hash as events tell it by default.
pub fn as_int(hash: &BlockHash) -> u64 {
    let (_, low) = hash.split_last_chunk().expect("a hash has eight bytes");
    u64::from_be_bytes(*low)
}

impl Serialize for WireEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tag = || std::iter::once(Field::Text(self.tag));
        match self.form {
            Form::Maps => {
                let fields = self.always.iter().chain(&self.said).cloned();
                let fields: Vec<_> = std::iter::once("type").zip(tag()).chain(fields).collect();
                serializer.collect_map(fields)
            }
            Form::Arrays => {
                let values = self.always.iter().map(|(_, value)| value.clone());
                let values: Vec<_> = tag().chain(values).collect();
                serializer.collect_seq(values)
            }
        }
    }
}

/// What goes into a block's hash beside its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraKey {
    /// The adapter, in every block.
    Lora {
        /// Its name.
        name: String,
        /// Where it was loaded from.
        path: String,
    },
    /// The salt, in a sequence's first block.
    CacheSalt(String),
}

/// vLLM's `sha256_cbor` hash of a block: SHA-256 of canonical CBOR `[parent, [tokens], extra keys or null]`.
///
/// Proved against a recording for blocks without extra keys. How those are written inside the hash was read, not recorded.
pub fn block_hash(parent: Option<&BlockHash>, tokens: &[u32], extra: &[ExtraKey]) -> BlockHash {
    let mut content = Cbor::default();
    content.array(3);
    content.bytes(parent.unwrap_or(&none_hash()));
    content.array(tokens.len());
    for token in tokens {
        content.head(Cbor::UNSIGNED, u64::from(*token));
    }
    if extra.is_empty() {
        content.null();
    } else {
        content.array(extra.len());
        for key in extra {
            content.extra_key(key);
        }
    }
    Sha256::digest(&content.0).into()
}

/// What stands for the parent of a sequence's first block when `PYTHONHASHSEED` is not set.
fn none_hash() -> BlockHash {
    let mut name = Cbor::default();
    name.text("vllm-none-hash");
    Sha256::digest(&name.0).into()
}

/// The little of canonical CBOR that a block's hash needs.
#[derive(Default)]
struct Cbor(Vec<u8>);

impl Cbor {
    const UNSIGNED: u8 = 0;
    const BYTES: u8 = 2;
    const TEXT: u8 = 3;
    const ARRAY: u8 = 4;

    /// Major type and argument, in as few bytes as can be.
    fn head(&mut self, major: u8, argument: u64) {
        let bytes = argument.to_be_bytes();
        // How it follows, or itself.
        let (low_bits, following) = match argument {
            0..24 => (bytes[7], &bytes[8..]),
            24..0x100 => (24, &bytes[7..]),
            0x100..0x1_0000 => (25, &bytes[6..]),
            0x1_0000..0x1_0000_0000 => (26, &bytes[4..]),
            _ => (27, &bytes[..]),
        };
        self.0.push((major << 5) | low_bits);
        self.0.extend(following);
    }

    fn array(&mut self, length: usize) {
        self.head(Self::ARRAY, length as u64);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.head(Self::BYTES, bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn text(&mut self, text: &str) {
        self.head(Self::TEXT, text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn null(&mut self) {
        self.0.push(0xf6);
    }

    fn extra_key(&mut self, key: &ExtraKey) {
        let parts: &[&str] = match key {
            ExtraKey::Lora { name, path } => &["lora", name, path],
            ExtraKey::CacheSalt(salt) => &["cache_salt", salt],
        };
        self.array(parts.len());
        for part in parts {
            self.text(part);
        }
    }
}

#[cfg(test)]
mod tests;
