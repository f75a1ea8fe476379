//! What can go wrong between an engine and who listens to its events.

use std::sync::Arc;

use super::Desk;

/// One thing that goes wrong.
///
/// What is said of the next batches happens to one batch each, in the order in which faults were raised. Replay is not
/// touched by that unless it is said so: the buffer holds what should have been sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventFault {
    /// The next batches are numbered and never sent. A real publisher does so at a slow subscriber's high-water mark,
    /// and to everyone between a broken connection and the next one.
    Lose {
        /// How many.
        batches: usize,
        /// Whether they can be replayed. With a real publisher they can, until `buffer_steps` more were published.
        replayable: bool,
    },
    /// The next batches are neither sent nor numbered. A real engine does so when its KV cache forgets to tell something:
    /// there is no gap to see.
    LoseSilently {
        /// How many.
        batches: usize,
    },
    /// The next batch goes out after the one that follows it. A real publisher never does so; whatever passes its
    /// messages on may.
    SwapNextTwo,
    /// The next batches go out twice each. A real publisher never does so; a replay that overlaps with what was received
    /// looks the same.
    Duplicate {
        /// How many.
        batches: usize,
    },
    /// At once: numbers begin at 0 again and the buffer is empty, while connections stay. A real publisher's numbers
    /// begin again with its process only; behind a proxy its subscribers do not see that end.
    RestartSequence,
    /// At once: the buffer forgets all but its newest batches. A real one forgets whatever is older than `buffer_steps`,
    /// and then silently begins a replay at the oldest it has.
    ForgetHistory {
        /// How many stay.
        keep: usize,
    },
    /// The next batch is not what it should be. A real publisher does so in another release, or when something else
    /// listens at its endpoint.
    Mangle(Mangled),
    /// Nothing is sent until faults are cleared; then everything that found room is, at once. A real publisher's thread
    /// does so while the interpreter is busy elsewhere.
    Hold,
    /// Until faults are cleared: replay goes wrong.
    Replay(ReplayFault),
}

/// What a batch looks like on the wire instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mangled {
    /// The payload is no MessagePack.
    NotMessagePack,
    /// The payload ends in the middle.
    Truncated,
    /// The payload is MessagePack of another shape.
    OtherShape,
    /// An event of an unknown kind stands before the others, as a newer release may send.
    UnknownEvent,
    /// There is no payload frame.
    FrameMissing,
    /// A frame follows the payload.
    FrameTooMany,
    /// The number has four bytes.
    ShortSequence,
    /// The payload is one binary of so many bytes.
    Huge {
        /// How many.
        bytes: usize,
    },
}

/// How replay goes wrong. A real publisher does none of the lies; they are what a reader must not be hurt by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayFault {
    /// Each number comes with the payload of the next one.
    OtherPayloads,
    /// The newest comes first.
    OutOfOrder,
    /// One in the middle is left out.
    OneMissing,
    /// The end marker never comes. A real publisher that dies while it replays does so.
    NoEndMarker,
    /// Requests are read and not answered. A real publisher does so while its thread is busy, and for requests without the
    /// empty frame in front.
    Mute,
}

/// Switches faults of one publisher on and off while it runs.
#[derive(Debug, Clone)]
pub struct Faults {
    desk: Arc<Desk>,
}

impl Faults {
    pub(super) fn new(desk: Arc<Desk>) -> Self {
        Self { desk }
    }

    /// From now on, or for the next batches.
    pub fn raise(&self, fault: EventFault) {
        match fault {
            EventFault::Hold => self.desk.hold(true),
            EventFault::Replay(fault) => *self.desk.replay_fault.lock().unwrap() = Some(fault),
            other => self.desk.line.lock().unwrap().raise(&other),
        }
    }

    /// Nothing goes wrong any more. What was held back or set aside goes out.
    pub fn clear(&self) {
        let mut line = self.desk.line.lock().unwrap();
        if let Some(message) = line.clear() {
            self.desk.enqueue(message);
        }
        drop(line);
        *self.desk.replay_fault.lock().unwrap() = None;
        self.desk.hold(false);
    }
}
