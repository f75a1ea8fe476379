//! A run in a few numbers, and figures of runs that are compared.

use std::collections::BTreeMap;

use serde::Serialize;

use super::matrix::{CONTENDERS, Compared};
use super::outcome::{Outcome, mean};
use crate::bench::figure::{median, rounded};

/// A metric: its name, its unit, and whether more of it is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// In names of figures.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which policy is best.
    pub best: Best,
}

/// Which of several values is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Best {
    /// The smallest.
    Least,
    /// The largest.
    Most,
    /// None is better than another.
    Neither,
}

const fn metric(name: &'static str, unit: &'static str, best: Best) -> Metric {
    Metric { name, unit, best }
}

/// All metrics, in the order of their figures.
pub const METRICS: [Metric; 10] = [
    metric("ttft_mean_ms", "ms", Best::Least),
    metric("ttft_p50_ms", "ms", Best::Least),
    metric("ttft_p99_ms", "ms", Best::Least),
    metric("itl_mean_ms", "ms", Best::Least),
    metric("itl_p99_ms", "ms", Best::Least),
    metric("hit_rate", "", Best::Most),
    metric("balance", "", Best::Least),
    metric("split_share", "", Best::Neither),
    metric("refused", "", Best::Least),
    metric("preemptions", "", Best::Least),
];

/// A run in the order of [`METRICS`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary(pub [f64; METRICS.len()]);

/// A figure of one cell: one policy's, and the others' beside it.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// `routing.METRIC.TRACE.FLEET.xSPEEDUP`.
    pub name: String,
    /// Median of the rounds.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Smallest and largest of the rounds.
    pub spread: [f64; 2],
    /// The best of the others.
    pub reference: Option<f64>,
    /// Whose value it is.
    pub subject: &'static str,
    /// Each other policy's value.
    pub peers: BTreeMap<&'static str, f64>,
}

impl Summary {
    /// Of a run.
    pub fn of(mut outcome: Outcome) -> Self {
        let balance = outcome.balance();
        outcome.ttft.sort_by(f64::total_cmp);
        outcome.gaps.sort_unstable();
        let milliseconds = |of: f64| of * 1e3;
        let gap = |of: u32| f64::from(of) / 1e3;
        let gaps = outcome.gaps.iter().map(|of| u64::from(*of)).sum();
        let served = (outcome.split + outcome.local) as u64;
        let preemptions = outcome.engines.iter().map(|stats| stats.preemptions).sum();
        Self([
            milliseconds(mean(&outcome.ttft).unwrap_or_default()),
            milliseconds(quantile(&outcome.ttft, 0.5)),
            milliseconds(quantile(&outcome.ttft, 0.99)),
            ratio(gaps, outcome.gaps.len() as u64) / 1e3,
            gap(quantile(&outcome.gaps, 0.99)),
            ratio(outcome.cached_tokens, outcome.prompt_tokens),
            balance,
            ratio(outcome.split as u64, served),
            ratio(outcome.refused as u64, 1),
            ratio(preemptions, 1),
        ])
    }
}

/// Figures of all cells.
pub fn figures(compared: &[Compared]) -> Vec<Figure> {
    let cells = compared.iter();
    let mut figures: Vec<Figure> = cells
        .flat_map(|cell| (0..METRICS.len()).map(|metric| figure(cell, metric)))
        .collect();
    let subject = CONTENDERS[CONTENDERS.len() - 1].name;
    let worst = ["ttft_mean", "ttft_p99"].map(|metric| worst(&figures, metric, subject));
    figures.extend(worst.into_iter().flatten());
    figures
}

fn figure(compared: &Compared, metric: usize) -> Figure {
    let Metric { name, unit, best } = METRICS[metric];
    let rounds = |summaries: &[Summary]| -> Vec<f64> {
        summaries.iter().map(|summary| summary.0[metric]).collect()
    };
    let value = |summaries: &[Summary]| rounded(median(&rounds(summaries)).unwrap_or_default());
    let (last, others) = compared.policies.split_last().expect("some policy");
    let peers: BTreeMap<&'static str, f64> = others
        .iter()
        .map(|(name, summaries)| (*name, value(summaries)))
        .collect();
    let values = peers.values().copied();
    let own = rounds(&last.1);
    Figure {
        name: format!("routing.{name}.{}", compared.cell),
        value: value(&last.1),
        unit,
        spread: [
            rounded(own.iter().copied().fold(f64::INFINITY, f64::min)),
            rounded(own.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ],
        reference: match best {
            Best::Least => values.min_by(f64::total_cmp),
            Best::Most => values.max_by(f64::total_cmp),
            Best::Neither => None,
        },
        subject: last.0,
        peers,
    }
}

/// The largest ratio to the best other policy, over all cells.
fn worst(figures: &[Figure], metric: &str, subject: &'static str) -> Option<Figure> {
    let beginning = format!("routing.{metric}_ms.");
    let ratios = figures
        .iter()
        .filter(|figure| figure.name.starts_with(&beginning) && figure.subject == subject)
        .filter_map(|figure| Some(figure.value / figure.reference?));
    let ratios: Vec<f64> = ratios.collect();
    let worst = ratios.iter().copied().max_by(f64::total_cmp)?;
    let best = ratios.iter().copied().min_by(f64::total_cmp)?;
    Some(Figure {
        name: format!("routing.{metric}_ratio"),
        value: rounded(worst),
        unit: "",
        spread: [rounded(best), rounded(worst)],
        reference: Some(1.0),
        subject,
        peers: BTreeMap::new(),
    })
}

fn quantile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into what is in memory"
    )]
    let at = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to.max(1) as f64
}
