//! Engines, their sidecars and a router, each of which can be frozen, killed and started again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::look;
use super::seat::{Part, Seat};
use crate::ports;
use crate::real::engine::{Doing, Kind};
use crate::real::http;
use crate::real::process::Process;

/// What router and sidecars share; nobody else can reach them.
pub const TOKEN: &str = "the-token-of-this-probe-alone";

/// How long the prefill engine holds KV that nobody fetches, in seconds.
pub const LEASE_S: u64 = 6;

/// Booting several engines takes minutes on a busy machine.
pub const BOOT_BOUND: Duration = Duration::from_mins(20);

/// Registration and state changes take a heartbeat or two; an engine that was frozen has to be believed in again.
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
    /// The name that engines serve their model under.
    pub model: String,
    /// Where logs go.
    pub logs: PathBuf,
    /// Everything, or one prefill and one decode engine.
    pub whole: bool,
}

/// Who sits where. The first two are always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The prefill engine.
    Prefill,
    /// The decode engine of most rows: a request whose KV it cannot fetch fails.
    Decode,
    /// Another one, which joins the fleet late. vLLM's computes what it cannot fetch.
    OtherDecode,
    /// Answers alone.
    Reference,
}

/// Who runs.
pub struct Stand {
    /// What it is made of.
    pub parts: Parts,
    router_at: SocketAddr,
    router: Option<Process>,
    seats: Vec<(Who, Seat)>,
    starts: u32,
}

impl Stand {
    /// Nothing runs yet.
    pub fn new(parts: Parts) -> Self {
        let mut seats = vec![
            (Who::Prefill, Seat::new("prefill", Part::Prefill, "fail")),
            (Who::Decode, Seat::new("decode", Part::Decode, "fail")),
        ];
        if parts.whole {
            let other = Seat::new("other-decode", Part::Decode, "recompute");
            seats.push((Who::OtherDecode, other));
        }
        // SGLang's decode engine answers nobody alone.
        if parts.whole || parts.kind == Kind::Sglang {
            let reference = Seat::new("reference", Part::Reference, "fail");
            seats.push((Who::Reference, reference));
        }
        Self {
            parts,
            router_at: ports::free(),
            router: None,
            seats,
            starts: 0,
        }
    }

    /// Boots all engines, and the router with prefill and decode.
    pub fn boot(&mut self) -> Result<()> {
        let all: Vec<Who> = self.seats.iter().map(|(who, _)| *who).collect();
        for who in &all {
            self.start_engine(*who)?;
        }
        self.start_router()?;
        for who in all {
            self.wait_for_engine(who)?;
        }
        self.start_sidecar(Who::Prefill)?;
        self.start_sidecar(Who::Decode)?;
        self.wait_until_ready(&[Who::Prefill, Who::Decode])
    }

    /// Where clients send requests.
    pub fn router_at(&self) -> SocketAddr {
        self.router_at
    }

    /// Base URL of the router.
    pub fn router_url(&self) -> String {
        format!("http://{}", self.router_at)
    }

    /// An engine and its sidecar.
    pub fn seat(&self, who: Who) -> Result<&Seat> {
        let mut seats = self.seats.iter();
        let found = seats.find(|(known, _)| *known == who);
        found
            .map(|(_, seat)| seat)
            .with_context(|| format!("{who:?} does not take part"))
    }

    /// A seat, to change it.
    pub fn seat_mut(&mut self, who: Who) -> Result<&mut Seat> {
        let mut seats = self.seats.iter_mut();
        let found = seats.find(|(known, _)| *known == who);
        found
            .map(|(_, seat)| seat)
            .with_context(|| format!("{who:?} does not take part"))
    }

    /// What somebody's engine is doing.
    pub fn doing(&self, who: Who) -> Result<Doing> {
        self.parts.kind.doing(&self.seat(who)?.engine_url())
    }

    /// Workers of which engine and sidecar run.
    pub fn workers(&self) -> impl Iterator<Item = (Who, &Seat)> {
        let runs = |seat: &Seat| seat.engine.is_some() && seat.sidecar.is_some();
        let seats = self.seats.iter().map(|(who, seat)| (*who, seat));
        seats.filter(move |(_, seat)| runs(seat))
    }

    /// The engine that says what is right.
    pub fn reference(&self) -> Result<&Seat> {
        self.seat(Who::Reference)
            .or_else(|_| self.seat(Who::Decode))
    }

    fn start(&mut self, name: &str, command: &mut Command) -> Result<Process> {
        self.starts += 1;
        let name = format!("fault-{}-{name}", self.starts);
        Process::start(&name, command, &self.parts.logs)
    }

    /// Starts the router, which splits whatever can be split and keeps nothing back: engines are to be given more than they have
    /// room for.
    pub fn start_router(&mut self) -> Result<()> {
        let mut command = Command::new(self.parts.binaries.join("baton-router"));
        command.env("BATON_TOKEN", TOKEN);
        command.args(["--listen", &self.router_at.to_string(), "--force", "split"]);
        command.args(["--max-queued", "0"]);
        self.router = Some(self.start("router", &mut command)?);
        Ok(())
    }

    /// Starts an engine; it is not ready yet.
    pub fn start_engine(&mut self, who: Who) -> Result<()> {
        let parts = self.parts.clone();
        let seat = self.seat(who)?;
        let mut command = seat.engine_command(&parts)?;
        let name = format!("engine-{}", seat.name);
        let engine = self.start(&name, &mut command)?;
        self.seat_mut(who)?.engine = Some(engine);
        Ok(())
    }

    /// Waits until an engine answers.
    pub fn wait_for_engine(&mut self, who: Who) -> Result<()> {
        let (kind, url) = (self.parts.kind, self.seat(who)?.engine_url());
        let what = format!("the engine of {who:?} boots");
        http::until(&what, BOOT_BOUND, || {
            self.check_running()?;
            Ok(kind.serves(&url).then_some(()))
        })
    }

    /// Starts a sidecar beside its engine.
    pub fn start_sidecar(&mut self, who: Who) -> Result<()> {
        let seat = self.seat(who)?;
        let mut command = seat.sidecar_command(&self.parts, &self.router_url());
        let name = format!("sidecar-{}", seat.name);
        let sidecar = self.start(&name, &mut command)?;
        self.seat_mut(who)?.sidecar = Some(sidecar);
        Ok(())
    }

    /// Waits until the router sends these workers requests.
    pub fn wait_until_ready(&mut self, workers: &[Who]) -> Result<()> {
        let router = self.router_url();
        for who in workers {
            let name = self.seat(*who)?.name;
            http::until(&format!("{name} is ready"), FLEET_BOUND, || {
                self.check_running()?;
                Ok(look::is_ready(&router, TOKEN, name)?.then_some(()))
            })?;
        }
        Ok(())
    }

    /// Waits until the router sends a worker no requests.
    pub fn wait_until_gone(&mut self, who: Who) -> Result<()> {
        let (router, name) = (self.router_url(), self.seat(who)?.name);
        http::until(&format!("{name} is gone"), FLEET_BOUND, || {
            self.check_running()?;
            Ok((!look::is_ready(&router, TOKEN, name)?).then_some(()))
        })
    }

    /// Lets whoever may be frozen go on.
    pub fn thaw_all(&self) -> Result<()> {
        let seats = self
            .seats
            .iter()
            .flat_map(|(_, seat)| [&seat.engine, &seat.sidecar]);
        let mut all = seats.chain([&self.router]).flatten();
        all.try_for_each(Process::thaw)
    }

    /// The router.
    pub fn router(&self) -> Result<&Process> {
        self.router.as_ref().context("the router does not run")
    }

    /// The engine of somebody.
    pub fn engine(&self, who: Who) -> Result<&Process> {
        let engine = self.seat(who)?.engine.as_ref();
        engine.with_context(|| format!("the engine of {who:?} does not run"))
    }

    /// The sidecar of somebody.
    pub fn sidecar(&self, who: Who) -> Result<&Process> {
        let sidecar = self.seat(who)?.sidecar.as_ref();
        sidecar.with_context(|| format!("the sidecar of {who:?} does not run"))
    }

    /// Boots an engine again, with the engine id that it has.
    pub fn reboot(&mut self, who: Who) -> Result<()> {
        self.kill_engine(who)?;
        self.start_engine(who)?;
        self.wait_for_engine(who)
    }

    /// Kills the router.
    pub fn kill_router(&mut self) {
        self.router = None;
    }

    /// Kills an engine.
    pub fn kill_engine(&mut self, who: Who) -> Result<()> {
        self.seat_mut(who)?.engine = None;
        Ok(())
    }

    /// Kills a sidecar.
    pub fn kill_sidecar(&mut self, who: Who) -> Result<()> {
        self.seat_mut(who)?.sidecar = None;
        Ok(())
    }

    /// Fails, with the end of its log, if somebody has ended who should run.
    pub fn check_running(&mut self) -> Result<()> {
        let seats = self
            .seats
            .iter_mut()
            .flat_map(|(_, seat)| [&mut seat.engine, &mut seat.sidecar]);
        let mut all = seats.chain([&mut self.router]).flatten();
        all.try_for_each(Process::check_running)
    }
}
