//! The conformance suite against the emulated engine, launched with the command lines of the recorded ones.
//!
//! Where the two disagree, the emulated engine is wrong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use baton_integration::conformance::cases::{self, Case};
use baton_integration::conformance::target::{Launcher, Place, Role, Setup, Target};
use baton_integration::conformance::{self, CaseReport, Outcome, run_case};

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

/// Sockets go there: the shorter its path, the better.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("conf").tempdir();
    folder.expect("a folder for sockets and logs")
}

fn work(cases: &Mutex<VecDeque<Case>>, done: &Mutex<Vec<CaseReport>>) {
    let directory = folder();
    let mut target = Target::new("tiny", BTreeMap::new(), Some(launcher(directory.path())));
    let next = || cases.lock().expect("no thread panicked").pop_front();
    while let Some(case) = next() {
        let report = run_case(&mut target, &case);
        done.lock().expect("no thread panicked").push(report);
    }
}

/// Asked of engines that run already, and what becomes of it.
const GIVEN: [(&str, bool); 10] = [
    ("models", true),
    ("chat_stream", true),
    ("pd", true),
    ("pd_chat", true),
    ("handshake_decode", true),
    ("c3_chat_plain", true),
    // Other limits, other switches, a process of its own.
    ("err_too_long", false),
    ("render_chat", false),
    ("err_too_few_block_ids", false),
    ("events_ranks", false),
];

#[test]
fn engines_that_run_already_are_compared_as_far_as_their_flags_allow() {
    let directory = folder();
    let mut own = Target::new("tiny", BTreeMap::new(), Some(launcher(directory.path())));
    let roles = [Role::Prefill, Role::Decode, Role::Aggregated];
    let place = |role| (role, own.engine(Setup::Split, role).expect("it boots"));
    let given: BTreeMap<Role, Place> = roles.map(place).into();
    let mut target = Target::new("tiny", given, None);
    let wanted = |case: &Case| GIVEN.iter().any(|(name, _)| *name == case.name);
    let reports = conformance::run(&mut target, wanted, |_| {});
    assert_eq!(reports.len(), GIVEN.len());
    for CaseReport { name, outcome, .. } in &reports {
        let (_, runs) = GIVEN
            .iter()
            .find(|(known, _)| known == name)
            .expect("it was asked for");
        match outcome {
            Outcome::Conforms(_) => assert!(*runs, "{name} was run"),
            Outcome::Skipped(why) => assert!(!*runs, "{name} was skipped: {why}"),
            Outcome::Differs(found) => panic!("{name}: {found:?}"),
        }
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
