//! How much slower or faster than assumed each part of something is, learnt from how long the whole takes.
//!
//! A prediction is a sum of parts, each a prior number of seconds times a factor. What is observed is the sum alone. The
//! factors' logarithms are estimated by an extended Kalman filter: they are positive whatever is observed, one observation
//! moves those parts that made up most of the prediction, an absurd one moves them by a bounded step, and a part that
//! never mattered keeps its prior.

/// How far off a prior may be: the spread of a factor's logarithm.
const UNCERTAIN: f64 = 1.2;

/// Spread of one observation, relative to the prediction.
const NOISE: f64 = 0.25;

/// How much a factor wanders from one observation to the next.
const DRIFT: f64 = 0.02;

/// Spread of the factors' logarithms among things of one kind.
const KINDRED: f64 = 0.3;

/// A ratio that may be noise.
const LIKE: f64 = 1.16;

/// Largest surprise that is believed, as a logarithm: a factor of twenty.
const MOST_SURPRISE: f64 = 3.0;

/// Largest logarithm of a factor: more than any two machines differ.
const MOST: f64 = 15.0;

/// Factors of `N` parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit<const N: usize> {
    logs: [f64; N],
    factors: [f64; N],
    /// What the factors are at the least.
    least: [f64; N],
    /// Covariance of the logarithms.
    spread: [[f64; N]; N],
    observed: u32,
}

impl<const N: usize> Default for Fit<N> {
    fn default() -> Self {
        let mut spread = [[0.0; N]; N];
        for (part, row) in spread.iter_mut().enumerate() {
            row[part] = UNCERTAIN * UNCERTAIN;
        }
        let mut fit = Self {
            logs: [0.0; N],
            factors: [1.0; N],
            least: [1.0; N],
            spread,
            observed: 0,
        };
        fit.settle();
        fit
    }
}

impl<const N: usize> Fit<N> {
    /// Predicted seconds of something whose parts would take `prior` seconds.
    pub(crate) fn seconds(&self, prior: [f64; N]) -> f64 {
        self.parts(prior).iter().sum()
    }

    /// Seconds that it will take at the least, as far as is known.
    pub(crate) fn at_least(&self, prior: [f64; N]) -> f64 {
        let parts = prior.iter().zip(&self.least);
        parts.map(|(part, factor)| part * factor).sum()
    }

    /// Predictions are made much more often than anything is learnt.
    fn settle(&mut self) {
        for part in 0..N {
            let spread = self.spread[part][part].max(0.0).sqrt();
            self.factors[part] = self.logs[part].exp();
            self.least[part] = (self.logs[part] - 2.0 * spread).exp();
        }
    }

    /// How many observations it rests on.
    pub(crate) fn observed(&self) -> u32 {
        self.observed
    }

    /// What each part's prior is multiplied by.
    pub(crate) fn factors(&self) -> [f64; N] {
        self.factors
    }

    /// The same factors, of something that is of the same kind: to begin with, and to be left soon if it differs.
    pub(crate) fn kindred(&self) -> Self {
        let mut kindred = *self;
        for part in 0..N {
            kindred.spread[part] = [0.0; N];
            kindred.spread[part][part] = self.spread[part][part].max(KINDRED * KINDRED);
        }
        kindred.settle();
        Self {
            observed: 0,
            ..kindred
        }
    }

    /// Itself, if what it says of something differs enough from what all of its kind say. Nobody is fast or slow by the
    /// noise of a few observations: who chooses the best of many would choose just that.
    pub(crate) fn unless_like<'a>(&'a self, kind: &'a Self, prior: [f64; N]) -> &'a Self {
        if self.observed == 0 {
            return kind;
        }
        let ratio = self.seconds(prior) / kind.seconds(prior);
        if ratio > LIKE || ratio * LIKE < 1.0 {
            self
        } else {
            kind
        }
    }

    fn parts(&self, prior: [f64; N]) -> [f64; N] {
        std::array::from_fn(|part| prior[part] * self.factors[part])
    }

    /// Something with these parts took `seconds`.
    pub(crate) fn observe(&mut self, prior: [f64; N], seconds: f64) {
        let predicted = self.seconds(prior);
        let usable = |seconds: f64| seconds.is_finite() && seconds > 0.0;
        if !usable(predicted) || !usable(seconds) {
            return;
        }
        let shares = self.parts(prior).map(|part| part / predicted);
        let surprise = (seconds / predicted)
            .ln()
            .clamp(-MOST_SURPRISE, MOST_SURPRISE);
        for part in 0..N {
            let most = UNCERTAIN * UNCERTAIN;
            self.spread[part][part] = (self.spread[part][part] + DRIFT * DRIFT).min(most);
        }
        let along: [f64; N] =
            std::array::from_fn(|part| (0..N).map(|of| self.spread[part][of] * shares[of]).sum());
        let expected: f64 = (0..N).map(|part| shares[part] * along[part]).sum();
        // A surprise far beyond what was to be expected is more likely an accident than news.
        let usual = (expected + NOISE * NOISE).sqrt();
        let noise = NOISE * NOISE * (surprise.abs() / (3.0 * usual)).max(1.0);
        let variance = expected + noise;
        for part in 0..N {
            let moved = self.logs[part] + along[part] / variance * surprise;
            self.logs[part] = moved.clamp(-MOST, MOST);
            for of in 0..N {
                self.spread[part][of] -= along[part] * along[of] / variance;
            }
        }
        self.settle();
        self.observed = self.observed.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, wanted: f64, part: f64) -> bool {
        (got / wanted).ln().abs() < part
    }

    #[test]
    fn both_parts_are_told_apart_by_what_they_vary_with() {
        let mut fit: Fit<2> = Fit::default();
        for round in 0..200_u32 {
            let size = f64::from(round % 7 + 1);
            let prior = [0.01, size * 0.1];
            fit.observe(prior, 0.05 + size * 0.02);
        }
        assert!(near(fit.factors()[0], 5.0, 0.1), "{fit:?}");
        assert!(near(fit.factors()[1], 0.2, 0.1), "{fit:?}");
    }

    #[test]
    fn a_part_that_never_mattered_keeps_its_prior() {
        let mut fit: Fit<2> = Fit::default();
        for _ in 0..100 {
            fit.observe([1.0, 0.0], 3.0);
        }
        assert!(near(fit.factors()[0], 3.0, 0.05));
        assert!((fit.factors()[1] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_accident_moves_little_and_a_change_is_followed() {
        let mut fit: Fit<1> = Fit::default();
        for _ in 0..100 {
            fit.observe([1.0], 1.0);
        }
        fit.observe([1.0], 1000.0);
        assert!(fit.factors()[0] < 1.15, "{fit:?}");
        for _ in 0..60 {
            fit.observe([1.0], 4.0);
        }
        assert!(near(fit.factors()[0], 4.0, 0.1), "{fit:?}");
    }

    #[test]
    fn what_is_not_known_may_be_much_less() {
        let mut fit: Fit<2> = Fit::default();
        assert!(fit.at_least([1.0, 0.0]) < 0.1);
        for _ in 0..50 {
            fit.observe([1.0, 0.0], 1.0);
        }
        assert!((0.7..1.0).contains(&fit.at_least([1.0, 0.0])), "{fit:?}");
        assert!(fit.at_least([0.0, 1.0]) < 0.1);
    }

    #[test]
    fn nonsense_is_not_learnt() {
        let mut fit: Fit<1> = Fit::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            fit.observe([1.0], seconds);
            fit.observe([seconds], 1.0);
        }
        assert_eq!(fit.observed(), 0);
        assert!((fit.seconds([2.0]) - 2.0).abs() < 1e-9);
    }

    proptest::proptest! {
        #[test]
        fn factors_stay_finite_and_positive(
            observations in proptest::collection::vec(
                (proptest::array::uniform3(0.0..1e6_f64), 1e-9..1e9_f64),
                1..300,
            )
        ) {
            let mut fit: Fit<3> = Fit::default();
            for (prior, seconds) in observations {
                fit.observe(prior, seconds);
                for factor in fit.factors() {
                    proptest::prop_assert!(factor.is_finite() && factor > 0.0, "{fit:?}");
                }
            }
        }
    }
}
