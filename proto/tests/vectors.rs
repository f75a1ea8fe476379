//! Golden vectors: the bytes of every wire type, so that nothing changes the wire silently.
//!
//! A change that is meant rewrites them (`BATON_BLESS_VECTORS=1 cargo test -p baton-proto --test vectors`) and shows in
//! review as a changed `.hex` file. Peers of the version before must still be able to read the new bytes.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use baton_proto::{ErrorKind, Source, Stage};

use crate::common::{Sample, samples};

mod common;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// A comment that shows the value to a person, then the bytes, 32 to a line.
fn file_text(sample: &Sample) -> String {
    let shown = sample.decode(&sample.bytes).unwrap().shown;
    let mut text = format!("# {shown}\n");
    for line in sample.bytes.chunks(32) {
        for byte in line {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn bytes_of(file_text: &str) -> Vec<u8> {
    let lines = file_text.lines().filter(|line| !line.starts_with('#'));
    let digits: String = lines.flat_map(|line| line.trim().chars()).collect();
    let pairs = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

fn bless(samples: &[Sample]) {
    for path in hex_files() {
        fs::remove_file(path).unwrap();
    }
    for sample in samples {
        fs::write(
            folder().join(sample.name).with_extension("hex"),
            file_text(sample),
        )
        .unwrap();
    }
}

fn hex_files() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .collect()
}

#[test]
fn every_type_has_its_bytes() {
    let samples = samples();
    if std::env::var_os("BATON_BLESS_VECTORS").is_some_and(|value| value == "1") {
        bless(&samples);
    }
    let names: BTreeSet<String> = samples
        .iter()
        .map(|sample| sample.name.to_owned())
        .collect();
    assert_eq!(names.len(), samples.len(), "two samples have one name");
    let files = hex_files()
        .into_iter()
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(
        files.collect::<BTreeSet<_>>(),
        names,
        "samples and vector files differ"
    );

    for sample in samples {
        let path = folder().join(sample.name).with_extension("hex");
        let golden = bytes_of(&fs::read_to_string(path).unwrap());
        assert_eq!(
            sample.bytes, golden,
            "{} is encoded differently",
            sample.name
        );
        let understood = sample
            .decode(&golden)
            .unwrap_or_else(|bad| panic!("{}: {bad}", sample.name));
        assert!(
            understood.same,
            "{} is read as {}",
            sample.name, understood.shown
        );
        assert_eq!(
            understood.bytes, golden,
            "{} is encoded differently after it was read",
            sample.name
        );
        if sample.bare {
            // Another implementation of MessagePack must see one value in it, too.
            let mut rest = &golden[..];
            rmpv::decode::read_value(&mut rest).unwrap();
            assert!(rest.is_empty(), "{}", sample.name);
        }
    }
}

#[test]
fn the_error_header_is_fixed_too() {
    let error = baton_proto::Error::new(
        ErrorKind::NoWorker,
        Source::Router,
        Stage::Plan,
        "no worker \"x\"",
    );
    assert_eq!(
        error.header(),
        "no_worker; source=router; stage=plan; retry=no"
    );
    let body = serde_json::json!({"error": {
        "message": "no worker \"x\"",
        "type": "service_unavailable_error",
        "param": null,
        "code": "no_worker",
    }});
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&error.openai_body()).unwrap(),
        body
    );
}

#[test]
fn a_sample_ticket_is_genuine() {
    assert!(common::ticket().is_genuine(&common::token()));
}
