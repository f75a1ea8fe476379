//! A sidecar beside an engine that is an object in this process, in a runtime of its own.
//!
//! The sidecar asks and Python answers: [`Worker::next`] waits for a question without the interpreter's lock, and whoever has
//! one answers it when the engine has. So the engine is called by Python's threads alone, at the sidecar's pace.

mod asks;

use std::ffi::OsString;
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
    worker_id: String,
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
        &self.worker_id
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
    fn start(argv: Vec<OsString>) -> Result<Self, Exit> {
        let program = OsString::from("baton.attach");
        let args: ObservedArgs = parse(std::iter::once(program).chain(argv)).map_err(refusal)?;
        start_logs(args.common())?;
        let (address, worker_id) = (args.core.address(), args.core.worker_id.to_string());
        let (asking, questions) = mpsc::channel(2);
        let running = Running::start(args, Source::new(asking))?;
        Ok(Self {
            address,
            worker_id,
            questions: Mutex::new(questions),
            running: Mutex::new(Some(running)),
        })
    }
}

impl Running {
    fn start(args: ObservedArgs, source: Source) -> Result<Self, Exit> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("baton")
            .enable_all()
            .build()
            .map_err(|error| Exit::failure(format!("the runtime could not start: {error}")))?;
        let stop = CancellationToken::new();
        let (started, mut reachable) = watch::channel(false);
        let (ended, mut outcome) = oneshot::channel();
        let running = observed::run(args, source, started, stop.clone());
        runtime.spawn(async move {
            let outcome = running.await;
            if let Err(exit) = &outcome {
                tracing::error!(%exit, "the sidecar has ended");
            }
            // Nobody waits for it if this process ends first.
            let _ = ended.send(outcome);
        });
        let early = runtime.block_on(async {
            tokio::select! {
                early = &mut outcome => Some(early),
                _ = reachable.wait_for(|reachable| *reachable) => None,
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
