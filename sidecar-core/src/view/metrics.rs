//! What is counted of the view of the engine's KV cache, and of the stream that it is made from.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use baton_daemon::metrics::{Counter, Family, Gauge};
use prometheus_client::encoding::EncodeLabelSet;

use crate::mirror::oddity::Oddity;
use crate::mirror::{Mirror, TIERS};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TierLabel {
    tier: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counts of the view of the engine's KV cache.
#[derive(Debug, Clone, Default)]
pub struct ViewMetrics {
    blocks: Family<TierLabel, Gauge>,
    ranks: Family<StateLabel, Gauge>,
    oddities: Family<ReasonLabel, Counter>,
    counted: Arc<Mutex<BTreeMap<Oddity, u64>>>,
    /// Messages of the engine's event stream.
    pub messages: Counter,
    /// Times the engine was told to forget its cache.
    pub resets: Counter,
    replays: Family<OutcomeLabel, Counter>,
    strange: Family<ReasonLabel, Counter>,
}

impl ViewMetrics {
    /// Shows how the view is now.
    pub fn show(&self, mirror: &Mirror) {
        for tier in TIERS {
            let ranks = mirror.ranks();
            let blocks: u64 = ranks.map(|(_, view)| view.held(tier)).sum();
            let label = TierLabel { tier: tier.word() };
            let gauge = self.blocks.get_or_create(&label);
            gauge.set(i64::try_from(blocks).unwrap_or(i64::MAX));
        }
        for (state, uncertain) in [("exact", false), ("uncertain", true)] {
            let ranks = mirror.ranks();
            let count = ranks.filter(|(_, view)| view.state().uncertain == uncertain);
            let gauge = self.ranks.get_or_create(&StateLabel { state });
            gauge.set(i64::try_from(count.count()).unwrap_or(i64::MAX));
        }
        self.count(mirror);
    }

    /// The mirror counts each life of the engine from zero.
    fn count(&self, mirror: &Mirror) {
        let mut now: BTreeMap<Oddity, u64> = BTreeMap::new();
        for (_, view) in mirror.ranks() {
            for (reason, count) in view.tally().iter() {
                *now.entry(reason).or_default() += count;
            }
        }
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        for (reason, count) in &now {
            let before = counted.get(reason).copied().unwrap_or_default();
            self.odd(*reason, count.checked_sub(before).unwrap_or(*count));
        }
        *counted = now;
    }

    /// What a plain stream of events would not have.
    pub fn odd(&self, reason: Oddity, times: u64) {
        let reason = reason.name();
        let oddities = self.oddities.get_or_create(&ReasonLabel { reason });
        oddities.inc_by(times);
    }

    /// Messages were asked for once more; whether that was answered.
    pub fn replayed(&self, answered: bool) {
        let outcome = if answered { "answered" } else { "unanswered" };
        self.replays.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Something in the engine's messages was not as expected.
    pub fn strange(&self, reason: &'static str, times: u64) {
        self.strange
            .get_or_create(&ReasonLabel { reason })
            .inc_by(times);
    }

    pub(crate) fn register(&self, families: &mut prometheus_client::registry::Registry) {
        families.register(
            "view_blocks",
            "KV blocks that the engine is known to hold, by tier: device, host, disk, external",
            self.blocks.clone(),
        );
        families.register(
            "view_ranks",
            "Data-parallel ranks whose view is exact, or uncertain: a subset of what they hold",
            self.ranks.clone(),
        );
        families.register(
            "view_oddities",
            "What a plain stream of KV events would not have, by reason: gap, older, restart, joined_late, ...",
            self.oddities.clone(),
        );
        families.register(
            "view_resets",
            "Times the engine was told to forget its KV cache, because not all that it held was known",
            self.resets.clone(),
        );
        families.register(
            "kv_event_messages",
            "Messages of the engine's KV event stream",
            self.messages.clone(),
        );
        families.register(
            "kv_event_replays",
            "Times the engine was asked for its last KV events again, by outcome: answered, unanswered",
            self.replays.clone(),
        );
        families.register(
            "kv_event_oddities",
            "What was not understood in KV events, by reason: frames, malformed, unknown_event, unknown_field, ...",
            self.strange.clone(),
        );
    }
}
