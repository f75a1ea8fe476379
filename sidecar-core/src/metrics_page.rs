//! An engine's metrics page (Prometheus text), the few samples that are needed.

use std::collections::BTreeMap;

/// One sample: its name, labels and value.
#[derive(Debug, Clone, PartialEq)]
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    value: f64,
}

/// A metrics page.
#[derive(Debug, Clone, Default)]
pub struct MetricsPage<'a> {
    samples: Vec<Sample<'a>>,
}

impl<'a> MetricsPage<'a> {
    /// Reads a page; lines that are not understood are skipped.
    pub fn parse(text: &'a str) -> Self {
        Self {
            samples: text.lines().filter_map(sample).collect(),
        }
    }

    /// Sum of a family's samples, all labels; `None` if there is none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let mut values = self
            .samples
            .iter()
            .filter(|sample| sample.name == name)
            .map(|sample| sample.value);
        let first = values.next()?;
        Some(values.fold(first, |sum, value| sum + value))
    }

    /// A label of a family's first sample.
    pub fn label(&self, name: &str, label: &str) -> Option<&'a str> {
        self.samples
            .iter()
            .find(|sample| sample.name == name)?
            .labels
            .get(label)
            .copied()
    }

    /// How many different values a label of a family has.
    pub fn distinct(&self, name: &str, label: &str) -> usize {
        let of_family = self.samples.iter().filter(|sample| sample.name == name);
        let values: std::collections::BTreeSet<_> = of_family
            .filter_map(|sample| sample.labels.get(label))
            .collect();
        values.len()
    }

    /// Whether any family begins like this.
    pub fn has_family(&self, beginning: &str) -> bool {
        self.samples
            .iter()
            .any(|sample| sample.name.starts_with(beginning))
    }
}

fn sample(line: &str) -> Option<Sample<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let (name, labels, value) = match line.split_once('{') {
        // The last closing brace: label values may contain others.
        Some((name, rest)) => {
            let (labels, value) = rest.rsplit_once('}')?;
            (name, labels_of(labels), value)
        }
        None => {
            let (name, value) = line.split_once(' ')?;
            (name, BTreeMap::new(), value)
        }
    };
    let value = value.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name,
        labels,
        value,
    })
}

/// `a="1",b="2"`. Values with escaped quotes are cut short, which no needed label has.
fn labels_of(mut text: &str) -> BTreeMap<&str, &str> {
    let mut labels = BTreeMap::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let Some((value, rest)) = rest.split_once('"') else {
            break;
        };
        labels.insert(name.trim_start_matches([',', ' ']), value);
        text = rest;
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_needed_and_skips_the_rest() {
        let page = MetricsPage::parse(
            "# HELP x y\nvllm:num_requests_running{engine=\"0\",model_name=\"a,b}\"} 2.0\n\
             vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 3\nplain 1.5e3 1700000000\nbroken{ 1\nnan NaN\n\n",
        );
        assert_eq!(page.sum("vllm:num_requests_running"), Some(5.0));
        assert_eq!(page.distinct("vllm:num_requests_running", "engine"), 2);
        assert_eq!(
            page.label("vllm:num_requests_running", "model_name"),
            Some("a,b}")
        );
        assert_eq!(page.sum("plain"), Some(1500.0));
        assert_eq!(page.sum("absent"), None);
        assert!(page.has_family("vllm:") && !page.has_family("sglang:"));
    }
}
