//! Figures: medians of rounds with their spread, one JSON object a line.

use std::collections::BTreeMap;

use serde::Serialize;

/// One measured number.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Its stable name.
    pub name: String,
    /// Median of the rounds, Baton's.
    pub value: f64,
    /// Unit.
    pub unit: &'static str,
    /// Smallest and largest of the rounds.
    pub spread: [f64; 2],
    /// The minimal relay's median in the same run.
    pub reference: Option<f64>,
    /// The engine's own median in the same run, where asking it directly has such a figure.
    pub direct: Option<f64>,
}

/// What is printed while and after measuring, one JSON object a line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a, F = Figure> {
    /// So many measurements are done.
    Progress {
        /// Done.
        done: usize,
        /// Of so many.
        total: usize,
        /// What is measured next.
        note: &'a str,
    },
    /// A figure.
    Figure(&'a F),
}

/// The unit of a metric.
pub fn unit(metric: &str) -> &'static str {
    match metric.rsplit('_').next() {
        Some("rps") => "1/s",
        Some("ms") => "ms",
        Some("us") => "us",
        Some("mb") => "MB",
        _ => "",
    }
}

/// One system's rounds in one row: the values of each metric.
#[derive(Debug, Clone, Default)]
pub struct Rounds(BTreeMap<String, Vec<f64>>);

impl Rounds {
    /// Adds a round's value.
    pub fn add(&mut self, metric: &str, value: f64) {
        self.0.entry(metric.to_owned()).or_default().push(value);
    }

    /// All rounds of a metric, in order.
    pub fn of(&self, metric: &str) -> &[f64] {
        self.0.get(metric).map_or(&[], Vec::as_slice)
    }
}

/// Median of some values; `None` if there are none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The value below which a share of some sorted values lies; `None` if there are none.
pub fn quantile(sorted: &[u64], share: f64) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into what is in memory"
    )]
    let at = (last as f64 * share).round() as usize;
    sorted.get(at.min(last)).copied()
}

/// A figure of these rounds; `None` without any.
pub fn figure(
    name: String,
    metric: &str,
    rounds: &[f64],
    reference: &[f64],
    direct: &[f64],
) -> Option<Figure> {
    let value = median(rounds)?;
    let smallest = rounds.iter().copied().min_by(f64::total_cmp)?;
    let largest = rounds.iter().copied().max_by(f64::total_cmp)?;
    Some(Figure {
        name,
        value: rounded(value),
        unit: unit(metric),
        spread: [rounded(smallest), rounded(largest)],
        reference: median(reference).map(rounded),
        direct: median(direct).map(rounded),
    })
}

/// Four digits are more than any of this is worth.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    #[expect(clippy::cast_possible_truncation, reason = "an exponent of ten")]
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_quantiles_and_rounding() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[], 0.5), None);
        let hundred: Vec<u64> = (0..=100).collect();
        assert_eq!(quantile(&hundred, 0.99), Some(99));
        assert_eq!(quantile(&[7], 0.99), Some(7));
        for (value, shown) in [
            (12345.6, 12350.0),
            (91.237, 91.24),
            (0.123_456, 0.1235),
            (-4.0, -4.0),
            (0.0, 0.0),
        ] {
            assert!((rounded(value) - shown).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn a_figure_is_a_median_between_its_extremes() {
        let figure = figure(
            "n".to_owned(),
            "router_cpu_us",
            &[5.0, 1.0, 2.0],
            &[4.0],
            &[],
        )
        .unwrap();
        assert_eq!((figure.value, figure.spread), (2.0, [1.0, 5.0]));
        assert_eq!((figure.reference, figure.direct), (Some(4.0), None));
        assert_eq!(figure.unit, "us");
        assert_eq!(
            ["rps", "p50_ms", "router_rss_mb"].map(unit),
            ["1/s", "ms", "MB"]
        );
    }
}
