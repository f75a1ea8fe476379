//! Where workers stand, how near that makes them, and where KV may and should move.
//!
//! A worker has labels (`zone=a`, `rack=7`, …), in any number of levels. Two workers are as near as the nearest level of
//! which they have the same label; each level has a bandwidth and a latency that hold until transfers were measured.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Workers with the same label of this name are joined by links of this kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// The label's name.
    pub name: String,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds from the request for KV to its first byte.
    pub latency: f64,
}

impl Level {
    /// A level by its name.
    pub fn new(name: &str, bandwidth: f64, latency: f64) -> Self {
        Self {
            name: name.to_owned(),
            bandwidth,
            latency,
        }
    }
}

/// A level or rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no level: it looks like rack=25:0.5, that is NAME=GIGABYTES_PER_SECOND[:MILLISECONDS]"
)]
pub struct BadTopology(String);

impl FromStr for Level {
    type Err = BadTopology;

    fn from_str(text: &str) -> Result<Self, BadTopology> {
        let bad = || BadTopology(text.to_owned());
        let (name, figures) = text.split_once('=').ok_or_else(bad)?;
        let (bandwidth, latency) = figures.split_once(':').unwrap_or((figures, "1"));
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let bandwidth = number(bandwidth).filter(|figure| (1e-6..=1e6).contains(figure));
        let latency = number(latency).filter(|figure| (0.0..=1e6).contains(figure));
        match (name.trim(), bandwidth, latency) {
            ("", ..) => Err(bad()),
            (name, Some(bandwidth), Some(latency)) => {
                Ok(Self::new(name, bandwidth * 1e9, latency / 1e3))
            }
            _ => Err(bad()),
        }
    }
}

/// A label that a rule is about, and what a pair pays that differs in it.
#[derive(Debug, Clone, PartialEq)]
struct Preference {
    name: String,
    seconds: f64,
}

/// The levels and the operator's rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Nearest first; the last one stands for all that have no label in common.
    levels: Vec<Level>,
    required: Vec<String>,
    preferred: Vec<Preference>,
}

impl Default for Topology {
    /// Common names, with what such links usually give.
    fn default() -> Self {
        Self::new(vec![
            Level::new("nvlink_domain", 200e9, 0.000_2),
            Level::new("host", 50e9, 0.000_5),
            Level::new("rack", 25e9, 0.001),
            Level::new("zone", 10e9, 0.002),
        ])
    }
}

/// The labels of one worker, as a topology reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    levels: Vec<Option<Arc<str>>>,
    required: Vec<Option<Arc<str>>>,
    preferred: Vec<Option<Arc<str>>>,
}

/// Why KV may not move between two workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forbidden {
    name: String,
    /// One of them has no such label.
    missing: bool,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, missing } = self;
        if *missing {
            write!(
                f,
                "KV must stay within one {name}, and not both have a label {name}: give their sidecars --topology {name}=..."
            )
        } else {
            write!(f, "KV must stay within one {name}")
        }
    }
}

impl Topology {
    /// These levels, nearest first, and no rules. What has no label in common is as far as by slow Ethernet.
    pub fn new(mut levels: Vec<Level>) -> Self {
        levels.push(Level::new("far", 5e9, 0.003));
        Self {
            levels,
            required: Vec::new(),
            preferred: Vec::new(),
        }
    }

    /// KV never moves between workers that differ in this label, or lack it.
    #[must_use]
    pub fn require(mut self, name: &str) -> Self {
        self.required.push(name.to_owned());
        self
    }

    /// Moving KV between workers that differ in this label, or lack it, counts as so many seconds more.
    #[must_use]
    pub fn prefer(mut self, name: &str, seconds: f64) -> Self {
        self.preferred.push(Preference {
            name: name.to_owned(),
            seconds,
        });
        self
    }

    /// A worker's place.
    pub fn place(&self, labels: &BTreeMap<String, String>) -> Place {
        let label = |name: &str| labels.get(name).map(|label| Arc::from(label.as_str()));
        // The last level has no label.
        let (_, named) = self.levels.split_last().unwrap_or((&FAR, &[]));
        Place {
            levels: named.iter().map(|level| label(&level.name)).collect(),
            required: self.required.iter().map(|name| label(name)).collect(),
            preferred: self
                .preferred
                .iter()
                .map(|rule| label(&rule.name))
                .collect(),
        }
    }

    /// Which level joins two workers, as its place in [`Topology::levels`].
    pub fn nearness(&self, one: &Place, other: &Place) -> usize {
        let same =
            |(one, other): (&Option<Arc<str>>, &Option<Arc<str>>)| one.is_some() && one == other;
        one.levels
            .iter()
            .zip(&other.levels)
            .position(same)
            .unwrap_or(self.levels.len() - 1)
    }

    /// All levels, nearest first; the last one is `far`.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Why KV may not move between two workers; nothing if it may.
    pub fn forbids(&self, one: &Place, other: &Place) -> Option<Forbidden> {
        let mut rules = self.required.iter().enumerate();
        rules.find_map(|(at, name)| {
            // A place that knows nothing of the rule has no such label.
            let [one, other] = [one, other].map(|place| place.required.get(at)?.as_ref());
            let missing = one.is_none() || other.is_none();
            (missing || one != other).then(|| Forbidden {
                name: name.clone(),
                missing,
            })
        })
    }

    /// Seconds that a pair pays for what is preferred and does not hold.
    pub fn penalty(&self, one: &Place, other: &Place) -> f64 {
        let rules = self.preferred.iter().enumerate();
        let broken = rules.filter(|(at, _)| {
            let [one, other] = [one, other].map(|place| place.preferred.get(*at)?.as_ref());
            one.is_none() || one != other
        });
        broken
            .map(|(_, rule)| rule.seconds)
            .fold(0.0, |sum, seconds| sum + seconds)
    }
}

const FAR: Level = Level {
    name: String::new(),
    bandwidth: 5e9,
    latency: 0.003,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn place(topology: &Topology, labels: &[(&str, &str)]) -> Place {
        let labels = labels
            .iter()
            .map(|(name, label)| ((*name).to_owned(), (*label).to_owned()));
        topology.place(&labels.collect())
    }

    #[test]
    fn the_nearest_common_label_counts() {
        let topology = Topology::default();
        let name = |one: &[_], other: &[_]| {
            let at = topology.nearness(&place(&topology, one), &place(&topology, other));
            topology.levels()[at].name.clone()
        };
        assert_eq!(
            name(
                &[("host", "a"), ("zone", "z")],
                &[("host", "a"), ("zone", "z")]
            ),
            "host"
        );
        assert_eq!(
            name(
                &[("host", "a"), ("zone", "z")],
                &[("host", "b"), ("zone", "z")]
            ),
            "zone"
        );
        assert_eq!(name(&[("zone", "y")], &[("zone", "z")]), "far");
        assert_eq!(name(&[], &[]), "far");
        assert_eq!(
            name(&[("row", "1")], &[("row", "1")]),
            "far",
            "an unknown level"
        );
    }

    #[test]
    fn what_is_required_fails_closed() {
        let topology = Topology::default().require("zone");
        let [a, b, none] =
            [&[("zone", "a")][..], &[("zone", "b")], &[]].map(|labels| place(&topology, labels));
        assert_eq!(topology.forbids(&a, &a), None);
        let crossing = topology.forbids(&a, &b).unwrap().to_string();
        assert_eq!(crossing, "KV must stay within one zone");
        for (one, other) in [(&a, &none), (&none, &a), (&none, &none)] {
            let missing = topology.forbids(one, other).unwrap().to_string();
            assert!(missing.contains("--topology zone="), "{missing}");
        }
    }

    #[test]
    fn preferences_cost_seconds() {
        let topology = Topology::default().prefer("rack", 0.5).prefer("zone", 2.0);
        let one = place(&topology, &[("rack", "1"), ("zone", "a")]);
        let other = place(&topology, &[("rack", "2"), ("zone", "a")]);
        let unknown = place(&topology, &[]);
        assert!((topology.penalty(&one, &one)).abs() < 1e-12);
        assert!((topology.penalty(&one, &other) - 0.5).abs() < 1e-12);
        assert!((topology.penalty(&one, &unknown) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn levels_are_read() {
        assert_eq!("rack=25:0.5".parse(), Ok(Level::new("rack", 25e9, 0.000_5)));
        assert_eq!("row=12.5".parse(), Ok(Level::new("row", 12.5e9, 0.001)));
        for bad in [
            "rack",
            "=5",
            "rack=",
            "rack=0",
            "rack=-1",
            "rack=nan",
            "rack=5:-1",
            "rack=5:x",
            "rack=inf",
        ] {
            let error = bad.parse::<Level>().unwrap_err().to_string();
            assert!(error.contains("looks like"), "{error}");
        }
    }
}
