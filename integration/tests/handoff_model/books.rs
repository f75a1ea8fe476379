//! The two books of a handoff, as the model has them: the prefill side's ledger, the decode side's memory.

use baton_proto::call::Revoked;

/// A life of the prefill engine.
pub(crate) type Life = u8;

/// An entry of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Entry {
    /// Never heard of.
    Unknown,
    /// KV of that life is held for the decode worker.
    Claimed(Life),
    /// It is held for nobody; decode has to be asked before it is given back.
    Leaving(Life),
    /// It is held for nobody, and nobody fetches it.
    Loose(Life),
    /// Nothing is held.
    Over,
}

impl Entry {
    pub(crate) fn held_in(self) -> Option<Life> {
        match self {
            Self::Claimed(life) | Self::Leaving(life) | Self::Loose(life) => Some(life),
            Self::Unknown | Self::Over => None,
        }
    }

    /// Settles; whether it may be.
    #[must_use]
    pub(crate) fn settle(self, now: Life) -> (Self, bool) {
        match self {
            Self::Claimed(life) => (Self::Over, life == now),
            other => (other, false),
        }
    }

    #[must_use]
    pub(crate) fn release(self) -> Self {
        match self {
            Self::Claimed(life) => Self::Leaving(life),
            Self::Unknown => Self::Over,
            other => other,
        }
    }

    #[must_use]
    pub(crate) fn revoked(self) -> Self {
        match self {
            Self::Leaving(life) => Self::Loose(life),
            other => other,
        }
    }

    #[must_use]
    pub(crate) fn given_back(self) -> Self {
        match self {
            Self::Leaving(_) | Self::Loose(_) => Self::Over,
            other => other,
        }
    }

    #[must_use]
    pub(crate) fn lapsed(self) -> Self {
        match self {
            Self::Unknown => Self::Unknown,
            _ => Self::Over,
        }
    }

    #[must_use]
    pub(crate) fn void_others(self, now: Life) -> Self {
        match self.held_in() {
            Some(life) if life != now => Self::Over,
            _ => self,
        }
    }
}

/// What the decode side remembers of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Memory {
    Nothing,
    Active,
    Over(Fate),
}

/// What became of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fate {
    Unseen,
    Answered,
    Cut,
}

impl From<Fate> for Revoked {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Unseen => Self::Unseen,
            Fate::Answered => Self::Answered,
            Fate::Cut => Self::Cut,
        }
    }
}

impl Memory {
    /// Uses the ticket; whether it may be.
    #[must_use]
    pub(crate) fn use_once(self) -> (Self, bool) {
        match self {
            Self::Nothing => (Self::Active, true),
            other => (other, false),
        }
    }

    /// Ends the leg that uses it.
    #[must_use]
    pub(crate) fn end(self, fate: Fate) -> Self {
        match self {
            Self::Active => Self::Over(fate),
            other => other,
        }
    }

    /// It is not used any more; what became of it.
    #[must_use]
    pub(crate) fn revoke(self) -> (Self, Fate) {
        match self {
            Self::Nothing => (Self::Over(Fate::Unseen), Fate::Unseen),
            Self::Active => (Self::Over(Fate::Cut), Fate::Cut),
            Self::Over(fate) => (self, fate),
        }
    }
}
