//! Where a worker stands: labels from flags, and from a file as Kubernetes mounts a pod's labels.

use std::collections::BTreeMap;
use std::path::Path;

/// Largest file of labels.
const MOST_BYTES: u64 = 1 << 20;

/// One label, `NAME=VALUE`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("a topology label looks like zone=a".to_owned()),
    }
}

/// Labels of a file, a line each: `NAME=VALUE` or `NAME="VALUE"`. Empty lines and those that begin with # say nothing.
pub(crate) fn of_file(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("--topology-file {}: {why}", path.display());
    let metadata = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if metadata.len() > MOST_BYTES {
        return Err(failed(&"it is too large for a file of labels"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let lines = text.lines().map(str::trim);
    let said = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    said.map(|line| {
        let (name, value) = label(line).map_err(|why| failed(&why))?;
        let value = match value.strip_prefix('"') {
            Some(_) => serde_json::from_str(&value).map_err(|error| failed(&error))?,
            None => value,
        };
        Ok((name, value))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Result<Vec<(String, String)>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("labels");
        std::fs::write(&path, content).unwrap();
        of_file(&path).map(|labels| labels.into_iter().collect())
    }

    #[test]
    fn a_file_as_kubernetes_mounts_it() {
        let labels = read("zone=\"a\"\n\n# where\nrack=7\nname=\"with \\\"quotes\\\"\"\n").unwrap();
        let expected = [("name", "with \"quotes\""), ("rack", "7"), ("zone", "a")]
            .map(|(name, label)| (name.to_owned(), label.to_owned()));
        assert_eq!(labels, expected);
    }

    #[test]
    fn what_is_no_label_is_said() {
        for bad in ["zone", "=a", "zone=\"a", "zone="] {
            let error = read(bad).unwrap_err();
            assert!(error.contains("--topology-file"), "{error}");
        }
        let error = of_file(Path::new("/no/such/file")).unwrap_err();
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
