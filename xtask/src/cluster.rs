//! Engines, sidecars and a router of one run, all on 127.0.0.1 inside the run's namespaces.
//!
//! Ports are fixed: nobody else is there. The first prefill and decode engines are launched by their sidecars; another
//! one is started by hand and gets its sidecar beside it, so both ways to attach are used.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::engines::{BOOT_BOUND, ByHand, Engine, Installation, Role};
use crate::process::Process;
use crate::progress::Progress;
use crate::{http, workspace};

/// What routers and sidecars of a run share. Nobody else can reach them.
pub(crate) const TOKEN: &str = "the-token-of-this-run-alone";

/// Registration and state changes take a heartbeat or two.
const FLEET_BOUND: Duration = Duration::from_mins(1);

/// A drain ends when the last request and the last lease do; a sidecar itself allows two minutes.
const DRAIN_BOUND: Duration = Duration::from_secs(150);

/// Base URL of the router.
pub(crate) const ROUTER: &str = "http://127.0.0.1:8000";
const ROUTER_ADDRESS: &str = "127.0.0.1:8000";

pub(crate) const PREFILL_0: Engine = Engine {
    name: "prefill-0",
    role: Role::Prefill,
    port: 8201,
    meeting_port: 5601,
};
pub(crate) const DECODE_0: Engine = Engine {
    name: "decode-0",
    role: Role::Decode,
    port: 8202,
    meeting_port: 5602,
};
pub(crate) const DECODE_1: Engine = Engine {
    name: "decode-1",
    role: Role::Decode,
    port: 8203,
    meeting_port: 5603,
};
pub(crate) const AGGREGATED: Engine = Engine {
    name: "aggregated",
    role: Role::Aggregated,
    port: 8204,
    meeting_port: 5604,
};

/// An engine that was started by hand.
pub(crate) struct HandStarted {
    engine: Engine,
    /// Flags of a sidecar beside it.
    beside: Vec<String>,
}

/// A sidecar: the worker that it makes of an engine, and where it listens.
struct Sidecar {
    worker: String,
    port: u16,
}

impl Sidecar {
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// `GET /fleet`, as far as a run looks at it.
#[derive(Deserialize)]
struct Fleet {
    workers: Vec<Worker>,
}

#[derive(Deserialize)]
struct Worker {
    id: String,
    state: String,
}

/// All processes of a run; dropping it ends them.
pub(crate) struct Cluster {
    installation: Installation,
    logs: PathBuf,
    sidecars: Vec<(Sidecar, Process)>,
    router: Option<Process>,
    engines: Vec<Process>,
}

impl Cluster {
    /// Nothing runs yet.
    pub(crate) fn new(installation: Installation, logs: &Path) -> Self {
        Self {
            installation,
            logs: logs.to_owned(),
            sidecars: Vec::new(),
            router: None,
            engines: Vec::new(),
        }
    }

    /// Starts the router; `force` is its `--force`.
    pub(crate) fn start_router(&mut self, force: &str) -> Result<()> {
        let mut command = Command::new(workspace::release_binary("baton-router"));
        command
            .args(["--listen", ROUTER_ADDRESS, "--force", force])
            .env("BATON_TOKEN", TOKEN);
        self.router = Some(Process::start("router", &mut command, &self.logs)?);
        Ok(())
    }

    /// Starts a sidecar that launches its engine.
    pub(crate) fn launch(&mut self, engine: &Engine, port: u16) -> Result<()> {
        let sidecar = Sidecar {
            worker: engine.name.to_owned(),
            port,
        };
        let mut command = self.sidecar_command(&sidecar);
        command.arg("--").args(self.installation.launched(engine));
        command.envs(self.installation.environment(engine));
        self.start_sidecar(sidecar, &mut command)
    }

    /// Starts an engine without a sidecar.
    pub(crate) fn start_engine(&mut self, engine: Engine) -> Result<HandStarted> {
        let ByHand { command, beside } = self.installation.by_hand(&engine)?;
        let (program, arguments) = command
            .split_first()
            .context("an engine has an empty command")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(self.installation.environment(&engine));
        self.engines.push(Process::start(
            &format!("engine-{}", engine.name),
            &mut command,
            &self.logs,
        )?);
        Ok(HandStarted { engine, beside })
    }

    /// Starts a sidecar beside an engine that was started by hand, as worker `worker`.
    pub(crate) fn attach(&mut self, started: &HandStarted, worker: &str, port: u16) -> Result<()> {
        let sidecar = Sidecar {
            worker: worker.to_owned(),
            port,
        };
        let mut command = self.sidecar_command(&sidecar);
        command.args(["--engine", &started.engine.url()]);
        command.args(&started.beside);
        self.start_sidecar(sidecar, &mut command)
    }

    fn sidecar_command(&self, sidecar: &Sidecar) -> Command {
        let mut command = Command::new(self.installation.sidecar());
        command.args(["--worker-id", &sidecar.worker]);
        command.args(["--listen", &format!("127.0.0.1:{}", sidecar.port)]);
        command.args(["--router", ROUTER]).env("BATON_TOKEN", TOKEN);
        command
    }

    fn start_sidecar(&mut self, sidecar: Sidecar, command: &mut Command) -> Result<()> {
        let process = Process::start(&format!("sidecar-{}", sidecar.worker), command, &self.logs)?;
        self.sidecars.push((sidecar, process));
        Ok(())
    }

    /// Waits until these engines answer and the router has every worker ready.
    pub(crate) fn wait_until_ready(&mut self, engines: &[Engine]) -> Result<()> {
        let mut progress = Progress::start("engine boot");
        for engine in engines {
            progress.note(&format!("waiting for {}", engine.name));
            let ready = format!("{}/{}", engine.url(), self.installation.readiness());
            http::wait_for(&format!("engine {} boots", engine.name), BOOT_BOUND, || {
                self.check_running()?;
                Ok(http::is_ok(&ready).then_some(()))
            })?;
        }
        let workers: Vec<String> = self
            .sidecars
            .iter()
            .map(|(sidecar, _)| sidecar.worker.clone())
            .collect();
        for worker in workers {
            progress.note(&format!("waiting for worker {worker}"));
            self.wait_until_worker_is_ready(&worker)?;
        }
        http::wait_for("the router is ready", FLEET_BOUND, || {
            self.check_running()?;
            Ok(http::is_ok(&format!("{ROUTER}/readyz")).then_some(()))
        })?;
        progress.done("ready");
        Ok(())
    }

    /// Waits until the router may send a worker requests.
    pub(crate) fn wait_until_worker_is_ready(&mut self, worker: &str) -> Result<()> {
        self.wait_for_state(worker, "ready", |state| state == Some("ready"), FLEET_BOUND)
    }

    /// Waits until the router's view of a worker is as wanted; `None`: it does not know that worker.
    fn wait_for_state(
        &mut self,
        worker: &str,
        name: &str,
        wanted: impl Fn(Option<&str>) -> bool,
        bound: Duration,
    ) -> Result<()> {
        http::wait_for(
            &format!("the router has worker {worker} {name}"),
            bound,
            || {
                self.check_running()?;
                let fleet: Fleet = http::get_json(&format!("{ROUTER}/fleet"), Some(TOKEN))?;
                let state = fleet
                    .workers
                    .iter()
                    .find(|known| known.id == worker)
                    .map(|known| known.state.as_str());
                Ok(wanted(state).then_some(()))
            },
        )
    }

    /// Tells a worker to drain through its sidecar's API, waits until it has left the fleet, then ends its sidecar.
    pub(crate) fn drain(&mut self, worker: &str) -> Result<()> {
        let (sidecar, mut process) = self.take(worker)?;
        let status = http::post(&format!("{}/baton/v1/drain", sidecar.url()), TOKEN)?;
        ensure!(
            status == 202,
            "drain of {worker} was answered with {status}"
        );
        self.wait_until_gone(worker, &process)?;
        process
            .terminate(DRAIN_BOUND)
            .with_context(|| process.log_tail())?;
        Ok(())
    }

    /// Ends a worker by SIGTERM to its sidecar: it drains, and a launched engine ends with it.
    pub(crate) fn terminate(&mut self, worker: &str) -> Result<()> {
        let (_, mut process) = self.take(worker)?;
        process
            .terminate(DRAIN_BOUND)
            .with_context(|| process.log_tail())?;
        self.wait_until_gone(worker, &process)
    }

    fn wait_until_gone(&mut self, worker: &str, process: &Process) -> Result<()> {
        self.wait_for_state(
            worker,
            "gone",
            |state| state.is_none_or(|state| state == "gone"),
            DRAIN_BOUND,
        )
        .with_context(|| process.log_tail())
    }

    /// Takes a worker out of those that must keep running.
    fn take(&mut self, worker: &str) -> Result<(Sidecar, Process)> {
        let position = self
            .sidecars
            .iter()
            .position(|(sidecar, _)| sidecar.worker == worker);
        Ok(self
            .sidecars
            .remove(position.with_context(|| format!("no worker {worker} runs"))?))
    }

    /// Base URL of a worker's sidecar.
    pub(crate) fn sidecar_url(&self, worker: &str) -> Result<String> {
        let found = self
            .sidecars
            .iter()
            .find(|(sidecar, _)| sidecar.worker == worker);
        found
            .map(|(sidecar, _)| sidecar.url())
            .with_context(|| format!("no worker {worker} runs"))
    }

    /// Runs a program that knows the fleet's secret to its successful end; what it printed.
    pub(crate) fn run_beside(
        &self,
        name: &str,
        command: &mut Command,
        bound: Duration,
    ) -> Result<String> {
        Process::start(name, command.env("BATON_TOKEN", TOKEN), &self.logs)?.finish(bound)
    }

    /// Base URLs of the router and of every sidecar, with their names.
    pub(crate) fn baton_processes(&self) -> Vec<(String, String)> {
        let sidecars = self
            .sidecars
            .iter()
            .map(|(sidecar, _)| (format!("sidecar {}", sidecar.worker), sidecar.url()));
        std::iter::once(("router".to_owned(), ROUTER.to_owned()))
            .chain(sidecars)
            .collect()
    }

    /// The engine that runs here.
    pub(crate) fn installation(&self) -> &Installation {
        &self.installation
    }

    /// Where logs are.
    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }

    /// The Python with the official client.
    pub(crate) fn python(&self) -> PathBuf {
        self.installation.python()
    }

    /// Fails, with the end of its log, if a process that should run has ended.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        self.processes().try_for_each(Process::check_running)
    }

    /// The ends of all logs, for a run that failed.
    pub(crate) fn log_tails(&mut self) -> Vec<String> {
        self.processes().map(|process| process.log_tail()).collect()
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        let sidecars = self.sidecars.iter_mut().map(|(_, process)| process);
        self.router
            .iter_mut()
            .chain(sidecars)
            .chain(&mut self.engines)
    }
}
