//! Numbers of a run, from what clients saw.

use std::time::Duration;

use super::load::Outcome;
use super::workload::Kind;

/// Answers that are complete, of a kind or of all.
pub fn answers(
    outcomes: &[Outcome],
    kind: Option<Kind>,
) -> impl Iterator<Item = &super::answer::Answer> {
    outcomes
        .iter()
        .filter(move |outcome| kind.is_none_or(|kind| outcome.kind == kind))
        .filter_map(|outcome| outcome.answer.as_ref().ok())
}

/// Times to the first token, sorted.
pub fn first_tokens(outcomes: &[Outcome], kind: Kind) -> Vec<Duration> {
    let mut times: Vec<Duration> = answers(outcomes, Some(kind))
        .map(|answer| answer.first_token)
        .collect();
    times.sort();
    times
}

/// Times between tokens, sorted.
pub fn gaps(outcomes: &[Outcome], kind: Kind) -> Vec<Duration> {
    let mut times: Vec<Duration> = answers(outcomes, Some(kind))
        .flat_map(|answer| answer.gaps.iter().copied())
        .collect();
    times.sort();
    times
}

/// The smallest value that at least `percent` of a hundred of the sorted values do not exceed; 0 of none.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// How many answers of `one` the same request got in `other` too, to the letter; and how many requests both answered.
pub fn equal_texts(one: &[Outcome], other: &[Outcome]) -> (usize, usize) {
    let texts = |outcomes: &[Outcome]| -> std::collections::HashMap<(usize, usize), String> {
        let complete = outcomes
            .iter()
            .filter_map(|outcome| Some((outcome.at, outcome.answer.as_ref().ok()?.text.clone())));
        complete.collect()
    };
    let (one, other) = (texts(one), texts(other));
    let both: Vec<_> = one
        .iter()
        .filter_map(|(at, text)| Some((text, other.get(at)?)))
        .collect();
    (
        both.iter().filter(|(one, other)| one == other).count(),
        both.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Duration::from_millis(100));
        assert_eq!(percentile(&times, 99), Duration::from_millis(198));
        assert_eq!(percentile(&times[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
