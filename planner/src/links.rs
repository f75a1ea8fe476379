//! How fast KV moves between two workers: what the level that joins them is said to give, until transfers tell.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fit::Fit;
use crate::topology::Level;

/// Most pairs that are learnt of; of others the level is known.
const MOST_PAIRS: usize = 1 << 18;

/// Bytes by which links are compared.
const USUAL: f64 = 1e9;

/// KV that is to move, or has moved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moving<'a> {
    /// Number of the worker that it comes from.
    pub from: u32,
    /// Number of the worker that it goes to.
    pub to: u32,
    /// What joins them: its place among all levels.
    pub level: usize,
    /// And what that gives.
    pub link: &'a Level,
    /// Bytes, those that are before it on the way included.
    pub bytes: f64,
}

impl Moving<'_> {
    fn prior(&self) -> [f64; 2] {
        [self.link.latency, self.bytes / self.link.bandwidth]
    }
}

/// What is known of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkFigures<'a> {
    /// Name of the level that joins the two; `far` if none does.
    pub level: &'a str,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds before the first byte.
    pub latency: f64,
    /// Transfers that were measured.
    pub measured: u32,
}

/// All links.
#[derive(Debug, Default)]
pub struct Links(Mutex<Learnt>);

#[derive(Debug, Default)]
struct Learnt {
    levels: HashMap<usize, Fit<2>>,
    pairs: HashMap<(u32, u32), Fit<2>>,
}

impl Learnt {
    fn fit(&self, moving: &Moving<'_>) -> Fit<2> {
        let Some(level) = self.levels.get(&moving.level) else {
            return Fit::default();
        };
        let pair = self.pairs.get(&(moving.from, moving.to));
        let usual = [moving.link.latency, USUAL / moving.link.bandwidth];
        *pair.map_or(level, |pair| pair.unless_like(level, usual))
    }
}

/// What is known of all links, at one moment: a plan looks at thousands of them.
#[derive(Debug)]
pub(crate) struct Known<'a>(MutexGuard<'a, Learnt>);

impl Known<'_> {
    /// Predicted seconds of a transfer.
    pub(crate) fn seconds(&self, moving: &Moving<'_>) -> f64 {
        self.0.fit(moving).seconds(moving.prior())
    }
}

impl Links {
    /// What is known now. Nothing is learnt while this is held.
    pub(crate) fn known(&self) -> Known<'_> {
        Known(self.lock())
    }

    /// A transfer took so many seconds.
    pub fn observe(&self, moving: &Moving<'_>, seconds: f64) {
        let mut learnt = self.lock();
        let level = learnt.levels.entry(moving.level).or_default();
        level.observe(moving.prior(), seconds);
        let start = level.kindred();
        let pair = (moving.from, moving.to);
        if learnt.pairs.len() < MOST_PAIRS || learnt.pairs.contains_key(&pair) {
            let fit = learnt.pairs.entry(pair).or_insert(start);
            fit.observe(moving.prior(), seconds);
        }
    }

    /// What is known of a link.
    pub fn figures<'a>(&self, moving: &Moving<'a>) -> LinkFigures<'a> {
        let learnt = self.lock();
        let [latency, bytes] = learnt.fit(moving).factors();
        let pair = learnt.pairs.get(&(moving.from, moving.to));
        LinkFigures {
            level: &moving.link.name,
            bandwidth: moving.link.bandwidth / bytes,
            latency: moving.link.latency * latency,
            measured: pair.map_or(0, Fit::observed),
        }
    }

    /// A worker left.
    pub fn forget(&self, worker: u32) {
        let gone = |(from, to): &(u32, u32)| *from == worker || *to == worker;
        self.lock().pairs.retain(|pair, _| !gone(pair));
    }

    fn lock(&self) -> MutexGuard<'_, Learnt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(link: &Level, to: u32, bytes: f64) -> Moving<'_> {
        Moving {
            from: 0,
            to,
            level: 0,
            link,
            bytes,
        }
    }

    #[test]
    fn a_slow_pair_is_learnt_and_others_of_its_level_share_what_is_common() {
        let link = Level::new("rack", 10e9, 0.001);
        let links = Links::default();
        let before = links.known().seconds(&moving(&link, 1, 1e9));
        assert!((before - 0.101).abs() < 1e-9);
        for round in 1..40 {
            let bytes = f64::from(round % 5 + 1) * 2e8;
            links.observe(&moving(&link, 1, bytes), 0.001 + bytes / 10e9);
            links.observe(&moving(&link, 2, bytes), 0.001 + bytes / 1e9);
        }
        let known = |to| links.known().seconds(&moving(&link, to, 1e9));
        assert!((0.09..0.12).contains(&known(1)), "{}", known(1));
        assert!((0.9..1.1).contains(&known(2)), "{}", known(2));
        assert!((known(1)..known(2)).contains(&known(3)), "{}", known(3));
        assert_eq!(links.figures(&moving(&link, 2, 0.0)).measured, 39);
        links.forget(2);
        assert!((known(2) - known(3)).abs() < 1e-12);
    }
}
