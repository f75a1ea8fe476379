//! The cheapest of many plans, and the next best.

use rand::Rng;

use crate::plan::Candidate;

/// Plans whose costs differ by less than this share are equals, among which chance decides: always taking the first would
/// pile work on one worker.
pub(crate) const EQUAL: f64 = 0.001;

/// How many plans are remembered that lost.
pub(crate) const OTHERS: usize = 4;

/// The cheapest plan so far, how many were as cheap, and the next best that were looked at.
#[derive(Default)]
pub(crate) struct Best {
    pub(crate) chosen: Option<Candidate>,
    equals: u32,
    pub(crate) others: Vec<Candidate>,
}

impl Best {
    /// What costs more than this cannot win.
    pub(crate) fn bound(&self) -> f64 {
        let best = self.chosen.as_ref();
        best.map_or(f64::INFINITY, |best| best.cost.total() * (1.0 + EQUAL))
    }

    pub(crate) fn offer(&mut self, candidate: Candidate, rng: &mut impl Rng) {
        let Some(best) = self.chosen else {
            self.chosen = Some(candidate);
            self.equals = 1;
            return;
        };
        let (cost, least) = (candidate.cost.total(), best.cost.total());
        let better = cost < least * (1.0 - EQUAL);
        let equal = !better && cost <= least * (1.0 + EQUAL);
        self.equals = if better {
            1
        } else {
            self.equals + u32::from(equal)
        };
        if better || (equal && rng.random_range(0..self.equals) == 0) {
            self.chosen = Some(candidate);
            self.lost(best);
        } else {
            self.lost(candidate);
        }
    }

    fn lost(&mut self, candidate: Candidate) {
        let cost = |candidate: &Candidate| candidate.cost.total();
        let at = self
            .others
            .partition_point(|other| cost(other) <= cost(&candidate));
        if at < OTHERS {
            self.others.truncate(OTHERS - 1);
            self.others.insert(at, candidate);
        }
    }
}
