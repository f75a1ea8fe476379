//! Questions of the sidecar to the engine, across the border to Python.

use std::sync::{Mutex, PoisonError};

use baton_proto::{Error, ErrorKind, Source as Blame, Stage};
use baton_sidecar_trtllm::source;
use pyo3::prelude::*;
use tokio::sync::{mpsc, oneshot};

/// What is asked for.
#[derive(Debug, Clone, Copy)]
enum What {
    KvEvents,
    Statistics,
}

impl What {
    /// As Python knows it.
    fn name(self) -> &'static str {
        match self {
            Self::KvEvents => "kv_cache_events",
            Self::Statistics => "stats",
        }
    }
}

type Answer = Result<Vec<u8>, String>;

/// A question that waits for its answer. Dropping it says that there is none.
pub(super) struct Question {
    what: What,
    answer: oneshot::Sender<Answer>,
}

/// The engine, as the sidecar sees it.
#[derive(Debug, Clone)]
pub(super) struct Source {
    asking: mpsc::Sender<Question>,
}

impl Source {
    pub(super) fn new(asking: mpsc::Sender<Question>) -> Self {
        Self { asking }
    }

    async fn ask(&self, what: What) -> Result<Vec<u8>, Error> {
        let (answer, answered) = oneshot::channel();
        let asked = self.asking.send(Question { what, answer }).await;
        asked.map_err(|_| unanswered("nobody asks the engine any more"))?;
        match answered.await {
            Ok(answer) => answer.map_err(|why| unanswered(&why)),
            Err(_) => Err(unanswered("the engine gave no answer")),
        }
    }
}

impl source::Source for Source {
    async fn take_events(&self) -> Result<Vec<u8>, Error> {
        self.ask(What::KvEvents).await
    }

    async fn take_statistics(&self) -> Result<Vec<u8>, Error> {
        self.ask(What::Statistics).await
    }
}

fn unanswered(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, Blame::Engine, Stage::Fleet, why)
}

/// A question, in Python's hands. It is answered once.
#[pyclass(frozen, module = "baton._native")]
pub(crate) struct Ask {
    what: What,
    answer: Mutex<Option<oneshot::Sender<Answer>>>,
}

impl Ask {
    pub(super) fn new(question: Question) -> Self {
        Self {
            what: question.what,
            answer: Mutex::new(Some(question.answer)),
        }
    }

    fn end(&self, answer: Answer) {
        let waiting = self
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(waiting) = waiting {
            // The sidecar may have ended meanwhile.
            let _ = waiting.send(answer);
        }
    }
}

#[pymethods]
impl Ask {
    /// `kv_cache_events` or `stats`.
    #[getter]
    fn what(&self) -> &'static str {
        self.what.name()
    }

    /// What the engine has told: a JSON array.
    fn answer(&self, json: &[u8]) {
        self.end(Ok(json.to_vec()));
    }

    /// The engine has told nothing.
    fn fail(&self, why: &str) {
        self.end(Err(why.to_owned()));
    }
}
