//! What a rank tells of its cache, in SGLang's terms.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::super::core::{Listener, Measured};
use super::super::pool::{BlockHash, CacheKeys, Change};
use super::super::publisher::Publisher;
use super::super::texts::Texts;
use super::config::Config;
use super::events::{self, Event, Form, Format, Medium, Stored};

/// What a rank told so far.
pub(super) struct Telling {
    publisher: Option<Arc<Publisher>>,
    page_size: u32,
    format: Format,
    form: Form,
    /// Digest and name of every page that was ever told.
    told: Mutex<HashMap<BlockHash, (BlockHash, i64)>>,
    texts: Option<Arc<Mutex<Texts>>>,
}

impl Telling {
    pub(super) fn new(publisher: Option<Arc<Publisher>>, config: &Config) -> Self {
        let events = config.events.as_ref();
        Self {
            publisher,
            page_size: config.page_size,
            format: events.map_or_else(Format::default, |events| events.format),
            form: events.map_or_else(Form::default, |events| events.form),
            told: Mutex::default(),
            texts: config.remember.then(Arc::default),
        }
    }

    /// What is remembered of the cache.
    pub(super) fn texts(&self) -> Option<Arc<Mutex<Texts>>> {
        self.texts.clone()
    }

    fn events(&self, changes: Vec<Change>) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        for change in changes {
            let next = self.event(change);
            match (events.last_mut(), next) {
                (Some(Event::Stored(last)), Event::Stored(next)) if follows(last, &next) => {
                    last.hashes.extend(next.hashes);
                    last.tokens.extend(next.tokens);
                }
                (
                    Some(Event::Removed { hashes, medium }),
                    Event::Removed {
                        hashes: next,
                        medium: from,
                    },
                ) if *medium == from => hashes.extend(next),
                (_, next) => events.push(next),
            }
        }
        events
    }

    fn event(&self, change: Change) -> Event {
        match change {
            Change::Stored {
                hashes,
                parent,
                tokens,
                keys,
            } => Event::Stored(self.stored(&hashes, parent, tokens, keys)),
            Change::Copied {
                hash,
                parent,
                tokens,
                keys,
            } => Event::Stored(Stored {
                medium: Some(Medium::CpuPinned),
                ..self.stored(&[hash], parent, tokens, keys)
            }),
            Change::Removed(hash) => self.removed(&hash, Medium::Gpu),
            Change::RemovedFromHost(hash) => self.removed(&hash, Medium::CpuPinned),
            Change::Cleared => Event::Cleared,
            Change::Offloaded(_) | Change::Onboarded(_) => {
                unreachable!("the host's memory has copies")
            }
        }
    }

    fn removed(&self, hash: &BlockHash, medium: Medium) -> Event {
        let (_, name) = self.told.lock().unwrap()[hash];
        Event::Removed {
            hashes: vec![name],
            medium: Some(medium),
        }
    }

    fn stored(
        &self,
        hashes: &[BlockHash],
        parent: Option<BlockHash>,
        tokens: Vec<u32>,
        keys: CacheKeys,
    ) -> Stored {
        let mut told = self.told.lock().unwrap();
        let parent = parent.map(|parent| told[&parent]);
        let mut before: Vec<u8> = match (parent, &keys.salt) {
            (Some((digest, _)), _) => digest.to_vec(),
            (None, Some(salt)) => events::salt_seed(salt).to_vec(),
            (None, None) => Vec::new(),
        };
        let mut names = Vec::new();
        for (hash, tokens) in hashes.iter().zip(tokens.chunks(self.page_size as usize)) {
            let digest = events::chain(&before, tokens);
            let name = self.name(&digest, &keys);
            told.insert(*hash, (digest, name));
            names.push(name);
            before = digest.to_vec();
        }
        Stored {
            hashes: names,
            parent: parent.map(|(_, name)| name),
            tokens,
            page_size: self.page_size,
            medium: Some(Medium::Gpu),
            salt: keys.salt,
            session: keys.session,
            lora_name: keys.lora.map(|(name, _)| name),
        }
    }

    /// Adapters are namespaces of their own in either format.
    fn name(&self, digest: &BlockHash, keys: &CacheKeys) -> i64 {
        let name = events::name(digest);
        let lora = keys.lora.as_ref().map(|(name, _)| name.as_str());
        let extra = lora.or(keys.extra.as_deref());
        let plain = extra.is_none() && keys.salt.is_none();
        if plain || (self.format == Format::Default && lora.is_none()) {
            return name;
        }
        events::renamed(name, extra, keys.salt.as_deref())
    }
}

/// Whether two events can be told as one.
fn follows(last: &Stored, next: &Stored) -> bool {
    let kind = |stored: &Stored| {
        let Stored {
            medium,
            salt,
            session,
            lora_name,
            ..
        } = stored.clone();
        (medium, salt, session, lora_name)
    };
    next.parent.is_some() && next.parent == last.hashes.last().copied() && kind(last) == kind(next)
}

impl Listener for Telling {
    fn changed(&self, changes: Vec<Change>) {
        if let Some(texts) = &self.texts {
            texts.lock().unwrap().add(&changes, self.page_size);
        }
        if let Some(publisher) = &self.publisher {
            publisher.publish(Event::write(self.events(changes), self.form));
        }
    }

    fn measured(&self, _: Vec<Measured>) {}
}
