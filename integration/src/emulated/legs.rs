//! The sequences of a request, each worked on by a task of its own, and what whoever answers hears of them.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::core::{Finish, Output};
use super::misbehave::Scripted;
use super::script::Fault;
use super::server::Connection;

/// A sequence has room for all that it says, up to so many tokens.
const MOST: usize = 1 << 16;

/// What becomes of a leg, bit by bit.
#[derive(Debug)]
pub(super) enum Heard {
    Token {
        id: u32,
        text: String,
        cached: usize,
        finish: Option<Box<Finish>>,
    },
    /// It ends without an answer, or in the middle of one.
    Aborted(Abort),
}

impl Heard {
    /// An output of the scheduler as it is told; `None` if it is no token.
    pub(super) fn of(output: Output) -> Option<Self> {
        let Output::Token {
            id,
            text,
            cached,
            finish,
        } = output
        else {
            return None;
        };
        Some(Self::Token {
            id,
            text,
            cached,
            finish,
        })
    }
}

/// Why a leg ended badly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Abort {
    /// The HTTP status that it stands for, if it stands for one.
    pub(super) status: Option<u16>,
    pub(super) message: String,
}

/// What a sequence has said so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    pub(super) tokens: Vec<u32>,
    pub(super) text: String,
    pub(super) cached: usize,
    pub(super) finish: Option<Ending>,
}

/// How it ended.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    /// By itself.
    Finished {
        reason: &'static str,
        stop: Value,
    },
    Aborted(Abort),
}

impl Said {
    pub(super) fn abort(&self) -> Option<&Abort> {
        match &self.finish {
            Some(Ending::Aborted(abort)) => Some(abort),
            _ => None,
        }
    }

    /// What is heard next; what it adds to the text.
    fn take(&mut self, heard: Heard, fault: &Fault) -> String {
        match heard {
            Heard::Aborted(abort) => {
                self.finish = Some(Ending::Aborted(abort));
                String::new()
            }
            Heard::Token {
                id,
                text,
                cached,
                finish,
            } => {
                self.cached = cached;
                self.tokens.push(id);
                self.text.push_str(&text);
                self.finish = finish.map(|finish| Ending::Finished {
                    reason: match fault {
                        Fault::Finish(reason) => reason,
                        _ => finish.reason,
                    },
                    stop: finish.stop,
                });
                text
            }
        }
    }
}

/// A sequence in the making.
#[derive(Debug)]
struct Choice {
    heard: mpsc::Receiver<Heard>,
    said: Said,
    cancel: CancellationToken,
}

/// What happens next to a request.
pub(super) enum Next {
    Heard(usize, Heard),
    /// Whoever asked went away, and that was noticed.
    Gone,
    /// The scheduler died.
    Dying,
}

/// All sequences of a request. That the client has left is looked at every now and then only.
pub(super) struct Legs<'a> {
    scripted: &'a Scripted,
    choices: Vec<Choice>,
    started: Instant,
    every: Duration,
    /// When it is noticed that the client has left, which it has.
    noticed: Option<Instant>,
}

impl<'a> Legs<'a> {
    /// None yet.
    pub(super) fn new(scripted: &'a Scripted, started: Instant, every: Duration) -> Self {
        Self {
            scripted,
            choices: Vec::new(),
            started,
            every,
            noticed: None,
        }
    }

    /// One more, which ends with this token and says at most so much.
    pub(super) fn add(&mut self, cancel: CancellationToken, limit: usize) -> mpsc::Sender<Heard> {
        let (say, heard) = mpsc::channel(limit.min(MOST) + 2);
        self.choices.push(Choice {
            heard,
            said: Said::default(),
            cancel,
        });
        say
    }

    pub(super) fn len(&self) -> usize {
        self.choices.len()
    }

    pub(super) fn are_over(&self) -> bool {
        let mut choices = self.choices.iter();
        choices.all(|choice| choice.said.finish.is_some())
    }

    pub(super) fn of(&self, index: usize) -> &Said {
        &self.choices[index].said
    }

    pub(super) fn said(&self) -> Vec<Said> {
        let choices = self.choices.iter();
        choices.map(|choice| choice.said.clone()).collect()
    }

    /// What comes next of any of them.
    pub(super) async fn next(&mut self, connection: &mut Connection) -> Next {
        let Self {
            scripted,
            choices,
            started,
            every,
            noticed,
        } = self;
        let heard = poll_fn(|context| {
            for (index, choice) in choices.iter_mut().enumerate() {
                if choice.said.finish.is_none()
                    && let Poll::Ready(heard) = choice.heard.poll_recv(context)
                {
                    return Poll::Ready((index, heard));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            (index, heard) = heard => heard.map_or(Next::Dying, |heard| Next::Heard(index, heard)),
            () = scripted.life.death.dying.cancelled() => Next::Dying,
            () = absence(connection, scripted, noticed, *started, *every) => Next::Gone,
        }
    }

    /// What an output adds to the text of its sequence.
    pub(super) fn take(&mut self, index: usize, heard: Heard) -> String {
        let said = &mut self.choices[index].said;
        said.take(heard, &self.scripted.rule.fault)
    }

    /// Nobody wants any of it any more.
    pub(super) fn give_up(&self) {
        for choice in &self.choices {
            choice.cancel.cancel();
        }
    }
}

/// Resolves when it is noticed that the client has left.
async fn absence(
    connection: &mut Connection,
    scripted: &Scripted,
    noticed: &mut Option<Instant>,
    started: Instant,
    every: Duration,
) {
    let at = match *noticed {
        Some(at) => at,
        None => {
            connection.gone().await;
            let looks = started.elapsed().as_nanos() / every.as_nanos().max(1) + 1;
            let looks = u32::try_from(looks).unwrap_or(u32::MAX);
            *noticed.insert(started + every * looks)
        }
    };
    tokio::select! {
        () = tokio::time::sleep_until(at) => {}
        () = scripted.process.watches() => {}
    }
}
