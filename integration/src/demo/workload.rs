//! What clients ask: a mix of conversations, the same for the same seed.

use std::fmt::{self, Display, Write};
use std::ops::Range;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// What a conversation is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One question behind a long system prompt that others share.
    SystemPrompt,
    /// Several turns, each with all that was said before.
    Chat,
    /// One short question.
    Short,
}

impl Kind {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 3] = [Self::SystemPrompt, Self::Chat, Self::Short];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::SystemPrompt => "long system prompt",
            Self::Chat => "chat turn",
            Self::Short => "short question",
        }
    }

    /// How likely the next conversation is of this kind, relative to the others. A chat counts for its turns.
    fn weight(self) -> u32 {
        match self {
            Self::SystemPrompt => 5,
            Self::Chat => 1,
            Self::Short => 4,
        }
    }
}

/// One message of a client, and what it wants back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The message.
    pub message: String,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// How long the client reads the answer before its next message.
    pub think: Duration,
}

/// Messages of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// What it is like.
    pub kind: Kind,
    /// When its first message is sent, from the start of the load.
    pub starts: Duration,
    /// System prompt.
    pub system: Option<String>,
    /// Its messages, at least one.
    pub turns: Vec<Turn>,
}

/// A mix of conversations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// In the order in which they start.
    pub conversations: Vec<Conversation>,
}

/// Requests a second that arrive, on average.
const RATE: f64 = 12.0;

/// Turns of a chat.
const TURNS: usize = 4;

/// Conversations that share a system prompt, on average.
const SHARING: usize = 6;

/// Lengths of messages in tokens.
const SYSTEM_TOKENS: Range<usize> = 1_500..4_000;
const MESSAGE_TOKENS: Range<usize> = 50..400;
const QUESTION_TOKENS: Range<usize> = 5..40;

/// Lengths of answers in tokens.
const ANSWER_TOKENS: Range<u32> = 24..96;

impl Workload {
    /// So many requests of this seed.
    pub fn new(seed: u64, requests: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let shared: Vec<String> = (0..requests.div_ceil(2 * SHARING))
            .map(|_| text(&mut rng, SYSTEM_TOKENS))
            .collect();
        let mut conversations = Vec::new();
        let mut missing = requests;
        let mut starts = Duration::ZERO;
        while missing > 0 {
            let conversation = conversation(&mut rng, &shared, starts, missing);
            missing -= conversation.turns.len();
            starts += gap(&mut rng, conversation.turns.len());
            conversations.push(conversation);
        }
        Self { conversations }
    }

    /// How many requests it is.
    pub fn requests(&self) -> usize {
        self.conversations
            .iter()
            .map(|conversation| conversation.turns.len())
            .sum()
    }
}

impl Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests (", self.requests())?;
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let of_kind = self.conversations.iter().filter(|one| one.kind == kind);
            let requests: usize = of_kind.map(|one| one.turns.len()).sum();
            write!(f, "{separator}{requests} {}s", kind.name())?;
        }
        write!(f, "), about {RATE} a second")
    }
}

fn conversation(
    rng: &mut StdRng,
    shared: &[String],
    starts: Duration,
    most_turns: usize,
) -> Conversation {
    let kind = Kind::ALL
        .choose_weighted(rng, |kind| kind.weight())
        .copied()
        .unwrap_or(Kind::Short);
    let (tokens, turns) = match kind {
        Kind::Chat => (MESSAGE_TOKENS, TURNS.min(most_turns)),
        Kind::SystemPrompt | Kind::Short => (QUESTION_TOKENS, 1),
    };
    let system = match kind {
        Kind::SystemPrompt => shared.choose(rng).cloned(),
        Kind::Chat | Kind::Short => None,
    };
    let turns = (0..turns).map(|_| turn(rng, tokens.clone())).collect();
    Conversation {
        kind,
        starts,
        system,
        turns,
    }
}

fn turn(rng: &mut StdRng, tokens: Range<usize>) -> Turn {
    Turn {
        message: text(rng, tokens),
        max_tokens: rng.random_range(ANSWER_TOKENS),
        think: Duration::from_millis(rng.random_range(100..600)),
    }
}

/// Time until the next conversation, for requests that arrive independently of each other.
fn gap(rng: &mut StdRng, requests: usize) -> Duration {
    let uniform: f64 = rng.random_range(f64::EPSILON..1.0);
    let requests = f64::from(u32::try_from(requests).unwrap_or(u32::MAX));
    Duration::from_secs_f64(-uniform.ln() * requests / RATE)
}

/// Words of the emulated engines' vocabulary. Each is one token, and about as long as a token of English is, by which the
/// router estimates.
fn text(rng: &mut StdRng, tokens: Range<usize>) -> String {
    let mut text = String::new();
    for _ in 0..rng.random_range(tokens) {
        let _ = write!(text, " {:04x}", rng.random::<u16>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_requests_every_time() {
        let one = Workload::new(7, 200);
        assert_eq!(one, Workload::new(7, 200));
        assert_ne!(one, Workload::new(8, 200));
    }

    #[test]
    fn the_mix_has_all_kinds_and_exactly_the_requests_asked_for() {
        for requests in [1, 10, 200] {
            assert_eq!(Workload::new(1, requests).requests(), requests);
        }
        let workload = Workload::new(1, 200);
        for kind in Kind::ALL {
            let of_kind = |conversation: &&Conversation| conversation.kind == kind;
            assert!(workload.conversations.iter().filter(of_kind).count() > 1);
        }
        let shared: std::collections::HashSet<_> = workload
            .conversations
            .iter()
            .filter_map(|conversation| conversation.system.as_deref())
            .collect();
        let users = workload
            .conversations
            .iter()
            .filter(|conversation| conversation.system.is_some());
        assert!(
            shared.len() * 2 < users.count(),
            "system prompts are shared"
        );
    }
}
