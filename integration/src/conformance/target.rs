//! The engines that a suite runs against: some that run already, and others that can be launched.
//!
//! An emulated engine takes vLLM's own command line, so one way of launching serves both.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::http::{self, Request};
use crate::ports;

mod setup;

pub use self::setup::Setup;

/// What an engine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Produces KV.
    Prefill,
    /// Consumes KV.
    Decode,
    /// Everything alone.
    Aggregated,
}

impl Role {
    /// Its name, as topics and engine ids have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Aggregated => "aggregated",
        }
    }
}

/// Where an engine can be reached.
#[derive(Debug, Clone)]
pub struct Place {
    /// Base URL.
    pub base: String,
    /// Its connector's side channel, `host:port`.
    pub side_channel: Option<String>,
}

impl Place {
    /// The address behind the base URL.
    pub fn address(&self) -> Result<SocketAddr, String> {
        let host = self
            .base
            .trim_start_matches("http://")
            .trim_end_matches('/');
        host.parse()
            .map_err(|_| format!("{} names no address", self.base))
    }
}

/// How engines are launched.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program and its first arguments, such as `--model DIR`.
    pub words: Vec<String>,
    /// Environment besides the parent's.
    pub environment: Vec<(String, String)>,
    /// A LoRA adapter that the model takes, if there is one.
    pub adapter: Option<PathBuf>,
    /// Where sockets go. A short path: that of a socket may have 107 bytes.
    pub sockets: PathBuf,
    /// Where logs go.
    pub logs: PathBuf,
    /// Booting takes at most this long.
    pub boot_bound: Duration,
    /// The only cases that engines are launched for; `None` for all.
    pub only_for: Option<Vec<String>>,
}

/// A running process of a launcher.
#[derive(Debug)]
struct Process {
    child: Child,
    log: PathBuf,
}

/// Ending by itself takes a real engine some seconds.
const END_BOUND: Duration = Duration::from_secs(20);

impl Process {
    fn signal(&self, signal: Signal) {
        // Its own group: an engine is several processes. That it has ended already is no failure.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let _ = http::until("an engine ends", END_BOUND, || {
            self.has_ended().then_some(())
        });
        self.kill();
    }
}

/// An engine that was launched here, and ends with this.
#[derive(Debug)]
pub struct Launched {
    /// Where it is.
    pub place: Place,
    process: Process,
    command: Launch,
}

#[derive(Debug, Clone)]
struct Launch {
    words: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    boot_bound: Duration,
}

impl Launch {
    fn start(&self) -> Result<Process, String> {
        let failed = |error: std::io::Error| format!("{} cannot start: {error}", self.words[0]);
        let log = File::create(&self.log).map_err(failed)?;
        let child = Command::new(&self.words[0])
            .args(&self.words[1..])
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(Process {
            child,
            log: self.log.clone(),
        })
    }

    fn boot(&self, place: &Place) -> Result<Process, String> {
        let mut process = self.start()?;
        let health = Request::get("/health");
        let ready = http::until("an engine boots", self.boot_bound, || {
            let healthy = http::ask_within(&place.base, &health, Duration::from_secs(2));
            let healthy = healthy.is_ok_and(|answer| answer.status == 200);
            (healthy || process.has_ended()).then_some(healthy)
        });
        match ready {
            Ok(true) => Ok(process),
            Ok(false) => Err(format!("an engine ended at once: {}", process.log_tail())),
            Err(late) => Err(format!("{late}: {}", process.log_tail())),
        }
    }
}

impl Launched {
    /// Ends it as the kernel ends what is out of memory.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again with the very same words, and with another `engine_id` if one is given.
    pub fn start_again(&mut self, engine_id: Option<&str>) -> Result<(), String> {
        if let Some(engine_id) = engine_id {
            setup::rename(&mut self.command.words, engine_id);
        }
        self.process = self.command.boot(&self.place)?;
        Ok(())
    }
}

/// Why a case cannot be run.
#[derive(Debug, Clone)]
pub enum Obstacle {
    /// The target is not made for it.
    Lacks(String),
    /// It should be, and something went wrong.
    Failed(String),
}

/// All engines of a target.
#[derive(Debug)]
pub struct Target {
    /// The name that the model is served under.
    pub model: String,
    running: BTreeMap<Role, Place>,
    launcher: Option<Launcher>,
    launched: BTreeMap<(Setup, Role), Launched>,
    launches: usize,
    case: String,
}

impl Target {
    /// Engines that run already, and a way to launch others.
    pub fn new(model: &str, running: BTreeMap<Role, Place>, launcher: Option<Launcher>) -> Self {
        Self {
            model: model.to_owned(),
            running,
            launcher,
            launched: BTreeMap::new(),
            launches: 0,
            case: String::new(),
        }
    }

    /// What is asked for from now on is for this case.
    pub fn begin(&mut self, case: &str) {
        case.clone_into(&mut self.case);
    }

    /// True if such an engine runs already and was not launched for this suite with the recorded flags.
    pub fn is_given(&self, setup: Setup, role: Role) -> bool {
        setup.fits_a_running_engine() && self.running.contains_key(&role)
    }

    /// An engine that cases share.
    pub fn engine(&mut self, setup: Setup, role: Role) -> Result<Place, Obstacle> {
        if let Some(place) = self
            .running
            .get(&role)
            .filter(|_| setup.fits_a_running_engine())
        {
            return Ok(place.clone());
        }
        if !self.launched.contains_key(&(setup, role)) {
            let launched = self.launch(setup, role)?;
            self.launched.insert((setup, role), launched);
        }
        Ok(self.launched[&(setup, role)].place.clone())
    }

    /// An engine of a case's own.
    pub fn launch(&mut self, setup: Setup, role: Role) -> Result<Launched, Obstacle> {
        let Some(launcher) = &self.launcher else {
            let lacks = format!("needs an engine of its own ({setup:?}, {})", role.name());
            return Err(Obstacle::Lacks(lacks));
        };
        let only = launcher.only_for.as_ref();
        if only.is_some_and(|only| !only.contains(&self.case)) {
            let lacks = format!("no engine is launched for it ({setup:?}, {})", role.name());
            return Err(Obstacle::Lacks(lacks));
        }
        self.launches += 1;
        let number = self.launches;
        let (place, command) = command(launcher, setup, role, &self.model, number)?;
        let process = command.boot(&place).map_err(Obstacle::Failed)?;
        Ok(Launched {
            place,
            process,
            command,
        })
    }

    /// Ends the shared engines of a setup.
    pub fn end(&mut self, setup: Setup) {
        self.launched.retain(|(of, _), _| *of != setup);
    }
}

fn command(
    launcher: &Launcher,
    setup: Setup,
    role: Role,
    model: &str,
    number: usize,
) -> Result<(Place, Launch), Obstacle> {
    let (address, side_channel) = (ports::free(), ports::free());
    let mut words = launcher.words.clone();
    let port = address.port().to_string();
    let own = [
        "--host",
        "127.0.0.1",
        "--port",
        &port,
        "--served-model-name",
        model,
    ];
    words.extend(own.map(str::to_owned));
    let adapter = launcher.adapter.as_deref();
    let sockets = setup::Sockets::new(&launcher.sockets, number);
    words.extend(
        setup
            .flags(role, adapter, &sockets, number)
            .map_err(Obstacle::Lacks)?,
    );
    let mut environment = launcher.environment.clone();
    let host = side_channel.ip().to_string();
    environment.push(("VLLM_NIXL_SIDE_CHANNEL_HOST".to_owned(), host));
    let port = side_channel.port().to_string();
    environment.push(("VLLM_NIXL_SIDE_CHANNEL_PORT".to_owned(), port));
    environment.extend(setup.environment());
    let place = Place {
        base: format!("http://{address}"),
        side_channel: Some(side_channel.to_string()),
    };
    let log = launcher.logs.join(format!("launched-{number}.log"));
    let launch = Launch {
        words,
        environment,
        log,
        boot_bound: launcher.boot_bound,
    };
    Ok((place, launch))
}

/// What the engine at `base` says about its event sockets: endpoint and replay endpoint of a rank.
pub fn event_sockets(base: &str, rank: u64) -> Result<(String, String), String> {
    let answer = http::ask(base, &Request::get("/kv_event_sources"))?;
    let sources = answer.json().cloned().unwrap_or_else(|| json!({}));
    let socket = |key: &str| -> Result<String, String> {
        let value: &Value = &sources[rank.to_string()][key];
        let value = value.as_str().ok_or(format!("no {key} in {sources}"))?;
        Ok(value.replace('*', "127.0.0.1"))
    };
    Ok((socket("endpoint")?, socket("replay_endpoint")?))
}
