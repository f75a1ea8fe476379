//! How much of a prompt a worker has, and how sure that is.

use std::fmt;

use serde_json::{Value, json};

/// What a prediction rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Basis {
    /// An exact view: this is what the engine will find.
    Exact,
    /// A view that is a part of what the engine holds, or was true once; or an engine that will choose among ranks.
    Uncertain,
    /// An exact view, and beyond it requests that were sent there a moment ago.
    Expected,
    /// Requests that were served there lately.
    Approximate,
    /// Nothing.
    #[default]
    Unknown,
}

impl Basis {
    /// The one of two that says less.
    pub(super) fn less_sure(self, other: Self) -> Self {
        let sureness = |basis| match basis {
            Self::Exact => 4,
            Self::Expected => 3,
            Self::Uncertain => 2,
            Self::Approximate => 1,
            Self::Unknown => 0,
        };
        // A prompt of which nothing is known takes nothing from what is known of another.
        if other == Self::Unknown || sureness(self) < sureness(other) && self != Self::Unknown {
            self
        } else {
            other
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Uncertain => "uncertain",
            Self::Expected => "expected",
            Self::Approximate => "approximate",
            Self::Unknown => "unknown",
        }
    }
}

/// Prompt tokens that a worker need not compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cached {
    /// Tokens that are there.
    pub known: u64,
    /// Of these, how many are below the device's memory.
    pub lower: u64,
    /// Further tokens that may be there.
    pub likely: u64,
    /// What this rests on.
    pub basis: Basis,
}

impl Cached {
    /// As plans need it.
    pub fn planned(&self) -> baton_planner::Cached {
        let (expected, likely) = match self.basis {
            Basis::Expected => (self.likely, 0),
            _ => (0, self.likely),
        };
        baton_planner::Cached {
            known: self.known,
            lower: self.lower,
            expected,
            likely,
        }
    }

    /// In JSON.
    pub fn shown(&self) -> Value {
        json!({"tokens": self.known, "likely_tokens": self.likely, "basis": self.basis.word()})
    }
}

/// Behind a plan's words; nothing if nothing is known.
impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            known,
            likely,
            basis,
            ..
        } = self;
        match basis {
            Basis::Unknown => Ok(()),
            _ => write!(
                f,
                " cached_tokens={known} likely_tokens={likely} basis={}",
                basis.word()
            ),
        }
    }
}
