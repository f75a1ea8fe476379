//! Messages on their way through decoder and mirror.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::hash::SequenceHash;
use baton_sidecar_core::mirror::Mirror;
use baton_sidecar_core::mirror::event::{BlockEvent, Content};
use baton_sidecar_core::mirror::oddity::Oddity as MirrorOddity;
use baton_sidecar_core::mirror::order::Stamp;
use baton_sidecar_core::mirror::rank::RankView;
use baton_sidecar_vllm::events::Malformed;
use baton_sidecar_vllm::events::decoder::Batch;
use baton_sidecar_vllm::events::message::Message;
use baton_sidecar_vllm::events::oddity::Oddity;

use super::chains::Chains;
use super::contents::{self, Contents};
use super::report::{EventReport, RankReport, TierReport, View};
use super::{Args, EngineName};

/// What a sidecar knew of a stream that its messages do not tell.
#[derive(Clone, Copy)]
pub(super) enum Befallen {
    /// Messages may have been lost.
    Lost,
    /// The engine is in a new life.
    Restart,
}

/// The decoder of an engine's events.
enum Decoder {
    Vllm(baton_sidecar_vllm::events::decoder::Decoder),
    Sglang(baton_sidecar_sglang::events::Decoder),
}

impl Decoder {
    fn of(engine: EngineName) -> Self {
        match engine {
            EngineName::Vllm => Self::Vllm(baton_sidecar_vllm::events::decoder::Decoder::default()),
            EngineName::Sglang => Self::Sglang(baton_sidecar_sglang::events::Decoder::default()),
        }
    }

    fn decode<'d>(&'d mut self, payload: &'d [u8]) -> Result<Batch<'d>, Malformed> {
        match self {
            Self::Vllm(decoder) => decoder.decode(payload),
            Self::Sglang(decoder) => decoder.decode(payload),
        }
    }
}

/// A sidecar's part of the way, and a count of what comes along it.
pub(super) struct Feed {
    model: Option<String>,
    until: Option<u64>,
    chains_shown: usize,
    decoder: Decoder,
    /// Made with the first message: its topic may name the model.
    mirror: Option<Mirror>,
    contents: Contents,
    /// Ranks that were to stop before a message that came.
    stopped: BTreeSet<u32>,
    chains: BTreeMap<u32, Chains>,
    last_rank: u32,
}

impl Feed {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            model: args.model.clone(),
            until: args.until,
            chains_shown: args.chains,
            decoder: Decoder::of(args.engine),
            mirror: None,
            contents: Contents::default(),
            stopped: BTreeSet::new(),
            chains: BTreeMap::new(),
            last_rank: 0,
        }
    }

    /// A message whose frames are no message.
    pub(super) fn bad_frames(&mut self) {
        self.contents.odd(Oddity::Frames);
    }

    /// Something befell the stream of a rank.
    pub(super) fn befell(&mut self, rank: u32, what: Befallen) {
        if self.is_at_its_end(rank) {
            return;
        }
        // Before its first message a stream has nothing to lose.
        let Some(mirror) = self
            .mirror
            .as_mut()
            .filter(|mirror| mirror.rank(rank).is_some())
        else {
            return;
        };
        match what {
            Befallen::Lost => mirror.lose(rank),
            Befallen::Restart => mirror.restart(rank),
        };
    }

    /// The engine, of a kind that may have been told, began a life, and its view with it.
    pub(super) fn attached(&mut self, engine: Option<EngineName>) {
        if let Some(engine) = engine {
            self.decoder = Decoder::of(engine);
        }
        let mut ranks = self.mirror.iter().flat_map(Mirror::ranks);
        let is_over = ranks.any(|(rank, _)| self.is_at_its_end(rank));
        drop(ranks);
        if !is_over {
            self.mirror = None;
        }
    }

    /// Whether the rank was to stop at the last message that was applied.
    fn is_at_its_end(&self, rank: u32) -> bool {
        let view = self.mirror.as_ref().and_then(|mirror| mirror.rank(rank));
        let last = view.and_then(RankView::last_seq);
        let reached = self
            .until
            .zip(last)
            .is_some_and(|(until, last)| last >= until);
        reached || self.stopped.contains(&rank)
    }

    /// A message; what is wrong with it if it cannot be decoded. Then its number counts all the same.
    pub(super) fn message(&mut self, message: &Message<'_>) -> Result<(), String> {
        let topic = String::from_utf8_lossy(message.topic).into_owned();
        if self.mirror.is_none() {
            let named = || model_of(&topic).to_owned();
            let model = self.model.get_or_insert_with(named);
            self.mirror = Some(Mirror::new(model.as_str(), None));
        }
        self.contents.message(topic);
        // The batch borrows the decoder, and all the rest is needed meanwhile.
        let empty = Decoder::of(EngineName::Vllm);
        let mut decoder = std::mem::replace(&mut self.decoder, empty);
        let outcome = match decoder.decode(message.payload) {
            Ok(batch) => {
                self.batch(message.seq, &batch);
                Ok(())
            }
            Err(malformed) => {
                self.undecoded(message.seq);
                Err(format!("message {}: {malformed}", message.seq))
            }
        };
        self.decoder = decoder;
        outcome
    }

    /// Nobody knows of which rank it is; most recordings have one.
    fn undecoded(&mut self, seq: u64) {
        self.contents.odd(Oddity::Malformed);
        let rank = self.last_rank;
        if self.is_past(rank, seq) {
            return;
        }
        let time = f64::NAN;
        if let Some(mirror) = &mut self.mirror {
            let arrival = mirror.undecoded(rank, Stamp { seq, time }).arrival;
            self.contents.arrived(rank, seq, arrival);
        }
    }

    /// Whether the rank was to stop before this message.
    fn is_past(&mut self, rank: u32, seq: u64) -> bool {
        if self.until.is_some_and(|until| seq > until) {
            self.stopped.insert(rank);
        }
        let is_past = self.stopped.contains(&rank);
        if is_past {
            self.contents.not_applied();
        }
        is_past
    }

    fn batch(&mut self, seq: u64, batch: &Batch<'_>) {
        let rank = batch.rank.unwrap_or(self.last_rank);
        self.last_rank = rank;
        self.contents.batch(batch);
        if self.is_past(rank, seq) {
            return;
        }
        let Some(mirror) = &mut self.mirror else {
            return;
        };
        let parents = parents(mirror.rank(rank), batch);
        let time = batch.time;
        let applied = mirror.apply(rank, Stamp { seq, time }, batch.events());
        if let Some(view) = mirror.rank(rank) {
            let chains = self.chains.entry(rank).or_default();
            chains.learn(view, batch, &parents);
        }
        self.contents.arrived(rank, seq, applied.arrival);
    }

    pub(super) fn finish(self) -> EventReport {
        let ranks = self.mirror.iter().flat_map(Mirror::ranks);
        let ranks = ranks.map(|(rank, view)| {
            let chains = self.chains.get(&rank);
            rank_report(rank, view, chains, self.chains_shown)
        });
        EventReport {
            view: View {
                ranks: ranks.collect(),
                model: self.model.unwrap_or_default(),
            },
            summary: self.contents.finish(),
        }
    }
}

fn rank_report(rank: u32, view: &RankView, chains: Option<&Chains>, shown: usize) -> RankReport {
    let tiers = view.digests(rank).map(|digest| TierReport {
        tier: digest.tier,
        blocks: digest.blocks,
        digest: format!("{:016x}", digest.digest),
    });
    let (longest_chains, unreachable) = match chains {
        Some(chains) => chains.longest(view, shown),
        None => Default::default(),
    };
    let counted = view.tally().iter();
    RankReport {
        rank,
        last_seq: view.last_seq(),
        certain: view.doubts().is_empty(),
        doubts: view.doubts().iter().map(MirrorOddity::name).collect(),
        block_size: view.block_size(),
        tiers: tiers.collect(),
        unconfirmed: contents::count(view.unconfirmed()),
        unreachable,
        counted: counted
            .map(|(oddity, times)| (oddity.name(), times))
            .collect(),
        longest_chains,
    }
}

/// What the stored events of a batch stand behind, looked up before the batch removes anything.
fn parents(view: Option<&RankView>, batch: &Batch<'_>) -> Vec<Option<SequenceHash>> {
    let parent = |event| match event {
        BlockEvent::Stored(stored) => match stored.content {
            Content::Told(told) => view?.sequence_of(told.parent?),
            Content::Named => None,
        },
        _ => None,
    };
    batch.events().map(parent).collect()
}

/// The model's name in a topic like `kv@POD@MODEL`, as is the custom.
fn model_of(topic: &str) -> &str {
    let mut parts = topic.splitn(3, '@');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(_), Some(model)) => model,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::model_of;

    #[test]
    fn a_topic_may_name_the_model() {
        assert_eq!(model_of("kv@10.0.0.1:8000@meta/llama@v2"), "meta/llama@v2");
        assert_eq!(model_of("kv@dp"), "");
        assert_eq!(model_of(""), "");
    }
}
