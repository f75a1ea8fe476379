//! What goes wrong, and when.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use crate::wait::bounded;

/// Which leg a request is, by its `kv_transfer_params`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leg {
    /// It asks for KV to be held.
    Prefill,
    /// It brings KV.
    Decode,
    /// Neither.
    Local,
}

/// How the HTTP server as a whole behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Http {
    /// As it should.
    #[default]
    Normal,
    /// It answers every request with bytes that are no HTTP.
    Garbage,
    /// It accepts and never answers, as a process that was stopped by a signal.
    Mute,
    /// It answers every request with HTML.
    OtherServer,
    /// It takes questions for tokens and never answers them.
    MuteTokenizer,
    /// It takes so long to say that it is healthy.
    SlowHealth(Duration),
}

type Change = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// What goes wrong with one request.
#[derive(Clone)]
pub enum Fault {
    /// Nothing.
    None,
    /// It is taken and never answered.
    Hang,
    /// The head of an answer, then nothing.
    HangAfterHead,
    /// The connection is reset instead of an answer.
    Reset,
    /// The engine dies instead of answering.
    Die,
    /// Another status, with this body.
    Status(u16, String),
    /// A 200 with no body at all.
    EmptyOk,
    /// A 200 with this body instead of the answer.
    BodyOk(String),
    /// Bytes that are no HTTP.
    Garbage,
    /// The head and half of the body of the right answer, then a clean close.
    Truncated,
    /// The head and half of the body, then the engine dies.
    DieInBody,
    /// The head and half of the body, then nothing.
    StallInBody,
    /// The right answer, then the engine dies.
    DieAfter,
    /// After this many tokens: an error inside the stream, and perhaps a `[DONE]` behind it.
    InBand {
        /// Tokens before it.
        after: usize,
        /// Whether `[DONE]` follows.
        done: bool,
    },
    /// The stream breaks in the middle of the event after this many tokens.
    CutInEvent(usize),
    /// The stream ends cleanly after this many tokens, without its end.
    EndEarly(usize),
    /// The stream goes silent after this many tokens.
    Stall(usize),
    /// The connection is reset after this many tokens.
    ResetAfter(usize),
    /// The engine dies after this many tokens.
    DieAfterTokens(usize),
    /// The prefill's `kv_transfer_params` are changed.
    Params(Change),
    /// The whole unary answer is changed.
    Answer(Change),
    /// The request ends by itself with this finish reason.
    Finish(&'static str),
    /// These bytes instead of an answer, whatever they are.
    Raw(RawAnswer),
}

impl Fault {
    /// The prefill's `kv_transfer_params` are changed.
    pub fn params(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        Self::Params(Arc::new(change))
    }

    /// The whole unary answer is changed.
    pub fn answer(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        Self::Answer(Arc::new(change))
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Hang => "Hang",
            Self::HangAfterHead => "HangAfterHead",
            Self::Reset => "Reset",
            Self::Die => "Die",
            Self::Status(..) => "Status",
            Self::EmptyOk => "EmptyOk",
            Self::BodyOk(_) => "BodyOk",
            Self::Garbage => "Garbage",
            Self::Truncated => "Truncated",
            Self::DieInBody => "DieInBody",
            Self::StallInBody => "StallInBody",
            Self::DieAfter => "DieAfter",
            Self::InBand { .. } => "InBand",
            Self::CutInEvent(_) => "CutInEvent",
            Self::EndEarly(_) => "EndEarly",
            Self::Stall(_) => "Stall",
            Self::ResetAfter(_) => "ResetAfter",
            Self::DieAfterTokens(_) => "DieAfterTokens",
            Self::Params(_) => "Params",
            Self::Answer(_) => "Answer",
            Self::Finish(_) => "Finish",
            Self::Raw(_) => "Raw",
        })
    }
}

/// An answer as it goes over the wire, head and framing included: any bad answer is data, and so is any slow one.
#[derive(Debug, Clone, Default)]
pub struct RawAnswer {
    pub(super) pieces: Vec<Piece>,
    pub(super) end: End,
}

/// Stands for the request's id in a raw answer, and is as long.
pub const REQUEST: &str = "{the-request's-own-id-goes-here}";

/// A part of a raw answer.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    /// Written at once, in a segment of its own as far as the kernel allows.
    Bytes(Bytes),
    /// The same bytes so many times, or until nobody takes them.
    Repeated(Bytes, u64),
    /// Nothing until the gate opens.
    Gate(Gate),
}

impl Piece {
    fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Repeated(..) | Self::Gate(_) => None,
        }
    }
}

/// What becomes of the connection behind a raw answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// It waits for the next request.
    #[default]
    Keep,
    /// It is closed in order.
    Close,
    /// It is reset.
    Reset,
    /// It stays open, and nothing is read or said any more.
    Hang,
}

impl RawAnswer {
    /// Nothing yet.
    pub fn new(end: End) -> Self {
        Self {
            pieces: Vec::new(),
            end,
        }
    }

    /// These bytes in one piece.
    #[must_use]
    pub fn bytes(self, bytes: impl Into<Bytes>) -> Self {
        self.piece(Piece::Bytes(bytes.into()))
    }

    /// These bytes in pieces of so many.
    #[must_use]
    pub fn torn(mut self, bytes: impl Into<Bytes>, size: usize) -> Self {
        let mut rest: Bytes = bytes.into();
        while !rest.is_empty() {
            let piece = rest.split_to(size.clamp(1, rest.len()));
            self.pieces.push(Piece::Bytes(piece));
        }
        self
    }

    /// These bytes again and again.
    #[must_use]
    pub fn repeated(self, bytes: impl Into<Bytes>, times: u64) -> Self {
        self.piece(Piece::Repeated(bytes.into(), times))
    }

    /// The same answer naming this request wherever it has [`REQUEST`], even where that is torn.
    pub(super) fn naming(mut self, request: &str) -> Self {
        let pieces = self.pieces.iter().filter_map(Piece::bytes);
        let mut whole: Vec<u8> = pieces.flatten().copied().collect();
        let places: Vec<usize> = memchr::memmem::find_iter(&whole, REQUEST).collect();
        if places.is_empty() || request.len() != REQUEST.len() {
            return self;
        }
        for place in places {
            whole[place..place + REQUEST.len()].copy_from_slice(request.as_bytes());
        }
        let mut rest = Bytes::from(whole);
        for piece in &mut self.pieces {
            if let Piece::Bytes(bytes) = piece {
                *bytes = rest.split_to(bytes.len());
            }
        }
        self
    }

    /// Nothing more until this gate opens.
    #[must_use]
    pub fn gate(self, gate: &Gate) -> Self {
        self.piece(Piece::Gate(gate.clone()))
    }

    fn piece(mut self, piece: Piece) -> Self {
        self.pieces.push(piece);
        self
    }
}

/// A place where a request waits until the test lets it go on.
#[derive(Debug, Clone)]
pub struct Gate {
    reached: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            reached: watch::Sender::new(0),
            open: watch::Sender::new(false),
        }
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until this many requests have come to it.
    pub async fn reached(&self, count: usize) {
        let mut reached = self.reached.subscribe();
        let wait = reached.wait_for(|reached| *reached >= count);
        bounded("a request at the gate", wait)
            .await
            .expect("the gate lives");
    }

    /// Lets all go on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    pub(super) async fn pass(&self) {
        self.reached.send_modify(|reached| *reached += 1);
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
    }
}

/// What happens to the next requests of a kind.
#[derive(Debug, Clone)]
pub struct Rule {
    pub(super) leg: Option<Leg>,
    pub(super) about: Option<String>,
    pub(super) times: usize,
    pub(super) before: Option<Gate>,
    pub(super) after_tokens: Option<(usize, Gate)>,
    pub(super) fault: Fault,
}

impl Rule {
    /// For requests of this leg, once.
    pub fn on(leg: Leg) -> Self {
        Self {
            leg: Some(leg),
            ..Self::any()
        }
    }

    /// For requests of any leg, once.
    pub fn any() -> Self {
        Self {
            leg: None,
            about: None,
            times: 1,
            before: None,
            after_tokens: None,
            fault: Fault::None,
        }
    }

    /// Only for requests whose body has this in it: many requests may run at once, each with a rule of its own.
    #[must_use]
    pub fn about(self, text: &str) -> Self {
        Self {
            about: Some(text.to_owned()),
            ..self
        }
    }

    pub(super) fn fits(&self, leg: Leg, body: &str) -> bool {
        let asked = self
            .about
            .as_ref()
            .is_none_or(|text| body.contains(text.as_str()));
        self.times > 0 && self.leg.is_none_or(|wanted| wanted == leg) && asked
    }

    /// So many times.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Every time.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    /// It waits at this gate before the engine works on it.
    #[must_use]
    pub fn gate(self, gate: &Gate) -> Self {
        Self {
            before: Some(gate.clone()),
            ..self
        }
    }

    /// Its stream waits at this gate after this many tokens; an unary answer in the middle of its body.
    #[must_use]
    pub fn gate_after(self, tokens: usize, gate: &Gate) -> Self {
        Self {
            after_tokens: Some((tokens, gate.clone())),
            ..self
        }
    }

    /// This goes wrong.
    #[must_use]
    pub fn fault(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }
}
