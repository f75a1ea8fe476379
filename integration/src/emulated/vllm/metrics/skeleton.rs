//! The shape of the page: a recorded one, its values left out.
//!
//! It is a decode engine's, which has every family that the others have.

use std::sync::LazyLock;

/// The recorded page.
pub(super) const RECORDED: &str = include_str!("../../../../recordings/vllm/metrics_decode.txt");

/// A family of samples.
#[derive(Debug)]
pub(super) struct Family {
    /// Its name.
    pub(super) name: &'static str,
    /// `# HELP` and `# TYPE`.
    pub(super) head: [&'static str; 2],
    /// Of one rank, in the page's order.
    pub(super) samples: Vec<Sample>,
    kind: &'static str,
}

/// A sample without its value.
#[derive(Debug)]
pub(super) struct Sample {
    /// Its name: the family's, or with what a histogram adds.
    pub(super) name: &'static str,
    /// Names and recorded values, in the page's order.
    pub(super) labels: Vec<(&'static str, &'static str)>,
}

/// All families, in the page's order.
pub(super) fn families() -> &'static [Family] {
    static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| read(RECORDED));
    &FAMILIES
}

/// The family of this name.
pub(super) fn family(name: &str) -> &'static Family {
    let found = families().iter().find(|family| family.name == name);
    found.expect("the recorded page has every family that is asked for")
}

pub(super) fn read(page: &'static str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    let mut help = "";
    for line in page.lines() {
        if line.starts_with("# HELP ") {
            help = line;
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, kind) = of.split_once(' ').expect("a type has a name and a kind");
            families.push(Family {
                name,
                head: [help, line],
                samples: Vec::new(),
                kind,
            });
        } else if let Some(family) = families.last_mut() {
            family.samples.push(Sample::read(line));
        }
    }
    families
}

impl Family {
    pub(super) fn is_histogram(&self) -> bool {
        self.kind == "histogram"
    }

    pub(super) fn is_per_rank(&self) -> bool {
        self.samples
            .iter()
            .any(|sample| !sample.label("engine").is_empty())
    }

    /// Upper bounds of a histogram's buckets, infinity last.
    pub(super) fn bounds(&self) -> Vec<f64> {
        let bounds = self.samples.iter().filter_map(Sample::bound);
        bounds.collect()
    }
}

impl Sample {
    fn read(line: &'static str) -> Self {
        let (sample, _) = line.rsplit_once(' ').expect("a sample has a value");
        let (name, mut rest) = sample.split_once('{').unwrap_or((sample, ""));
        let mut labels = Vec::new();
        // No recorded value has a quote in it.
        while let Some((label, after)) = rest.split_once("=\"") {
            let (value, after) = after.split_once('"').expect("a label's value ends");
            labels.push((label.trim_start_matches(','), value));
            rest = after;
        }
        Self { name, labels }
    }

    /// The recorded value of a label; empty, if it has none.
    pub(super) fn label(&self, name: &str) -> &'static str {
        let found = self.labels.iter().find(|(label, _)| *label == name);
        found.map_or("", |(_, value)| value)
    }

    /// Upper bound, if it is a bucket.
    pub(super) fn bound(&self) -> Option<f64> {
        self.label("le").parse().ok()
    }
}
