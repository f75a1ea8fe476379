//! What an engine tells of its KV cache, and in exactly which bytes (SGLang 0.5.23).
//!
//! A batch is an array `[ts, events, attn_dp_rank]`; its events are maps whose keys come in a fixed order, the last ones only
//! where they say something. Releases before wrote arrays ([`Form`]). Hashes are signed: the first eight bytes of a SHA-256
//! chain over a page's tokens.

use serde::ser::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::super::pool::{BlockHash, CacheKeys};
use super::super::publisher::Told;

/// How an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// A map, as in 0.5.23.
    #[default]
    Maps,
    /// An array, the tag first and without the keys that came later.
    Arrays,
    /// The same with an eighth element for salt and session, as in releases between the two.
    ArraysWithExtras,
}

/// How namespaces show in hashes: `format` of `--kv-events-config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// An `extra_key` does not: two namespaces hash alike.
    #[default]
    Default,
    /// Every namespace has hashes of its own.
    Dynamo,
}

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// In the engine's own pool.
    Gpu,
    /// In the host's memory (`HiCache`).
    CpuPinned,
}

impl Medium {
    fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::CpuPinned => "CPU_PINNED",
        }
    }
}

/// One change of the KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Pages are there.
    Stored(Stored),
    /// Pages are gone from one medium.
    Removed {
        /// Of each page.
        hashes: Vec<i64>,
        /// From where.
        medium: Option<Medium>,
    },
    /// Everything is gone.
    Cleared,
}

/// `BlockStored`: one or several pages in a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// Of each page.
    pub hashes: Vec<i64>,
    /// The page before the first one.
    pub parent: Option<i64>,
    /// Of all pages.
    pub tokens: Vec<u32>,
    /// Tokens per page.
    pub page_size: u32,
    /// Where they are.
    pub medium: Option<Medium>,
    /// The request's `cache_salt`.
    pub salt: Option<String>,
    /// The request's session.
    pub session: Option<String>,
    /// Name of the adapter.
    pub lora_name: Option<String>,
}

impl Event {
    /// Events as a publisher wants them: written once it is known when and by whom they are told.
    pub fn write(events: Vec<Self>, form: Form) -> impl FnOnce(Told) -> Vec<u8> {
        move |Told { ts, rank }| encode(ts, &events, rank, form)
    }
}

/// A batch as `MessagePack`.
pub fn encode(ts: f64, events: &[Event], rank: u32, form: Form) -> Vec<u8> {
    let events: Vec<Wire<'_>> = events.iter().map(|event| Wire { event, form }).collect();
    rmp_serde::to_vec(&(ts, events, rank)).expect("a batch is writable")
}

struct Wire<'a> {
    event: &'a Event,
    form: Form,
}

#[derive(Clone, serde::Serialize)]
#[serde(untagged)]
enum Field<'a> {
    Nil,
    Number(i64),
    Text(&'a str),
    Hashes(&'a [i64]),
    Tokens(&'a [u32]),
    Extras(std::collections::BTreeMap<&'static str, &'a str>),
}

type Named<'a> = (&'static str, Field<'a>);

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (tag, fields, said) = self.fields();
        let tag = Field::Text(tag);
        if self.form == Form::Maps {
            let fields = fields.into_iter().chain(said);
            let all: Vec<Named<'_>> = std::iter::once(("type", tag)).chain(fields).collect();
            return serializer.collect_map(all);
        }
        let mut all: Vec<Field<'_>> = vec![tag];
        all.extend(fields.into_iter().map(|(_, value)| value));
        let named = |name| said.iter().find(|(known, _)| *known == name);
        if !matches!(self.event, Event::Cleared) {
            all.push(named("medium").map_or(Field::Nil, |(_, medium)| medium.clone()));
        }
        let extras = self.extras();
        if self.form == Form::ArraysWithExtras && !extras.is_empty() {
            all.push(Field::Extras(extras));
        }
        serializer.collect_seq(all)
    }
}

impl Wire<'_> {
    /// The tag, what is always told, and what only where it says something.
    fn fields(&self) -> (&'static str, Vec<Named<'_>>, Vec<Named<'_>>) {
        let medium =
            |medium: &Option<Medium>| medium.map(|medium| ("medium", Field::Text(medium.name())));
        match self.event {
            Event::Stored(stored) => {
                let always = vec![
                    ("block_hashes", Field::Hashes(&stored.hashes)),
                    (
                        "parent_block_hash",
                        stored.parent.map_or(Field::Nil, Field::Number),
                    ),
                    ("token_ids", Field::Tokens(&stored.tokens)),
                    ("block_size", Field::Number(stored.page_size.into())),
                    ("lora_id", Field::Nil),
                ];
                let mut said: Vec<Named<'_>> = medium(&stored.medium).into_iter().collect();
                for (name, text) in [
                    ("cache_salt", &stored.salt),
                    ("session_id", &stored.session),
                    ("lora_name", &stored.lora_name),
                ] {
                    said.extend(text.as_deref().map(|text| (name, Field::Text(text))));
                }
                ("BlockStored", always, said)
            }
            Event::Removed {
                hashes,
                medium: from,
            } => {
                let always = vec![("block_hashes", Field::Hashes(hashes))];
                ("BlockRemoved", always, medium(from).into_iter().collect())
            }
            Event::Cleared => ("AllBlocksCleared", Vec::new(), Vec::new()),
        }
    }

    fn extras(&self) -> std::collections::BTreeMap<&'static str, &str> {
        let Event::Stored(stored) = self.event else {
            return std::collections::BTreeMap::new();
        };
        let salt = stored.salt.as_deref().map(|salt| ("cache_salt", salt));
        let session = stored
            .session
            .as_deref()
            .map(|session| ("session_id", session));
        salt.into_iter().chain(session).collect()
    }
}

/// The chain's next digest.
pub fn chain(before: &[u8], tokens: &[u32]) -> BlockHash {
    let mut digest = Sha256::new();
    digest.update(before);
    for token in tokens {
        digest.update(token.to_le_bytes());
    }
    digest.finalize().into()
}

/// What a digest is called in events.
pub fn name(digest: &BlockHash) -> i64 {
    let (first, _) = digest
        .split_first_chunk()
        .expect("a digest has eight bytes");
    i64::from_be_bytes(*first)
}

/// What stands before the first page of a salted sequence, as far as events tell.
pub fn salt_seed(salt: &str) -> BlockHash {
    let mut digest = Sha256::new();
    digest.update(b"sglang-cache-salt-v1\0");
    digest.update(salt);
    digest.finalize().into()
}

/// The name that a page has in a namespace of its own.
pub fn renamed(name: i64, extra: Option<&str>, salt: Option<&str>) -> i64 {
    let mut seed = Sha256::new();
    seed.update(b"sglang-kv-event-namespace-v1");
    for part in [extra, salt] {
        match part {
            None => seed.update([0]),
            Some(text) => {
                seed.update([1]);
                seed.update((text.len() as u64).to_le_bytes());
                seed.update(text);
            }
        }
    }
    let mut digest = Sha256::new();
    digest.update(seed.finalize());
    digest.update(name.to_be_bytes());
    self::name(&digest.finalize().into())
}

/// What tells pages apart inside the engine: as the events' chain, and no two namespaces alike.
pub(super) fn page_hash(parent: Option<&BlockHash>, tokens: &[u32], keys: &CacheKeys) -> BlockHash {
    match parent {
        Some(parent) => chain(parent, tokens),
        None => chain(&namespace_seed(keys), tokens),
    }
}

fn namespace_seed(keys: &CacheKeys) -> Vec<u8> {
    let lora = keys.lora.as_ref().map(|(name, _)| name.as_str());
    let (extra, salt) = (keys.extra.as_deref(), keys.salt.as_deref());
    if (lora, extra, salt) == (None, None, None) {
        return Vec::new();
    }
    let text = serde_json::json!([lora, extra, salt]).to_string();
    Sha256::digest(text).to_vec()
}

#[cfg(test)]
mod tests;
