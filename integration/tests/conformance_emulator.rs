//! The conformance suite against the emulated engine, launched with the command lines of the recorded ones.
//!
//! Where the two disagree, the emulated engine is wrong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use baton_integration::conformance::cases::{self, Case};
use baton_integration::conformance::target::{Launcher, Target};
use baton_integration::conformance::{CaseReport, Outcome, run_case};

/// Most of a case's time is waiting, as the real engine waits.
const AT_A_TIME: usize = 6;

fn launcher(directory: &std::path::Path) -> Launcher {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/vllm/model");
    let words = [
        env!("CARGO_BIN_EXE_baton-emulated-vllm"),
        "--model",
        model,
        "--emulate-speed",
        "tiny",
    ];
    Launcher {
        words: words.map(str::to_owned).into(),
        environment: Vec::new(),
        // An adapter without weights is enough for a model without any.
        adapter: Some(directory.to_owned()),
        sockets: directory.to_owned(),
        logs: directory.to_owned(),
        boot_bound: Duration::from_secs(30),
        only_for: None,
    }
}

fn work(cases: &Mutex<VecDeque<Case>>, done: &Mutex<Vec<CaseReport>>) {
    let directory = tempfile::Builder::new()
        .prefix("conf")
        .tempdir()
        .expect("a folder");
    let mut target = Target::new("tiny", BTreeMap::new(), Some(launcher(directory.path())));
    let next = || cases.lock().expect("no thread panicked").pop_front();
    while let Some(case) = next() {
        let report = run_case(&mut target, &case);
        done.lock().expect("no thread panicked").push(report);
    }
}

#[test]
fn the_emulated_engine_answers_as_the_real_one_was_recorded_to() {
    // Those with engines of their own take longest.
    let all: VecDeque<Case> = cases::all().into_iter().rev().collect();
    let count = all.len();
    let (cases, done) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| work(&cases, &done));
        }
    });
    let reports = done.into_inner().unwrap();
    assert_eq!(reports.len(), count);
    let mut wrong = Vec::new();
    for CaseReport { name, outcome, .. } in &reports {
        match outcome {
            Outcome::Conforms(checks) => assert!(*checks > 0, "{name} checked nothing"),
            Outcome::Differs(found) => {
                wrong.extend(found.iter().map(|found| format!("{name}: {found}")))
            }
            Outcome::Skipped(why) => wrong.push(format!("{name} was skipped: {why}")),
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
