//! In which order and under which numbers batches go out, what is kept of them, and what goes wrong with them.

use std::collections::VecDeque;

use bytes::Bytes;
use rmpv::Value;

use super::{EventFault, Frames, Mangled, PublisherConfig, ReplayFault};

/// Number of the message that ends a replay.
const END: [u8; 8] = [0xff; 8];

/// The publisher's numbers, its buffer, and what will go wrong.
#[derive(Debug)]
pub(super) struct Line {
    config: PublisherConfig,
    next: u64,
    history: VecDeque<(u64, Bytes)>,
    planned: VecDeque<Planned>,
    aside: Option<Frames>,
}

/// What happens to one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planned {
    Lose { replayable: bool },
    LoseSilently,
    SetAside,
    Duplicate,
    Mangle(Mangled),
}

impl Line {
    pub(super) fn new(config: PublisherConfig) -> Self {
        Self {
            config,
            next: 0,
            history: VecDeque::new(),
            planned: VecDeque::new(),
            aside: None,
        }
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Numbers and remembers a batch; gives what goes out now.
    pub(super) fn admit(&mut self, payload: Bytes) -> Vec<Frames> {
        self.pass(payload)
    }

    /// The same of a message that was recorded: it keeps its number.
    pub(super) fn admit_recorded(&mut self, number: u64, payload: Bytes) -> Vec<Frames> {
        self.next = number;
        self.pass(payload)
    }

    fn pass(&mut self, payload: Bytes) -> Vec<Frames> {
        let planned = self.planned.pop_front();
        if planned == Some(Planned::LoseSilently) {
            return Vec::new();
        }
        let sequence = self.next;
        self.next += 1;
        if planned != Some(Planned::Lose { replayable: false }) {
            self.remember(sequence, payload.clone());
        }
        let message = self.message(sequence, payload);
        let overtaken = self.aside.take();
        let mut out = match planned {
            None => vec![message],
            Some(Planned::Lose { .. } | Planned::LoseSilently) => Vec::new(),
            Some(Planned::Duplicate) => vec![message.clone(), message],
            Some(Planned::Mangle(how)) => vec![mangled(how, message)],
            Some(Planned::SetAside) => {
                self.aside = Some(message);
                Vec::new()
            }
        };
        out.extend(overtaken);
        out
    }

    fn remember(&mut self, sequence: u64, payload: Bytes) {
        self.history.push_back((sequence, payload));
        self.keep(self.config.buffer_steps);
    }

    fn keep(&mut self, newest: usize) {
        let surplus = self.history.len().saturating_sub(newest);
        self.history.drain(..surplus);
    }

    fn topic(&self) -> Bytes {
        Bytes::copy_from_slice(self.config.topic.as_bytes())
    }

    fn message(&self, sequence: u64, payload: Bytes) -> Frames {
        vec![self.topic(), number(sequence), payload]
    }

    /// Plans what goes wrong, or does it if it is done at once.
    pub(super) fn raise(&mut self, fault: &EventFault) {
        let (planned, batches) = match *fault {
            EventFault::Lose {
                batches,
                replayable,
            } => (Planned::Lose { replayable }, batches),
            EventFault::LoseSilently { batches } => (Planned::LoseSilently, batches),
            EventFault::SwapNextTwo => (Planned::SetAside, 1),
            EventFault::Duplicate { batches } => (Planned::Duplicate, batches),
            EventFault::Mangle(how) => (Planned::Mangle(how), 1),
            EventFault::ForgetHistory { keep } => return self.keep(keep),
            EventFault::RestartSequence => {
                self.next = 0;
                return self.keep(0);
            }
            EventFault::Hold | EventFault::Replay(_) => return,
        };
        self.planned.extend(std::iter::repeat_n(planned, batches));
    }

    /// Nothing is planned any more; gives what was set aside.
    pub(super) fn clear(&mut self) -> Option<Frames> {
        self.planned.clear();
        self.aside.take()
    }

    /// The answers to a replay request, without the peer's identity. A number that is no longer there is passed over in
    /// silence: it begins at the oldest.
    pub(super) fn replay(&self, from: u64, fault: Option<ReplayFault>) -> Vec<Frames> {
        if fault == Some(ReplayFault::Mute) {
            return Vec::new();
        }
        let wanted = self
            .history
            .iter()
            .filter(|(sequence, _)| *sequence >= from);
        let (mut numbers, mut payloads): (Vec<u64>, VecDeque<Bytes>) = wanted.cloned().unzip();
        match fault {
            Some(ReplayFault::OtherPayloads) => match payloads.len() {
                1 => payloads[0] = other_payload(),
                _ => payloads.rotate_left(payloads.len().min(1)),
            },
            Some(ReplayFault::OneMissing) if !numbers.is_empty() => {
                let middle = numbers.len() / 2;
                numbers.remove(middle);
                payloads.remove(middle);
            }
            _ => {}
        }
        let pairs = numbers.into_iter().zip(payloads);
        let answer =
            |(sequence, payload)| vec![Bytes::new(), self.topic(), number(sequence), payload];
        let mut answers: Vec<Frames> = pairs.map(answer).collect();
        if fault == Some(ReplayFault::OutOfOrder) {
            answers.reverse();
        }
        if fault != Some(ReplayFault::NoEndMarker) {
            let end = Bytes::from_static(&END);
            answers.push(vec![Bytes::new(), Bytes::new(), end, Bytes::new()]);
        }
        answers
    }
}

/// A payload that can be read and is none of the buffer's.
fn other_payload() -> Bytes {
    let cleared = [("type", "AllBlocksCleared")];
    let cleared = std::collections::BTreeMap::from(cleared);
    rmp_serde::to_vec(&(0.0, [cleared], 0))
        .expect("a batch is writable")
        .into()
}

fn mangled(how: Mangled, mut message: Frames) -> Frames {
    match how {
        Mangled::NotMessagePack => message[2] = Bytes::from_static(b"\xc1\xff\x00 no MessagePack"),
        Mangled::Truncated => {
            let middle = message[2].len() / 2;
            message[2].truncate(middle);
        }
        Mangled::OtherShape => message[2] = Bytes::from_static(b"\x81\xa6events\x2a"),
        Mangled::UnknownEvent => message[2] = with_unknown_event(&message[2]),
        Mangled::FrameMissing => message.truncate(2),
        Mangled::FrameTooMany => message.push(Bytes::from_static(b"more")),
        Mangled::ShortSequence => message[1].truncate(4),
        Mangled::Huge { bytes } => {
            let zeros = serde_bytes::ByteBuf::from(vec![0; bytes]);
            message[2] = rmp_serde::to_vec(&zeros)
                .expect("bytes are writable")
                .into();
        }
    }
    message
}

fn with_unknown_event(payload: &[u8]) -> Bytes {
    let mut batch = rmpv::decode::read_value(&mut &payload[..]).expect("a batch was encoded");
    let unknown = [("type", "BlockPromoted"), ("medium", "GPU")];
    let unknown = unknown.map(|(key, value)| (key.into(), value.into()));
    if let Value::Array(parts) = &mut batch
        && let Some(Value::Array(events)) = parts.get_mut(1)
    {
        events.insert(0, Value::Map(unknown.to_vec()));
    }
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, &batch).expect("a vector takes all");
    encoded.into()
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}
