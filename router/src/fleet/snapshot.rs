//! All workers at one moment, and which of them can hand over to which.

use std::collections::HashMap;

use baton_proto::Incarnation;
use baton_proto::compat::Compatibility;
use tokio::time::Instant;

use super::{Knowledge, WorkerView};

/// All workers, at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Workers in the order of their ids.
    pub workers: Vec<WorkerView>,
    /// Each worker's kind: those of one kind can hand over to the same others. None for one that can to nobody.
    kinds: Vec<Option<usize>>,
    /// Whether the first kind can hand over to the second, row by row.
    hands_over: Vec<bool>,
    kinds_count: usize,
    /// What handoffs have taught.
    pairs: HashMap<(Incarnation, Incarnation), Knowledge>,
    /// Some pair is not to be had without a look at [`Self::pairs`].
    doubts: bool,
}

impl Snapshot {
    /// These workers, in the order of their ids. Pairs that turned out not to be able to hand over are no pairs.
    pub(super) fn new(
        workers: Vec<WorkerView>,
        pairs: HashMap<(Incarnation, Incarnation), Knowledge>,
    ) -> Self {
        let doubts = pairs.values().any(|known| *known != Knowledge::Proven);
        let mut distinct: Vec<&Compatibility> = Vec::new();
        let kinds = workers.iter().map(|worker| {
            let compatibility = worker.compatibility()?;
            let known = distinct.iter().position(|known| *known == compatibility);
            Some(known.unwrap_or_else(|| {
                distinct.push(compatibility);
                distinct.len() - 1
            }))
        });
        let kinds = kinds.collect();
        let fits = |from: &Compatibility, to: &Compatibility| from.hands_over_to(to).is_ok();
        let row = |from: &&Compatibility| {
            let from = *from;
            distinct
                .iter()
                .map(move |to| fits(from, to))
                .collect::<Vec<_>>()
        };
        let hands_over = distinct.iter().flat_map(row).collect();
        let kinds_count = distinct.len();
        Self {
            workers,
            kinds,
            hands_over,
            kinds_count,
            pairs,
            doubts,
        }
    }

    /// Whether a worker can hand over to another, both by their places.
    pub fn fits(&self, prefill: usize, decode: usize) -> bool {
        let Some((from, to)) = self.kinds[prefill].zip(self.kinds[decode]) else {
            return false;
        };
        let broken = || self.known_of(prefill, decode) == Some(&Knowledge::Broken);
        self.hands_over[from * self.kinds_count + to] && !(self.doubts && broken())
    }

    /// Whether others are to be taken before this pair, by their places.
    pub fn avoids(&self, prefill: usize, decode: usize) -> bool {
        let avoided = |known: &Knowledge| matches!(known, Knowledge::Suspected { until, .. } if *until > Instant::now());
        self.doubts && self.known_of(prefill, decode).is_some_and(avoided)
    }

    fn known_of(&self, prefill: usize, decode: usize) -> Option<&Knowledge> {
        self.knowledge(&self.workers[prefill], &self.workers[decode])
    }

    /// What handoffs have taught of a pair.
    pub fn knowledge(&self, prefill: &WorkerView, decode: &WorkerView) -> Option<&Knowledge> {
        let (prefill, decode) = prefill.incarnation().zip(decode.incarnation())?;
        self.pairs.get(&(prefill.clone(), decode.clone()))
    }

    /// Why a prefill worker cannot hand over to a decode worker; `None` if it can.
    pub fn obstacle(&self, prefill: &WorkerView, decode: &WorkerView) -> Option<String> {
        let sides = prefill.compatibility().zip(decode.compatibility());
        let Some((ours, theirs)) = sides else {
            return Some("one of them has no transfer connector".to_owned());
        };
        if let Err(mismatch) = ours.hands_over_to(theirs) {
            return Some(mismatch.to_string());
        }
        let broken = self.knowledge(prefill, decode) == Some(&Knowledge::Broken);
        broken.then(|| {
            "the decode engine cannot follow the prefill engine's restart; restart one of them"
                .to_owned()
        })
    }

    /// The place of a worker.
    pub fn place_of(&self, worker: &baton_proto::WorkerId) -> Option<usize> {
        let by_id = |view: &WorkerView| view.id().cmp(worker);
        self.workers.binary_search_by(by_id).ok()
    }

    /// Whether anybody serves this model.
    pub fn serves(&self, model: &str) -> bool {
        self.workers.iter().any(|worker| worker.serves(model))
    }
}
