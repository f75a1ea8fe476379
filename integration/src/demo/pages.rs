//! Metrics pages: what engines and routers say happened.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use baton_daemon::http::{Client, empty, read_limited};
use http::Request;

const BOUND: Duration = Duration::from_secs(10);
const MAX_PAGE: usize = 8 << 20;

/// Metrics of several processes of a kind, to be summed over.
#[derive(Debug, Clone, Default)]
pub struct Pages(Vec<String>);

impl Pages {
    /// Reads `/metrics` of each.
    pub async fn read(client: &Client, urls: impl Iterator<Item = String>) -> Result<Self> {
        let mut pages = Vec::new();
        for url in urls {
            pages.push(
                page(client, &url)
                    .await
                    .with_context(|| format!("no metrics from {url}"))?,
            );
        }
        Ok(Self(pages))
    }

    /// Sum of the samples of this name that have this label (a piece such as `source="local_compute"`), or all of them; a
    /// counter that was never raised has none.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let lines = self.0.iter().flat_map(|page| page.lines());
        let samples = lines.filter_map(sample);
        samples
            .filter(|(found, labels, _)| *found == name && labels.contains(label))
            .fold(0.0, |sum, (_, _, value)| sum + value)
    }

    /// Samples of this name that have risen since `before`, each with its labels and by how much.
    pub fn raised_since(&self, name: &str, before: &Self) -> Vec<(&str, f64)> {
        let risen = |(found, labels, value)| {
            let rise: f64 = value - before.sum(name, labels);
            (found == name && rise > 0.0).then_some((labels, rise))
        };
        let lines = self.0.iter().flat_map(|page| page.lines());
        lines.filter_map(sample).filter_map(risen).collect()
    }
}

async fn page(client: &Client, url: &str) -> Result<String> {
    let request = Request::get(format!("{url}/metrics")).body(empty())?;
    let response = client.send(request, BOUND).await?;
    let status = response.status();
    ensure!(status == 200, "the answer is {status}");
    let bytes = read_limited(response.into_body(), MAX_PAGE, BOUND).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Name, labels and value of a line.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (sample, value) = line.trim_end().rsplit_once(' ')?;
    let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
    Some((name, labels.trim_end_matches('}'), value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_over_pages() {
        let one =
            "# TYPE a counter\na_total{source=\"x\"} 1.5e3\na_total{source=\"y\"} 2\nab_total 7\n";
        let pages = Pages(vec![one.to_owned(), "a_total{source=\"x\"} 1\n".to_owned()]);
        let sums = [
            pages.sum("a_total", "source=\"x\""),
            pages.sum("a_total", ""),
            pages.sum("absent", ""),
        ];
        assert!(
            sums.iter()
                .zip([1501.0, 1503.0, 0.0])
                .all(|(sum, wanted)| (sum - wanted).abs() < 1e-9),
            "{sums:?}"
        );
        let before = Pages(vec!["a_total{source=\"x\"} 1500\n".to_owned()]);
        let after = Pages(vec![one.to_owned()]);
        assert_eq!(
            after.raised_since("a_total", &before),
            [("source=\"y\"", 2.0)]
        );
    }
}
