//! A metrics page as a test reads it.

/// The text of `/metrics`.
#[derive(Debug, Clone)]
pub struct Page(String);

impl Page {
    /// A page.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Sum of the samples of this name that have all of these labels; 0 if there is none, as a counter that was never
    /// raised has no sample.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        let wanted: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{value}\""))
            .collect();
        self.0
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (sample, value) = line.rsplit_once(' ')?;
                let (found, labels) = sample.split_once('{').unwrap_or((sample, ""));
                let fits = found == name && wanted.iter().all(|label| labels.contains(label));
                fits.then(|| whole(value))
            })
            .sum()
    }
}

fn whole(value: &str) -> i64 {
    let digits = value.split('.').next().unwrap_or_default();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("no whole number: {value:?}"))
}
