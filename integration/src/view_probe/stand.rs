//! A router, a sidecar and a real engine, each of which can be ended and started again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::adapter;
use super::detour::{Detour, Ports};
use super::launch::{self, Endpoints};
use super::load::ADAPTER;
use super::look;
use super::subscriber::Subscriber;
use crate::ports;
use crate::real::engine::Kind;
use crate::real::http;
use crate::real::process::Process;

/// What router and sidecar share; nobody else can reach them.
pub const TOKEN: &str = "the-token-of-this-probe-alone";

/// The worker.
pub const WORKER: &str = "few-blocks";

/// Booting takes minutes on a busy machine.
const BOOT_BOUND: Duration = Duration::from_mins(20);

/// Registration and state changes take a heartbeat or two.
const FLEET_BOUND: Duration = Duration::from_mins(1);

/// What the stand is made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Which engine it is.
    pub kind: Kind,
    /// Folder of Baton's binaries.
    pub binaries: PathBuf,
    /// The engine's command; flags are added.
    pub engine: Vec<String>,
    /// The name that the engine serves its model under.
    pub model: String,
    /// Where logs go.
    pub logs: PathBuf,
    /// The engine's blocks, the null block included.
    pub blocks: u64,
    /// How many messages the engine keeps for replay; its own default if absent.
    pub buffer_steps: Option<u64>,
}

/// Who runs. Fields are dropped in this order.
pub struct Stand {
    parts: Parts,
    router_address: SocketAddr,
    sidecar_address: SocketAddr,
    engine_ports: Ports,
    /// The way from a sidecar beside the engine to it.
    pub detour: Detour,
    router: Option<Process>,
    sidecar: Option<Process>,
    engine: Option<Process>,
    starts: u32,
}

impl Stand {
    /// Nothing runs yet.
    pub fn new(parts: Parts) -> Result<Self> {
        if parts.kind == Kind::Vllm {
            adapter::make(&parts.logs.join(ADAPTER))?;
        }
        let engine_ports = Ports::free();
        Ok(Self {
            detour: Detour::open(parts.kind, engine_ports)?,
            parts,
            router_address: ports::free(),
            sidecar_address: ports::free(),
            engine_ports,
            router: None,
            sidecar: None,
            engine: None,
            starts: 0,
        })
    }

    /// Base URL of the router.
    pub fn router(&self) -> String {
        format!("http://{}", self.router_address)
    }

    /// Base URL of the sidecar.
    pub fn sidecar(&self) -> String {
        format!("http://{}", self.sidecar_address)
    }

    /// Base URL of the engine.
    pub fn engine(&self) -> String {
        format!("http://{}", self.engine_ports.http)
    }

    fn start(&mut self, name: &str, command: &mut Command) -> Result<Process> {
        self.starts += 1;
        let name = format!("view-{}-{name}", self.starts);
        Process::start(&name, command, &self.parts.logs)
    }

    fn binary(&self, name: &str) -> Command {
        let mut command = Command::new(self.parts.binaries.join(name));
        command.env("BATON_TOKEN", TOKEN);
        command
    }

    /// Starts a router. There is only one worker, and no plan but a local one.
    pub fn start_router(&mut self) -> Result<()> {
        let mut command = self.binary("baton-router");
        command.args(["--listen", &self.router_address.to_string()]);
        // What is not known for sure is not to be covered by guesses from what was sent.
        command.args(["--force", "local", "--approximate-ttl-s", "1"]);
        self.router = Some(self.start("router", &mut command)?);
        Ok(())
    }

    fn sidecar_command(&self) -> Command {
        let mut command = self.binary(self.parts.kind.sidecar());
        command.args(["--worker-id", WORKER]);
        command.args(["--listen", &self.sidecar_address.to_string()]);
        command.args(["--router", &self.router()]);
        command
    }

    /// Starts a sidecar beside the engine.
    pub fn start_sidecar(&mut self) -> Result<()> {
        let mut command = self.sidecar_command();
        command.args(["--engine", &format!("http://{}", self.detour.seen.http)]);
        self.sidecar = Some(self.start("sidecar", &mut command)?);
        Ok(())
    }

    /// Starts a sidecar that launches the engine, and has it tell of its cache, too.
    pub fn start_sidecar_with_engine(&mut self) -> Result<()> {
        let mut command = self.sidecar_command();
        command.arg("--").args(self.engine_words());
        self.sidecar = Some(self.start("sidecar-and-engine", &mut command)?);
        self.wait_for_engine()
    }

    /// Starts the engine and waits until it answers.
    pub fn start_engine(&mut self) -> Result<()> {
        let mut words = self.engine_words();
        words.extend(launch::events(&self.parts, &self.engine_ports));
        let (program, arguments) = words.split_first().context("there is no engine command")?;
        let mut command = Command::new(program);
        command.args(arguments);
        self.engine = Some(self.start("engine", &mut command)?);
        self.wait_for_engine()
    }

    fn wait_for_engine(&mut self) -> Result<()> {
        let (kind, engine) = (self.parts.kind, self.engine());
        http::until("the engine boots", BOOT_BOUND, || {
            self.check_running()?;
            Ok(kind.serves(&engine).then_some(()))
        })
    }

    fn engine_words(&self) -> Vec<String> {
        launch::words(&self.parts, self.engine_ports.http)
    }

    /// Waits until the router sends the worker requests.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let router = self.router();
        http::until("the router has the worker ready", FLEET_BOUND, || {
            self.check_running()?;
            Ok(look::is_ready(&router, TOKEN, WORKER)?.then_some(()))
        })
    }

    /// Waits until the router sends the worker no requests.
    pub fn wait_until_not_ready(&mut self) -> Result<()> {
        let router = self.router();
        http::until("the router has the worker not ready", FLEET_BOUND, || {
            self.check_running()?;
            Ok((!look::is_ready(&router, TOKEN, WORKER)?).then_some(()))
        })
    }

    /// An own subscriber to the engine's events, where the engine itself says that they are, and not by the detour.
    pub fn subscribe(&self) -> Result<Subscriber> {
        let Endpoints { events, replay } = launch::endpoints(self.parts.kind, &self.engine())?;
        Subscriber::join(&events, &replay)
    }

    /// Kills the router.
    pub fn kill_router(&mut self) {
        self.router = None;
    }

    /// Kills the sidecar.
    pub fn kill_sidecar(&mut self) {
        self.sidecar = None;
    }

    /// Kills the engine.
    pub fn kill_engine(&mut self) {
        self.engine = None;
    }

    /// Ends the sidecar as an operator does.
    pub fn end_sidecar(&mut self) -> Result<()> {
        self.sidecar.take().map_or(Ok(()), Process::end)
    }

    /// Empties the engine's prefix cache; with `running`, also while requests run.
    pub fn reset_prefix_cache(&self, running: bool) -> Result<()> {
        launch::reset(self.parts.kind, &self.engine(), running)
    }

    fn check_running(&mut self) -> Result<()> {
        let all = [&mut self.router, &mut self.sidecar, &mut self.engine];
        all.into_iter()
            .flatten()
            .try_for_each(Process::check_running)
    }
}
