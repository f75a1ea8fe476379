//! A sidecar beside an engine that is an object in this process, in a runtime of its own.
//!
//! The sidecar asks and Python answers: [`Worker::next`] waits for a question without the interpreter's lock, and whoever has
//! one answers it when the engine has. So the engine is called by Python's threads alone, at the sidecar's pace.

mod asks;

use std::ffi::OsString;
use std::future::Future;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use baton_daemon::config::{Common, Stop, parse};
use baton_daemon::run::Arguments;
use baton_daemon::{Exit, log};
use baton_sidecar_trtllm::observed::{self, ObservedArgs};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use asks::{Ask, Question, Source};

/// Longest that an orderly end may take. Nothing is in flight here, so it takes as long as saying goodbye to routers.
const END: Duration = Duration::from_secs(15);

/// Threads of the runtime: there is one engine, and nothing of it is computed here.
const THREADS: usize = 2;

/// A sidecar beside an engine in this process. Dropping it ends it.
#[pyclass(frozen, module = "baton._native")]
pub(crate) struct Worker {
    address: String,
    name: String,
    questions: Mutex<mpsc::Receiver<Question>>,
    running: Mutex<Option<Running>>,
}

/// What runs until it is told to end.
struct Running {
    runtime: Runtime,
    stop: CancellationToken,
    outcome: oneshot::Receiver<Result<(), Exit>>,
}

#[pymethods]
impl Worker {
    /// Starts the sidecar; returns once routers can reach it.
    #[new]
    fn new(py: Python<'_>, argv: Vec<OsString>) -> PyResult<Self> {
        py.detach(|| Self::start(argv)).map_err(raise)
    }

    /// Where routers reach it.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Its name in the fleet.
    #[getter]
    fn worker_id(&self) -> &str {
        &self.name
    }

    /// The next question; none after the end.
    fn next(&self, py: Python<'_>) -> Option<Ask> {
        let question = py.detach(|| {
            let mut questions = self
                .questions
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            questions.blocking_recv()
        });
        question.map(Ask::new)
    }

    /// Says goodbye to routers and ends. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        let running = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(running) = running {
            py.detach(|| running.end());
        }
    }
}

impl Worker {
    fn start(flags: Vec<OsString>) -> Result<Self, Exit> {
        let program = OsString::from("baton.attach");
        let args: ObservedArgs = parse(std::iter::once(program).chain(flags)).map_err(refusal)?;
        start_logs(args.common())?;
        let (address, name) = (args.core.address(), args.core.worker_id.to_string());
        let (asking, questions) = mpsc::channel(2);
        let running = Running::start(args, Source::new(asking))?;
        Ok(Self {
            address,
            name,
            questions: Mutex::new(questions),
            running: Mutex::new(Some(running)),
        })
    }
}

impl Running {
    fn start(args: ObservedArgs, source: Source) -> Result<Self, Exit> {
        let runtime = runtime()?;
        let stop = CancellationToken::new();
        let (started, mut reachable) = watch::channel(false);
        let (ended, mut outcome) = oneshot::channel();
        let sidecar = observed::run(args, source, started, stop.clone());
        runtime.spawn(watched(sidecar, reachable.clone(), ended));
        let early = runtime.block_on(async {
            tokio::select! {
                early = &mut outcome => Some(early),
                Ok(_) = reachable.wait_for(|reachable| *reachable) => None,
            }
        });
        match early {
            None => Ok(Self {
                runtime,
                stop,
                outcome,
            }),
            Some(early) => {
                let why = early.ok().and_then(Result::err);
                Err(why.unwrap_or_else(|| Exit::failure("the sidecar has ended at once")))
            }
        }
    }

    /// What went wrong before was said when it did.
    fn end(self) {
        self.stop.cancel();
        let ended = self
            .runtime
            .block_on(async { tokio::time::timeout(END, self.outcome).await });
        if ended.is_err() {
            tracing::warn!("the sidecar did not end in time");
        }
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

fn runtime() -> Result<Runtime, Exit> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("baton")
        .enable_all()
        .build()
        .map_err(|error| Exit::failure(format!("the runtime could not start: {error}")))
}

/// Says why a sidecar has ended that was reachable. Before that, whoever has started it is told.
async fn watched(
    sidecar: impl Future<Output = Result<(), Exit>>,
    reachable: watch::Receiver<bool>,
    ended: oneshot::Sender<Result<(), Exit>>,
) {
    let outcome = sidecar.await;
    if let (Err(exit), true) = (&outcome, *reachable.borrow()) {
        tracing::error!(%exit, "the sidecar has ended");
    }
    // Nobody waits for it if this process ends first.
    let _ = ended.send(outcome);
}

impl Drop for Worker {
    fn drop(&mut self) {
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.take() {
            running.stop.cancel();
            running.runtime.shutdown_background();
        }
    }
}

/// Logs are the process's, and started by whichever sidecar comes first.
fn start_logs(common: &Common) -> Result<(), Exit> {
    static STARTED: OnceLock<()> = OnceLock::new();
    if STARTED.get().is_none() {
        log::start(common)?;
        // Whoever was second has failed just now.
        let _ = STARTED.set(());
    }
    Ok(())
}

fn refusal(stop: Stop) -> Exit {
    match stop {
        Stop::Show(text) | Stop::Refuse(text) => Exit::Usage(text),
    }
}

fn raise(exit: Exit) -> PyErr {
    match exit {
        Exit::Usage(sentence) => PyValueError::new_err(sentence),
        Exit::Failure(_) | Exit::Child(_) => PyRuntimeError::new_err(exit.to_string()),
    }
}
