//! A page of metrics in Prometheus' text format: families, and what a counter grew by.

use std::collections::{BTreeMap, BTreeSet};

/// A page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Kind of each family, by name.
    pub kinds: BTreeMap<String, String>,
    /// Value of each sample, by name and labels as they were written.
    pub samples: BTreeMap<String, f64>,
}

/// Labels that name the engine and not what is counted.
const OF_THE_ENGINE: [&str; 2] = ["engine", "model_name"];

impl Page {
    /// Reads a page.
    pub fn read(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let kind = kind.split_once(' ');
                page.kinds
                    .extend(kind.map(|(name, kind)| (name.to_owned(), kind.to_owned())));
            } else if let Some((name, value)) = line.rsplit_once(' ') {
                let value = value.parse().ok().filter(|_| !line.starts_with('#'));
                page.samples
                    .extend(value.map(|value| (name.to_owned(), value)));
            }
        }
        page
    }

    /// Sum of a sample over engines and models, by its other labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let matching = self.samples.iter().filter(|(sample, _)| {
            let (found, told) = parts(sample);
            found == name
                && labels
                    .iter()
                    .all(|(key, value)| told.get(*key) == Some(value))
        });
        matching.map(|(_, value)| value).sum()
    }

    /// A label of a family's first sample.
    pub fn label(&self, family: &str, label: &str) -> Option<String> {
        let mut samples = self.samples.keys().map(|sample| parts(sample));
        let (_, labels) = samples.find(|(name, _)| *name == family)?;
        labels.get(label).map(|value| (*value).to_owned())
    }

    /// The names of a family's labels.
    pub fn labels(&self, family: &str) -> BTreeSet<String> {
        let samples = self.samples.keys().map(|sample| parts(sample));
        let of_family = samples.filter(|(name, _)| family_of(name) == family);
        let names = of_family.flat_map(|(_, labels)| labels.into_keys().collect::<Vec<_>>());
        names
            .filter(|name| *name != "le")
            .map(str::to_owned)
            .collect()
    }

    /// What grew since `before`, by name and those labels that do not name the engine.
    pub fn grown_since(&self, before: &Self) -> BTreeMap<String, f64> {
        let mut grown: BTreeMap<String, f64> = BTreeMap::new();
        for (sample, value) in &self.samples {
            let growth = value - before.samples.get(sample).copied().unwrap_or_default();
            let (name, labels) = parts(sample);
            let labels = labels
                .iter()
                .filter(|(key, _)| !OF_THE_ENGINE.contains(key));
            let labels: Vec<String> = labels
                .map(|(key, value)| format!("{key}=\"{value}\""))
                .collect();
            let name = if labels.is_empty() {
                name.to_owned()
            } else {
                format!("{name}{{{}}}", labels.join(","))
            };
            *grown.entry(name).or_default() += growth;
        }
        grown.retain(|_, growth| *growth != 0.0);
        grown
    }
}

/// The family that a sample belongs to.
pub fn family_of(name: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    suffixes
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name)
}

/// A sample's name and its labels. No label value on these pages has a quote in it.
fn parts(sample: &str) -> (&str, BTreeMap<&str, &str>) {
    let Some((name, labels)) = sample.split_once('{') else {
        return (sample, BTreeMap::new());
    };
    let labels = labels.trim_end_matches('}').split("\",");
    let pairs = labels.filter_map(|label| label.split_once("=\""));
    (
        name,
        pairs
            .map(|(key, value)| (key, value.trim_end_matches('"')))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_by_what_is_counted() {
        let before = Page::read("a_total{engine=\"0\",source=\"x, y\"} 2.0\nb_total 1.0\n");
        let after = Page::read("a_total{engine=\"0\",source=\"x, y\"} 5.0\nb_total 1.0\n");
        let grown = after.grown_since(&before);
        assert_eq!(
            grown,
            BTreeMap::from([("a_total{source=\"x, y\"}".to_owned(), 3.0)])
        );
    }
}
