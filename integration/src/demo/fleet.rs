//! A router and workers of the demo: emulated engines with a sidecar beside each, all on 127.0.0.1 at free ports.
//!
//! Engines are started here and not by their sidecars, so that both halves of a worker can be killed at once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_daemon::fresh::hex_id;
use baton_daemon::http::{Client, ClientLimits, empty, small_body};
use baton_proto::call::path::DRAIN;
use http::header::AUTHORIZATION;
use http::{Method, Request};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::engine::{self, Commands, Engines, Place};
use super::pages::Pages;
use super::process::Process;
use crate::ports;

/// The model that all engines serve.
pub const MODEL: &str = "demo";

/// Longest time for anything of a fleet to happen. A drain waits for held KV, whose lease is half a minute.
const BOUND: Duration = Duration::from_secs(60);

/// How often the router is asked meanwhile.
const GLANCE: Duration = Duration::from_millis(50);

/// What an engine is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Computes prompts.
    Prefill,
    /// Generates, from KV of others or its own.
    Decode,
    /// Both, alone.
    Aggregated,
}

impl Role {
    /// How workers of it are called.
    fn word(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Aggregated => "aggregated",
        }
    }
}

/// An engine and its sidecar.
#[derive(Debug)]
struct Worker {
    id: String,
    engine: Process,
    engine_url: String,
    sidecar: Process,
    sidecar_url: String,
}

/// A router and its workers; dropping it kills them.
#[derive(Debug)]
pub struct Fleet {
    engines: Engines,
    binaries: PathBuf,
    logs: PathBuf,
    token: String,
    client: Client,
    router: Process,
    router_url: String,
    workers: Vec<Worker>,
}

impl Fleet {
    /// Starts a router; `force` is its `--force`. Binaries are expected beside this program's own.
    pub fn start(name: &str, force: &str, engines: Engines, logs: &Path) -> Result<Self> {
        let this = std::env::current_exe().context("could not find this program's own file")?;
        let binaries = this.parent().unwrap_or(Path::new("."));
        let token = hex_id();
        let address = ports::free();
        let mut command = Command::new(binaries.join("baton-router"));
        command
            .args(["--listen", &address.to_string(), "--force", force])
            .env("BATON_TOKEN", &token);
        let router = Process::start(&format!("router-{name}"), &command, logs)?;
        Ok(Self {
            engines,
            binaries: binaries.to_owned(),
            logs: logs.to_owned(),
            token,
            client: Client::new(ClientLimits {
                connect: Duration::from_secs(2),
                idle: Duration::from_secs(5),
            }),
            router,
            router_url: url(address),
            workers: Vec::new(),
        })
    }

    /// Base URL of the router.
    pub fn router(&self) -> &str {
        &self.router_url
    }

    /// Starts an engine and its sidecar; the worker's id.
    pub fn add(&mut self, role: Role, number: usize) -> Result<String> {
        let id = format!("{}-{number}", role.word());
        let place = Place {
            http: ports::free(),
            meeting: ports::free(),
            folder: self.logs.clone(),
            id: id.clone(),
        };
        let listen = ports::free();
        let kind = self.engines.kind(number);
        let Commands {
            engine,
            mut sidecar,
        } = engine::commands(kind, role, &place, &self.binaries)?;
        sidecar
            .args(["--worker-id", &id, "--listen", &listen.to_string()])
            .args(["--router", &self.router_url])
            .env("BATON_TOKEN", &self.token);
        self.workers.push(Worker {
            engine: Process::start(&format!("engine-{id}"), &engine, &self.logs)?,
            engine_url: url(place.http),
            sidecar: Process::start(&format!("sidecar-{id}"), &sidecar, &self.logs)?,
            sidecar_url: url(listen),
            id: id.clone(),
        });
        Ok(id)
    }

    /// Waits until the router has every worker ready.
    pub async fn wait_until_ready(&mut self) -> Result<()> {
        let mut wanted: Vec<String> = self
            .workers
            .iter()
            .map(|worker| worker.id.clone())
            .collect();
        wanted.sort();
        self.wait_until("every worker is ready", |known| {
            let mut ready: Vec<&String> = known
                .iter()
                .filter(|worker| worker.state == "ready")
                .map(|worker| &worker.id)
                .collect();
            ready.sort();
            wanted.iter().all(|id| ready.contains(&id))
        })
        .await
    }

    /// Kills an engine and its sidecar in the middle of whatever they do.
    pub async fn kill(&mut self, id: &str) -> Result<()> {
        let mut worker = self.take(id)?;
        worker.engine.kill()?;
        worker.sidecar.kill()?;
        worker.engine.ended().await?;
        worker.sidecar.ended().await?;
        Ok(())
    }

    /// Takes a worker out as an operator does: no new work, the rest is finished, it leaves, its processes end.
    pub async fn drain(&mut self, id: &str) -> Result<()> {
        let url = format!("{}{DRAIN}", self.worker(id)?.sidecar_url);
        let (status, _) = self.call(Method::POST, &url).await?;
        ensure!(
            status == 202,
            "the drain of {id} was answered with {status}"
        );
        self.wait_until("a drained worker is gone", |known| {
            known.iter().all(|worker| worker.id != id)
        })
        .await?;
        self.kill(id).await
    }

    /// Metrics of all engines, if they are vLLM's: others have other names for less, and TensorRT-LLM tells them once only.
    pub async fn engine_pages(&self) -> Result<Pages> {
        let told = self
            .workers
            .iter()
            .filter(|_| self.engines == Engines::Vllm);
        let urls = told.map(|worker| worker.engine_url.clone());
        Pages::read(&self.client, urls).await
    }

    /// Metrics of the router.
    pub async fn router_page(&self) -> Result<Pages> {
        Pages::read(&self.client, std::iter::once(self.router_url.clone())).await
    }

    /// Fails, with the end of its log, if a process that should run has ended.
    pub fn check_running(&mut self) -> Result<()> {
        self.router.check_running()?;
        self.workers.iter_mut().try_for_each(|worker| {
            worker.engine.check_running()?;
            worker.sidecar.check_running()
        })
    }

    async fn wait_until(&mut self, what: &str, holds: impl Fn(&[Known]) -> bool) -> Result<()> {
        let deadline = Instant::now() + BOUND;
        loop {
            self.check_running()?;
            // A router that has just been started does not listen yet.
            if let Ok(known) = self.known().await
                && holds(&known)
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                let logs = self.logs.display();
                bail!(
                    "{what}: not within {} s; logs are in {logs}",
                    BOUND.as_secs()
                );
            }
            sleep(GLANCE).await;
        }
    }

    async fn known(&self) -> Result<Vec<Known>> {
        let (status, body) = self
            .call(Method::GET, &format!("{}/fleet", self.router_url))
            .await?;
        ensure!(status == 200, "the router answered {status}");
        let fleet: KnownFleet = serde_json::from_slice(&body)?;
        Ok(fleet.workers)
    }

    async fn call(&self, method: Method, url: &str) -> Result<(u16, bytes::Bytes)> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .body(empty())?;
        let response = self.client.send(request, Duration::from_secs(5)).await?;
        let status = response.status().as_u16();
        Ok((status, small_body(response.into_body()).await))
    }

    fn worker(&self, id: &str) -> Result<&Worker> {
        let found = self.workers.iter().find(|worker| worker.id == id);
        found.with_context(|| format!("no worker {id} runs"))
    }

    fn take(&mut self, id: &str) -> Result<Worker> {
        let at = self.workers.iter().position(|worker| worker.id == id);
        Ok(self
            .workers
            .remove(at.with_context(|| format!("no worker {id} runs"))?))
    }
}

/// `GET /fleet`, as far as the demo looks at it.
#[derive(Deserialize)]
struct KnownFleet {
    workers: Vec<Known>,
}

#[derive(Deserialize)]
struct Known {
    id: String,
    state: String,
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}
