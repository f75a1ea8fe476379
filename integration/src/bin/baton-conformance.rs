//! The conformance suite as a command: does an engine answer as a real vLLM 0.32.0 was recorded to answer?

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use baton_integration::conformance::cases::{self, Case};
use baton_integration::conformance::mask::{MASKS, Mask};
use baton_integration::conformance::target::{Launcher, Place, Role, Target};
use baton_integration::conformance::{self, CaseReport, Outcome, left_out};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

/// Compares engines with what was recorded of vLLM 0.32.0.
///
/// Name engines that run already, or give the command that launches one after --, or both: then
/// engines that run are used where their flags do not matter, and others are launched for cases that
/// need other flags, a fresh cache, or an engine that may be killed. A case that cannot be run is
/// skipped, with the reason.
///
/// Examples:
///
///   baton-conformance -- baton-emulated-vllm --model integration/recordings/vllm/model
///
///   baton-conformance --prefill http://127.0.0.1:8201 --decode http://127.0.0.1:8202 \
///     --aggregated http://127.0.0.1:8204
#[derive(Debug, Parser)]
#[command(max_term_width = 100, verbatim_doc_comment)]
struct Args {
    /// Base URL of a prefill engine that runs.
    #[arg(long, value_name = "URL")]
    prefill: Option<String>,
    /// Base URL of a decode engine that runs.
    #[arg(long, value_name = "URL")]
    decode: Option<String>,
    /// Base URL of an aggregated engine that runs.
    #[arg(long, value_name = "URL")]
    aggregated: Option<String>,
    /// Side channel of the prefill engine that runs.
    #[arg(long, value_name = "HOST:PORT")]
    prefill_side_channel: Option<String>,
    /// Side channel of the decode engine that runs.
    #[arg(long, value_name = "HOST:PORT")]
    decode_side_channel: Option<String>,
    /// The name that the engines serve the model under.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// A LoRA adapter for the model; without one, the cases about adapters are skipped.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Launch engines for this case only; repeatable. Others that need one are skipped.
    #[arg(long, value_name = "CASE")]
    launch_for: Vec<String>,
    /// Where the logs of launched engines go [default: a temporary folder, kept if something differs].
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// An engine that is launched is ready within this.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    boot_bound: u64,
    /// Run only cases whose name has this in it; repeatable.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Do not run cases whose name has this in it; repeatable.
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// Print the names of the cases and end.
    #[arg(long)]
    list: bool,
    /// Print what may differ from the recordings, and which recordings are not used, with reasons, and end.
    #[arg(long)]
    explain: bool,
    /// Print one JSON object a line, as end-to-end clients do.
    #[arg(long)]
    json: bool,
    /// How to launch an engine: program and arguments, such as the model.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool> {
    let wanted = |case: &Case| {
        let named = |part: &String| case.name.contains(part.as_str());
        (args.only.is_empty() || args.only.iter().any(named)) && !args.skip.iter().any(named)
    };
    let wanted: Vec<Case> = cases::all().into_iter().filter(wanted).collect();
    if args.list {
        for case in &wanted {
            say(&case.name);
        }
        return Ok(true);
    }
    if args.explain {
        explain();
        return Ok(true);
    }
    ensure!(
        !wanted.is_empty(),
        "no case has such a name; --list prints them all"
    );
    let directory = tempfile::Builder::new().prefix("baton-conf").tempdir()?;
    let mut target = target(args, directory.path().to_owned())?;
    let mut screen = Screen::new(args.json, wanted.len());
    let names: Vec<&str> = wanted.iter().map(|case| case.name.as_str()).collect();
    let reports = conformance::run(
        &mut target,
        |case| names.contains(&case.name.as_str()),
        |report| screen.show(report),
    );
    screen.finish(&reports);
    let held = reports.iter().all(CaseReport::held);
    if !held && args.logs.is_none() && !args.command.is_empty() {
        drop(target);
        let kept = directory.keep();
        eprintln!("logs of launched engines are in {}", kept.display());
    }
    Ok(held)
}

fn explain() {
    say("What may differ, where, and why:");
    for Mask {
        at,
        rule,
        when,
        why,
    } in MASKS
    {
        say(&format!("  {at}: {rule:?} ({when:?}): {why}"));
    }
    say("Recordings that no case uses:");
    for (name, why) in left_out::EXCHANGES.iter().chain(left_out::NOT_TAKEN) {
        say(&format!("  {name}: {why}"));
    }
}

fn target(args: &Args, directory: PathBuf) -> Result<Target> {
    let given = [
        (Role::Prefill, &args.prefill, &args.prefill_side_channel),
        (Role::Decode, &args.decode, &args.decode_side_channel),
        (Role::Aggregated, &args.aggregated, &None),
    ];
    let mut running = BTreeMap::new();
    for (role, base, side_channel) in given {
        if let Some(base) = base {
            let place = Place {
                base: base.trim_end_matches('/').to_owned(),
                side_channel: side_channel.clone(),
            };
            place
                .address()
                .map_err(anyhow::Error::msg)
                .context("give engines as http://IP:PORT")?;
            if let Some(address) = side_channel {
                address
                    .parse::<SocketAddr>()
                    .context("give side channels as IP:PORT")?;
            }
            running.insert(role, place);
        }
    }
    ensure!(
        !running.is_empty() || !args.command.is_empty(),
        "name an engine that runs, such as --aggregated URL, or the command that launches one, after --"
    );
    let launcher = (!args.command.is_empty()).then(|| Launcher {
        words: args.command.clone(),
        environment: Vec::new(),
        adapter: args.adapter.clone(),
        logs: args.logs.clone().unwrap_or_else(|| directory.clone()),
        sockets: directory,
        boot_bound: Duration::from_secs(args.boot_bound),
        only_for: (!args.launch_for.is_empty()).then(|| args.launch_for.clone()),
    });
    Ok(Target::new(&args.model, running, launcher))
}

/// Shows each case as it ends.
struct Screen {
    json: bool,
    bar: ProgressBar,
    done: usize,
    total: usize,
}

impl Screen {
    fn new(json: bool, total: usize) -> Self {
        let bar = if io::stderr().is_terminal() && !json {
            let style = "{pos}/{len} {bar:30} {msg}";
            let style = ProgressStyle::with_template(style)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total as u64).with_style(style)
        } else {
            ProgressBar::hidden()
        };
        Self {
            json,
            bar,
            done: 0,
            total,
        }
    }

    fn show(&mut self, report: &CaseReport) {
        self.done += 1;
        self.bar.inc(1);
        self.bar.set_message(report.name.clone());
        if self.json {
            let progress = json!({"event": "progress", "done": self.done, "total": self.total});
            say(&progress.to_string());
            say(&event(report).to_string());
        } else {
            self.bar.suspend(|| say(&line(report)));
        }
    }

    fn finish(&self, reports: &[CaseReport]) {
        self.bar.finish_and_clear();
        if self.json {
            return;
        }
        let count =
            |of: fn(&Outcome) -> bool| reports.iter().filter(|report| of(&report.outcome)).count();
        let conform = count(|outcome| matches!(outcome, Outcome::Conforms(_)));
        let differ = count(|outcome| matches!(outcome, Outcome::Differs(_)));
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        say(&format!(
            "{conform} cases conform, {differ} differ, {skipped} were skipped"
        ));
    }
}

/// A reader that has gone is told by the exit status.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn event(report: &CaseReport) -> Value {
    let name = &report.name;
    match &report.outcome {
        Outcome::Conforms(checks) => {
            json!({"event": "check", "name": name, "ok": true, "detail": format!("{checks} checks")})
        }
        Outcome::Differs(found) => {
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            json!({"event": "check", "name": name, "ok": false, "detail": found.join("; ")})
        }
        Outcome::Skipped(why) => json!({"event": "skipped", "name": name, "reason": why}),
    }
}

fn line(report: &CaseReport) -> String {
    let CaseReport { name, seconds, .. } = report;
    match &report.outcome {
        Outcome::Conforms(checks) => format!("conforms {name} ({checks} checks, {seconds:.1} s)"),
        Outcome::Skipped(why) => format!("skipped  {name}: {why}"),
        Outcome::Differs(found) => {
            let found: Vec<String> = found
                .iter()
                .map(|difference| format!("\n           {difference}"))
                .collect();
            format!("DIFFERS  {name} ({seconds:.1} s){}", found.concat())
        }
    }
}
