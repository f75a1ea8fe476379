//! Every case: which recorded exchanges it sends again, in which order, and what happens between them.
//!
//! Cases are data; [`super::runner`] carries them out.

mod events;
mod failures;
mod handoffs;
mod surface;

use serde_json::Value;

use super::events::Hashes;
use super::recording;
use super::target::{Role, Setup};

/// A case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// How its engines are started.
    pub setup: Setup,
    /// Engines of its own, which it may fill, kill and end.
    pub own: Vec<Role>,
    /// Whether the scale-out endpoints must be on or off, where the case depends on it.
    pub scale_out: Option<bool>,
    /// False if it needs the flags of its setup even where other engines would do.
    pub any_flags: bool,
    /// True if a grammar shapes its answers.
    pub grammar: bool,
    /// False if the recorded salts, or none, must be sent.
    pub salted: bool,
    /// What it does.
    pub steps: Vec<Step>,
}

/// Something that a case does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends a recorded request, made fresh, to the engine that got it, and compares the answer. A prefill's ticket is kept.
    Ask(String),
    /// The same, and then the engine must be gone.
    Dies(&'static str),
    /// Sends a recorded decode leg that is never answered; when the client has given up, the engine must be gone. Nothing
    /// could be recorded of it.
    NeverAnswered(&'static str),
    /// Asks an engine for the prompt of a recorded request, or for a part of it: history.
    Before(Role, String, Part),
    /// Prefills the prompt of a recorded decode leg, or something like it, and keeps the ticket.
    Prefill(String, Part),
    /// Sends a recorded prefill under a fresh id that stands for this recorded one, and keeps the ticket.
    PrefillAs(&'static str, &'static str),
    /// Changes the ticket.
    Change(TicketChange),
    /// From here on with another salt: no cache knows the prompt.
    Forget,
    /// Learns from a plain answer what the target's text begins with; the first token of the recorded one as text and id.
    Learn(&'static str, &'static str, u64),
    /// Fills an engine's cache with other prompts until nothing else is left in it.
    Overwrite(Role),
    /// Waits until the prefill engine has counted one more expired lease.
    Expires,
    /// Ends an engine of the case's own with SIGKILL.
    Kill(Role),
    /// Starts it again.
    StartAgain(Role, Identity),
    /// Sends the recorded call while the recorded prefill runs.
    Interrupt(String, String),
    /// The tokens of two answers must differ.
    Differ(&'static str, &'static str),
    /// The decode leg's tokens must differ from an aggregated engine's: its KV is of something else.
    Wrong(&'static str),
    /// Remembers both engines' counters.
    Count,
    /// Both engines' counters have grown as recorded.
    Grew(&'static str),
    /// A page of metrics has the recorded families.
    Families(Role, &'static str),
    /// Sends a request that was not recorded, to a rank if one is given, and looks at the status only.
    Send(Role, Option<u64>, Value),
    /// The engine's event log since its boot is the recorded one, and lawful.
    Log(Role, Log),
    /// The engine's event log since its boot is lawful.
    Lawful(Role),
    /// The replay socket answers as recorded.
    Replay(Role),
    /// A subscriber hears what is replayed.
    Heard(Role),
    /// The handshake is as recorded.
    Handshake(Role),
}

/// A recorded event log.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    /// Its name.
    pub name: &'static str,
    /// How many of its batches the case's requests cause.
    pub batches: usize,
    /// Whether hashes must be equal.
    pub hashes: Hashes,
}

impl Log {
    fn of(name: &'static str, batches: usize, hashes: Hashes) -> Self {
        Self {
            name,
            batches,
            hashes,
        }
    }
}

/// What of a prompt is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Its first tokens.
    First(usize),
    /// It, and more tokens up to this count.
    Longer(usize),
    /// Something else of the same length.
    Other,
}

/// What is wrong with a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketChange {
    /// A key is missing.
    Without(&'static str),
    /// Block ids that prefill does not have.
    OutOfRange,
    /// Only the first two block ids.
    TooFewBlocks,
    /// A request that prefill does not know.
    UnknownRequest,
    /// Another engine's id.
    WrongEngine,
    /// An engine that nobody knows, at a port where nobody listens.
    DeadPort,
}

/// Under which `engine_id` an engine starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The one that decode knows.
    Same,
    /// One that was never used.
    New,
}

impl Case {
    fn new(name: impl Into<String>, setup: Setup, steps: impl Into<Vec<Step>>) -> Self {
        Self {
            name: name.into(),
            setup,
            own: Vec::new(),
            scale_out: None,
            any_flags: true,
            grammar: false,
            salted: true,
            steps: steps.into(),
        }
    }

    /// On engines of its own, which it may fill and end.
    fn with_own(mut self, roles: &[Role]) -> Self {
        self.own = roles.to_vec();
        self
    }

    fn with_scale_out(mut self, on: bool) -> Self {
        self.scale_out = Some(on);
        self
    }

    fn with_recorded_flags(mut self) -> Self {
        self.any_flags = false;
        self
    }

    fn shaped_by_a_grammar(mut self) -> Self {
        self.grammar = true;
        self
    }

    /// What is recorded began on engines that had seen nothing.
    fn on_engines_of_its_own(mut self, roles: &[Role]) -> Self {
        self.salted = false;
        self.with_own(roles)
    }

    /// The recorded exchanges that it uses.
    pub fn recordings(&self) -> Vec<&str> {
        let used = self.steps.iter().flat_map(|step| match step {
            Step::Ask(name) => vec![name.as_str()],
            Step::Dies(name) => vec![*name],
            Step::Interrupt(prefill, call) => vec![prefill.as_str(), call.as_str()],
            _ => Vec::new(),
        });
        used.collect()
    }
}

fn ask(name: &str) -> Step {
    Step::Ask(name.to_owned())
}

fn prefill(name: &str) -> Step {
    Step::Prefill(name.to_owned(), Part::Whole)
}

/// Those of these recordings that exist.
fn recorded(names: &[String]) -> Vec<Step> {
    let known = names
        .iter()
        .filter(|name| recording::all().contains_key(*name));
    known.cloned().map(Step::Ask).collect()
}

/// All cases, in the order in which they run: those that share engines first.
pub fn all() -> Vec<Case> {
    let mut cases = surface::cases();
    cases.extend(handoffs::cases());
    cases.extend(failures::cases());
    cases.extend(events::cases());
    cases.sort_by_key(|case| (case.setup, !case.own.is_empty()));
    cases
}
