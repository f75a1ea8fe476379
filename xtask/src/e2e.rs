//! `e2e`: proof on real engines, step by step.
//!
//! Outside its namespaces this command installs and builds; inside it boots everything and runs the Python clients, each
//! of which checks one thing. A step that fails does not keep the next ones from running as long as the processes live,
//! since one run takes minutes.

mod churn;
mod faults;
mod in_flight;
mod links;
mod view;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::client::{self, Check, Client, Outcome};
use crate::cluster::{AGGREGATED, Cluster, DECODE_0, DECODE_1, HandStarted, PREFILL_0, ROUTER};
use crate::engines::{self, Engine, Installation, MODEL};
use crate::report::Report;
use crate::system::{self, Missing, Need};
use crate::{E2eArgs, E2eStep, EngineKind, namespace, workspace};

/// Greedy answers that are compared, and how many of them with `--smoke`.
const fn requests(engine: EngineKind) -> [u32; 2] {
    match engine {
        EngineKind::Vllm => [300, 48],
        EngineKind::Sglang => [200, 24],
    }
}

/// Sends tampered tickets to sidecars; a part of the integration crate.
const TICKET_PROBE: &str = "baton-ticket-probe";

/// Compares tokens and cache hits; a part of the integration crate.
const TOKEN_PROBE: &str = "baton-token-probe";

/// Longest that a probe may take.
const PROBE_BOUND: Duration = Duration::from_mins(3);

/// Compares engines with recordings; a part of the integration crate.
const CONFORMANCE: &str = "baton-conformance";

/// Cases for which the whole proof launches an engine of their own: one that is killed by a request, and one that must
/// evict.
const LAUNCHED_CASES: [&str; 2] = ["err_do_remote_prefill_without_blocks", "events_evictions"];

/// Runs the whole proof, or its short cut.
pub(crate) fn run(args: &E2eArgs, missing: Missing) -> Result<()> {
    ensure!(
        args.only.iter().all(|step| step.is_for(args.engine)),
        "a step of --only is not made for this engine: leave it away"
    );
    ensure!(
        !args.smoke || !args.only.contains(&E2eStep::Churn),
        "the step churn needs two decode engines: leave --smoke away"
    );
    if namespace::is_inside() {
        namespace::prepare()?;
        return run_inside(args);
    }
    system::ensure_present(&[Need::Libclang, Need::Ip, Need::Namespaces], missing)?;
    engines::install(args.engine, missing)?;
    let transfers = args.only.is_empty() || args.only.contains(&E2eStep::Transfer);
    if transfers && E2eStep::Transfer.is_for(args.engine) {
        transfer(&engines::installed(args.engine)?)?;
    }
    if args.only == [E2eStep::Transfer] {
        return Ok(());
    }
    workspace::build_release()?;
    namespace::enter()
}

/// The tests that need NIXL, over the library that the engine brought. They start processes of their own and no engine, and
/// need cargo, so they run outside of the namespaces.
fn transfer(engine: &Installation) -> Result<()> {
    // One after the other: on a busy machine UCX has died in processes that end (docs/gaps.md).
    let harness = ["nixl", "--", "--ignored", "--test-threads=1"];
    workspace::run(
        workspace::cargo()
            .args(["test", "--locked", "--package", "baton-transfer"])
            .args(["--package", "baton-integration"])
            .args([
                "--test",
                "agents",
                "--test",
                "transfer",
                "--test",
                "outside_agent",
            ])
            .args(harness)
            .env("BATON_NIXL_LIB", engine.venv()),
    )
}

fn run_inside(args: &E2eArgs) -> Result<()> {
    let name = format!("e2e/{}", args.engine.folder());
    let logs = workspace::logs_directory(args.keep_logs.as_deref(), &name)?;
    let mut run = Run {
        args,
        cluster: Cluster::new(engines::installed(args.engine)?, &logs),
        report: Report::default(),
    };
    if let Err(error) = run.all_steps() {
        run.report.add("the run itself", Duration::ZERO, Err(error));
    }
    if !run.report.held() {
        run.cluster
            .log_tails()
            .iter()
            .for_each(|tail| eprintln!("{tail}"));
    }
    run.report.print();
    run.report.write(&logs.join("report.json"))?;
    ensure!(
        run.report.held(),
        "a check failed; logs are in {}",
        logs.display()
    );
    Ok(())
}

/// A run inside its namespaces.
struct Run<'a> {
    args: &'a E2eArgs,
    cluster: Cluster,
    report: Report,
}

impl Run<'_> {
    fn all_steps(&mut self) -> Result<()> {
        // They have engines of their own, and boot them before the machine is full of others.
        self.step(E2eStep::View, Self::view)?;
        self.step(E2eStep::Faults, Self::faults)?;
        if !E2eStep::OF_THE_CLUSTER.iter().any(|step| self.wants(*step)) {
            return Ok(());
        }
        let started = Instant::now();
        let beside = self.boot()?;
        self.report
            .add("boot", started.elapsed(), Ok(Outcome::default()));
        // SGLang's sidecar has no part in the fabric of its engine.
        if self.args.engine == EngineKind::Vllm {
            self.look("links", |_| Ok(links::look()))?;
        }
        self.step(E2eStep::Surface, |run| {
            run.client("OpenAI surface", "surface.py", &run.reference_arguments())
        })?;
        self.step(E2eStep::Tokens, Self::tokens)?;
        self.step(E2eStep::Conformance, Self::conformance)?;
        self.step(E2eStep::Equality, Self::equality)?;
        self.step(E2eStep::Tickets, Self::tampered_tickets)?;
        self.step(E2eStep::Refusals, Self::refusals)?;
        if let Some(beside) = beside {
            self.step(E2eStep::Churn, |run| run.churn(&beside))?;
        }
        self.look("nothing is left in flight", |run| Ok(run.in_flight()))
    }

    /// Boots everything; the second decode engine, which was started by hand, if there is one.
    fn boot(&mut self) -> Result<Option<HandStarted>> {
        self.cluster.start_router("split")?;
        self.cluster.launch(&PREFILL_0, 9101)?;
        let beside = match self.args.engine {
            EngineKind::Vllm => {
                self.cluster.launch(&DECODE_0, 9102)?;
                self.cluster.start_engine(AGGREGATED)?;
                let second = (!self.args.smoke).then_some((DECODE_1, 9103));
                second.map(|(engine, port)| self.start_beside(engine, port))
            }
            // Both ways to attach, with one engine less. What cannot be split is for the one that serves whole requests: the
            // engines of a pair refuse them.
            EngineKind::Sglang => {
                self.start_beside(DECODE_0, 9102)?;
                self.start_beside(AGGREGATED, 9103)?;
                None
            }
        };
        let mut engines = vec![PREFILL_0, AGGREGATED];
        engines.extend(self.decode_engines());
        self.cluster.wait_until_ready(&engines)?;
        beside.transpose()
    }

    /// Starts an engine by hand, and its sidecar at once, so that it must wait for its engine.
    fn start_beside(&mut self, engine: Engine, port: u16) -> Result<HandStarted> {
        let started = self.cluster.start_engine(engine)?;
        self.cluster.attach(&started, engine.name, port)?;
        Ok(started)
    }

    fn decode_engines(&self) -> Vec<Engine> {
        if self.args.smoke || self.args.engine == EngineKind::Sglang {
            vec![DECODE_0]
        } else {
            vec![DECODE_0, DECODE_1]
        }
    }

    /// The engines against the recordings that the emulated engine is measured by. Engines of other flags, and one that
    /// dies, are launched in the whole proof only.
    fn conformance(&mut self) -> Result<Outcome> {
        let mut suite = Command::new(workspace::release_binary(CONFORMANCE));
        suite.args(["--json", "--model", MODEL]);
        for (role, engine) in [("prefill", PREFILL_0), ("decode", DECODE_0)] {
            suite.args([&format!("--{role}"), &engine.url()]);
            let side_channel = format!("127.0.0.1:{}", engine.meeting_port);
            suite.args([&format!("--{role}-side-channel"), &side_channel]);
        }
        suite.args(["--aggregated", &AGGREGATED.url()]);
        if !self.args.smoke {
            for case in LAUNCHED_CASES {
                suite.args(["--launch-for", case]);
            }
            suite.arg("--logs").arg(self.cluster.logs());
            suite.envs(self.cluster.installation().environment(&AGGREGATED));
            suite
                .arg("--")
                .args(self.cluster.installation().bare_command());
        }
        Client::start_program("conformance", &mut suite)?.finish()
    }

    /// Split answers against the aggregated engine's.
    fn equality(&mut self) -> Result<Outcome> {
        let [whole, smoke] = requests(self.args.engine);
        let usual = if self.args.smoke { smoke } else { whole };
        let requests = self.args.requests.unwrap_or(usual);
        let mut arguments = self.reference_arguments();
        arguments.extend(["--requests".to_owned(), requests.to_string()]);
        arguments.extend([
            "--concurrency".to_owned(),
            self.args.concurrency.to_string(),
        ]);
        for engine in self.decode_engines() {
            arguments.extend(["--decode".to_owned(), engine.url()]);
        }
        self.client(
            &format!("{requests} greedy requests, three times"),
            "equality.py",
            &arguments,
        )
    }

    /// What clients must not send, and that the engines live on.
    fn refusals(&mut self) -> Result<Outcome> {
        let recordings = workspace::root().join("integration/recordings/vllm/refused");
        let mut arguments = router_arguments();
        arguments.extend(["--recordings".to_owned(), recordings.display().to_string()]);
        let alive: Vec<String> = match self.args.engine {
            EngineKind::Vllm => {
                let engines = [PREFILL_0].into_iter().chain(self.decode_engines());
                engines.map(|engine| engine.url()).collect()
            }
            // Neither engine of a pair answers alone.
            EngineKind::Sglang => vec![ROUTER.to_owned()],
        };
        for url in alive {
            arguments.extend(["--engine".to_owned(), url]);
        }
        self.client("refusals", "refusals.py", &arguments)
    }

    /// What nobody must be able to make a sidecar do.
    fn tampered_tickets(&mut self) -> Result<Outcome> {
        let mut probe = Command::new(workspace::release_binary(TICKET_PROBE));
        probe.args(["--prefill", &self.cluster.sidecar_url("prefill-0")?]);
        probe.args(["--decode", &self.cluster.sidecar_url("decode-0")?]);
        probe.args(["--model", MODEL]);
        self.probe("ticket-probe", &mut probe)
    }

    /// The engine's own tokens against those that its files give, and predicted cache hits against reported ones.
    fn tokens(&mut self) -> Result<Outcome> {
        let mut probe = Command::new(workspace::release_binary(TOKEN_PROBE));
        probe.args(["--engine", &AGGREGATED.url()]);
        probe.args(["--router", ROUTER, "--model", MODEL]);
        let model = self.cluster.installation().model_directory();
        probe.arg("--model-dir").arg(model);
        if self.args.smoke {
            probe.args(["--chats", "100", "--sessions", "3"]);
        }
        self.probe("token-probe", &mut probe)
    }

    /// A program of which each line that it prints is something that held; what does not hold ends it.
    fn probe(&self, name: &str, probe: &mut Command) -> Result<Outcome> {
        let printed = self.cluster.run_beside(name, probe, PROBE_BOUND)?;
        let held = |line: &str| Check {
            name: line.to_owned(),
            ok: true,
            detail: String::new(),
        };
        Ok(Outcome {
            checks: printed.lines().map(held).collect(),
            ..Outcome::default()
        })
    }

    /// Runs a step, if it is wanted, and keeps its result; an error means that going on is pointless.
    fn step(
        &mut self,
        step: E2eStep,
        run: impl FnOnce(&mut Self) -> Result<Outcome>,
    ) -> Result<()> {
        if self.wants(step) {
            return self.look(step.title(), run);
        }
        Ok(())
    }

    fn wants(&self, step: E2eStep) -> bool {
        let E2eArgs {
            engine,
            smoke,
            only,
            faults,
            ..
        } = self.args;
        match step {
            _ if !step.is_for(*engine) => false,
            // Each boot of an engine is most of what the short cut takes.
            E2eStep::View if *smoke && only.is_empty() => *engine == EngineKind::Vllm,
            E2eStep::Faults if *faults => true,
            _ if only.is_empty() => !faults,
            _ => only.contains(&step),
        }
    }

    fn look(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&mut Self) -> Result<Outcome>,
    ) -> Result<()> {
        let started = Instant::now();
        let outcome = run(self);
        self.report.add(name, started.elapsed(), outcome);
        self.cluster
            .check_running()
            .with_context(|| format!("after the step {name:?}"))
    }

    fn client(&self, title: &str, name: &str, arguments: &[String]) -> Result<Outcome> {
        client::run(
            title,
            &self.cluster.python(),
            &engines::client(name),
            arguments,
        )
    }

    fn reference_arguments(&self) -> Vec<String> {
        let mut arguments = router_arguments();
        arguments.extend(["--aggregated".to_owned(), AGGREGATED.url()]);
        arguments.extend(["--engine-kind", self.args.engine.folder()].map(str::to_owned));
        arguments
    }
}

fn router_arguments() -> Vec<String> {
    ["--router", ROUTER, "--model", MODEL]
        .map(str::to_owned)
        .into()
}
