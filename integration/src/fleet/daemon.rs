//! A router's or a sidecar's process inside this one.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use baton_daemon::Exit;
use baton_router::args::RouterArgs;
use baton_sidecar_sglang::args::SglangArgs;
use baton_sidecar_sglang::engine::SglangEngine;
use baton_sidecar_trtllm::args::TrtllmArgs;
use baton_sidecar_trtllm::engine::TrtllmEngine;
use baton_sidecar_vllm::args::VllmArgs;
use baton_sidecar_vllm::engine::VllmEngine;
use clap::Parser;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::emulated::Kind;
use crate::wait::bounded;

/// Threads of each process.
const THREADS: usize = 2;

/// Longest that a process is kept from running.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A router's or a sidecar's whole process, but for its main.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    runtime: Option<Runtime>,
    stop: CancellationToken,
    ended: Option<JoinHandle<Result<(), Exit>>>,
}

impl Daemon {
    /// Starts it.
    pub fn start<F>(name: &str, body: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Result<(), Exit>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name(name)
            .enable_all()
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let ended = runtime.spawn(body(stop.clone()));
        Self {
            name: name.to_owned(),
            runtime: Some(runtime),
            stop,
            ended: Some(ended),
        }
    }

    /// Starts a router with this command line.
    pub fn router(name: &str, command_line: impl IntoIterator<Item = String>) -> Self {
        let args = RouterArgs::try_parse_from(command_line).unwrap();
        Self::start(name, |stop| baton_router::run::run(args, stop))
    }

    /// Starts the sidecar of an engine of this kind with this command line.
    pub fn sidecar_of(
        kind: Kind,
        name: &str,
        command_line: impl IntoIterator<Item = String>,
    ) -> Self {
        match kind {
            Kind::Vllm => Self::sidecar(name, command_line),
            Kind::Sglang => Self::sidecar_sglang(name, command_line),
            Kind::Trtllm => Self::sidecar_trtllm(name, command_line),
        }
    }

    fn sidecar_sglang(name: &str, command_line: impl IntoIterator<Item = String>) -> Self {
        let args = SglangArgs::try_parse_from(command_line).unwrap();
        Self::start(name, |stop| async move {
            let (config, launch) = baton_sidecar_sglang::attach::plan(&args)?;
            let engine = SglangEngine::new(config)?;
            baton_sidecar_core::run::run(engine, args.core, launch, stop).await
        })
    }

    fn sidecar_trtllm(name: &str, command_line: impl IntoIterator<Item = String>) -> Self {
        let args = TrtllmArgs::try_parse_from(command_line).unwrap();
        Self::start(name, |stop| async move {
            let (config, launch) = baton_sidecar_trtllm::attach::plan(&args)?;
            let engine = TrtllmEngine::new(config)?;
            baton_sidecar_core::run::run(engine, args.core, launch, stop).await
        })
    }

    /// Starts a sidecar of vLLM with this command line.
    pub fn sidecar(name: &str, command_line: impl IntoIterator<Item = String>) -> Self {
        let args = VllmArgs::try_parse_from(command_line).unwrap();
        Self::start(name, |stop| async move {
            let (config, launch) = baton_sidecar_vllm::attach::plan(&args)?;
            let engine = VllmEngine::new(config)?;
            baton_sidecar_core::run::run(engine, args.core, launch, stop).await
        })
    }

    /// Asks it to stop, as SIGTERM does, without waiting for it.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.ended
            .as_ref()
            .is_some_and(|ended| !ended.is_finished())
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> Result<(), Exit> {
        let ended = self.ended.take().expect("it was not waited for before");
        bounded(&format!("{} to end", self.name), ended)
            .await
            .unwrap_or_else(|error| panic!("{} ended badly: {error}", self.name))
    }

    /// Asks it to stop and waits for that.
    pub async fn stop(mut self) -> Result<(), Exit> {
        self.ask_to_stop();
        self.ended().await
    }

    /// Stops it as SIGSTOP does: it runs nothing, and its sockets stay open. It goes on when the pause is dropped.
    pub async fn pause(&self) -> Pause {
        let runtime = self.runtime.as_ref().expect("the process runs");
        let pause = Pause(Arc::default());
        let (held, mut all) = tokio::sync::mpsc::channel(THREADS);
        for _ in 0..THREADS {
            let (pause, held) = (Arc::clone(&pause.0), held.clone());
            runtime.spawn(async move {
                let _ = held.try_send(());
                pause.hold();
            });
        }
        for _ in 0..THREADS {
            bounded("every thread to stop", all.recv()).await;
        }
        pause
    }

    /// Ends it as SIGKILL does: nothing in it runs any more, and the kernel closes its sockets.
    pub fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A process that stands still.
#[derive(Debug)]
pub struct Pause(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    over: Mutex<bool>,
    changed: Condvar,
}

impl Held {
    /// Keeps a thread until the pause is over, or a test that forgot it would never end.
    fn hold(&self) {
        let over = self.over.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(over, LONGEST_PAUSE, |over| !*over);
        drop(wait.unwrap());
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        *self.0.over.lock().unwrap() = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
