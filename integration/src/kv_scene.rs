//! What a sidecar makes of KV events that come over a wire, and who sends them.
//!
//! A [`Watched`] view is fed by the sidecar's own follower; a [`teller::Teller`] is an engine of which only the events are
//! there, and the test says what they tell; between the two may stand a [`proxy::Proxy`], which does what networks do, and
//! in place of the engine a [`stranger::Stranger`], who is none.

pub mod oracle;
pub mod proxy;
pub mod recording;
pub mod stranger;
pub mod teller;

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_proto::event::Blocks;
use baton_proto::frame::FrameReader;
use baton_proto::hash::{Namespace, SequenceHash, sequence_hashes};
use baton_proto::watch::WatchFrame;
use baton_proto::worker::{EngineKind, Role, Tier, WorkerInfo};
use baton_sidecar_core::engine::Following;
use baton_sidecar_core::record::Recorder;
use baton_sidecar_core::view::metrics::ViewMetrics;
use baton_sidecar_core::view::{KvView, RankStatus};
use baton_sidecar_vllm::follow;
use baton_sidecar_vllm::follow::source::EventSource;

use crate::emulated::Process;
use crate::emulated::vllm::{EmulatedVllm, MODEL};
use crate::wait::until;

use proxy::{Proxy, Way};
use teller::{Teller, address};

/// A worker with blocks of this size, of which nothing else matters.
pub fn info(block_size: u32) -> WorkerInfo {
    WorkerInfo {
        models: vec![MODEL.to_owned()],
        block_size: Some(block_size),
        ..WorkerInfo::unknown(EngineKind::Vllm, Role::Local)
    }
}

/// What an engine itself says that a rank of it holds, apart from all that it publishes.
pub fn held(engine: &EmulatedVllm, rank: usize) -> BTreeSet<SequenceHash> {
    held_by(engine, engine.config().block_size, rank)
}

/// The same of an engine of any kind with blocks of this size.
pub fn held_by(engine: &Process, block_size: u32, rank: usize) -> BTreeSet<SequenceHash> {
    let size = block_size as usize;
    let texts = engine.cached(rank).into_iter();
    // Some engines tell of a last block that is not full, which nobody can use.
    let whole = texts.filter(|text| text.tokens.len().is_multiple_of(size));
    let sequence = whole.map(|text| {
        let namespace = Namespace {
            model: MODEL,
            lora: &text.lora,
            salt: &text.salt,
        };
        let hashes = sequence_hashes(namespace.root().unwrap(), &text.tokens, size);
        *hashes.last().expect("a block is full")
    });
    sequence.collect()
}

/// A sidecar's view and whoever feeds it.
pub struct Watched {
    view: Arc<KvView>,
    following: Option<Following>,
}

impl Watched {
    /// A view of nothing.
    pub fn new() -> Self {
        Self::recorded(None)
    }

    /// The same, and what is heard is written down.
    pub fn recorded(recorder: Option<Recorder>) -> Self {
        Self {
            view: KvView::new(ViewMetrics::default(), recorder),
            following: None,
        }
    }

    /// Follows these sources as those of a new life of the engine.
    pub fn follow(&mut self, sources: Vec<EventSource>, block_size: u32) {
        let feed = self.view.begin(&info(block_size));
        self.following = follow::start(sources, &feed);
        assert!(self.following.is_some(), "there is something to follow");
    }

    /// The same with what a [`teller::Teller`] tells.
    pub fn following(source: EventSource) -> Self {
        let mut watched = Self::new();
        watched.follow(vec![source], teller::BLOCK);
        watched
    }

    /// Follows no longer.
    pub fn let_go(&mut self) {
        self.following = None;
    }

    /// The view itself.
    pub fn view(&self) -> &Arc<KvView> {
        &self.view
    }

    /// Messages of the event stream that were heard.
    pub fn messages(&self) -> u64 {
        self.view.metrics().messages.get()
    }

    /// What is known of a rank, from a snapshot as routers get it.
    pub fn known(&self, wanted: u32) -> BTreeSet<SequenceHash> {
        let mut reader = FrameReader::default();
        self.view.snapshot().for_each(|part| reader.push(&part));
        let mut known = BTreeSet::new();
        while let Some(frame) = reader.next::<WatchFrame>().unwrap() {
            let WatchFrame::Snapshot {
                rank, tier, blocks, ..
            } = frame
            else {
                panic!("{frame:?}");
            };
            let Blocks(blocks) = blocks;
            assert!(blocks.is_empty() || tier == Tier::Device);
            if rank == wanted {
                known.extend(blocks);
            }
        }
        known
    }

    /// How a rank stands.
    pub fn status(&self, rank: u32) -> RankStatus {
        let mut ranks = self.view.ranks().into_iter();
        ranks
            .find(|status| status.rank == rank)
            .expect("the rank is watched")
    }

    /// Whether rank 0 is said to hold just this, and for certain.
    pub fn is_exact(&self, held: &BTreeSet<SequenceHash>) -> bool {
        self.status(0).doubts.is_empty() && self.known(0) == *held
    }

    /// Waits for that.
    pub async fn becomes_exact(&self, what: &str, held: &BTreeSet<SequenceHash>) {
        until(what, || async { self.is_exact(held) }).await;
    }

    /// Waits until the follower's connection is there: stores blocks until one is heard live.
    pub async fn hears(&self, teller: &mut Teller) {
        let mut next = 1_000_000;
        until("a message to be heard", || {
            teller.store([next]);
            next += 1;
            let heard = self.messages() > 0;
            async move { heard }
        })
        .await;
        self.becomes_exact("what was heard", teller.held()).await;
    }

    /// Waits until this message of rank 0 was applied.
    pub async fn has_applied(&self, last: Option<u64>) -> RankStatus {
        until("all messages to arrive", || async {
            self.status(0).last_seq == last
        })
        .await;
        self.status(0)
    }

    /// Rank 0 is known for certain and all of it, or is known not to be and nothing is known that is not there. Whether
    /// it is certain.
    #[track_caller]
    pub fn is_honest(&self, what: &str, held: &BTreeSet<SequenceHash>) -> bool {
        let certain = self.status(0).doubts.is_empty();
        if certain {
            assert_eq!(self.known(0), *held, "{what}: certain");
        } else {
            self.is_an_uncertain_subset(what, held);
        }
        certain
    }

    /// Rank 0 is known not to be known, and nothing is known of it that is not there.
    #[track_caller]
    pub fn is_an_uncertain_subset(&self, what: &str, held: &BTreeSet<SequenceHash>) {
        let status = self.status(0);
        assert!(!status.doubts.is_empty(), "{what}: certain, {status:?}");
        let known = self.known(0);
        let ghosts = known.difference(held).count();
        assert_eq!(ghosts, 0, "{what}: of {} known blocks", known.len());
    }
}

impl Default for Watched {
    fn default() -> Self {
        Self::new()
    }
}

/// A follower's two connections, each by way of a proxy of its own.
pub struct Ways {
    /// That of the event stream.
    pub events: Proxy,
    /// That of questions.
    pub replay: Proxy,
}

impl Ways {
    /// To this engine.
    pub async fn to(teller: &Teller, events: Way, replay: Way) -> Self {
        let config = teller.config();
        let asked = config.replay_endpoint.as_deref().unwrap();
        Self {
            events: Proxy::to(address(&config.endpoint), events).await,
            replay: Proxy::to(address(asked), replay).await,
        }
    }

    /// The same engine, at the proxies.
    pub fn source(&self, teller: &Teller) -> EventSource {
        let mut source = teller.source();
        source.config.endpoint = self.events.endpoint();
        source.config.replay_endpoint = Some(self.replay.endpoint());
        source
    }
}
