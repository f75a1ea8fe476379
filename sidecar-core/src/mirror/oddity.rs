//! What is counted, and what makes a view uncertain.

use std::collections::BTreeMap;

/// What happened that a plain stream of events would not have, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// `gap`: messages that never came.
    Gap,
    /// `older`: messages that were not newer than the last one, and so not applied.
    Older,
    /// `restart`: lives of the engine that began while it was watched.
    Restart,
    /// `unheard`: streams of which nothing was heard yet.
    Unheard,
    /// `joined_late`: streams whose beginning was missed.
    JoinedLate,
    /// `reports`: caches that were cleared while blocks that are reused were still announced like new ones.
    Reports,
    /// `undecoded`: messages that could not be read at all.
    Undecoded,
    /// `unreadable`: events that could not be read.
    Unreadable,
    /// `unknown_parent`: blocks that could not be hashed because the block before them is not known.
    UnknownParent,
    /// `token_count`: blocks whose tokens are not as many as their number and size want.
    TokenCount,
    /// `conflict`: blocks stored under the engine's name of a block with another content.
    Conflict,
    /// `untold_tokens`: blocks of which only the name was told, and that was not known.
    UntoldTokens,
    /// `unknown_namespace`: blocks kept out because something unknown sets them or their prefix apart.
    UnknownNamespace,
    /// `partial_block`: blocks kept out because they are shorter or longer than the rank's.
    PartialBlock,
    /// `other_group`: blocks of the engine's other caches, which do not decide about prefixes.
    OtherGroup,
    /// `unknown_removal`: removals of blocks that were not there.
    UnknownRemoval,
    /// `second_copy`: blocks stored that were there already.
    SecondCopy,
}

impl Oddity {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Gap,
        Self::Older,
        Self::Restart,
        Self::Unheard,
        Self::JoinedLate,
        Self::Reports,
        Self::Undecoded,
        Self::Unreadable,
        Self::UnknownParent,
        Self::TokenCount,
        Self::Conflict,
        Self::UntoldTokens,
        Self::UnknownNamespace,
        Self::PartialBlock,
        Self::OtherGroup,
        Self::UnknownRemoval,
        Self::SecondCopy,
    ];

    /// Its name in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Older => "older",
            Self::Restart => "restart",
            Self::Unheard => "unheard",
            Self::JoinedLate => "joined_late",
            Self::Reports => "reports",
            Self::Undecoded => "undecoded",
            Self::Unreadable => "unreadable",
            Self::UnknownParent => "unknown_parent",
            Self::TokenCount => "token_count",
            Self::Conflict => "conflict",
            Self::UntoldTokens => "untold_tokens",
            Self::UnknownNamespace => "unknown_namespace",
            Self::PartialBlock => "partial_block",
            Self::OtherGroup => "other_group",
            Self::UnknownRemoval => "unknown_removal",
            Self::SecondCopy => "second_copy",
        }
    }

    /// Those that leave the view a subset of what the rank holds. Of blocks, only those of the device tier do: lower tiers
    /// are told incompletely by nature (vLLM's offloading names only the last block of a chunk, unless told otherwise),
    /// and a rank would never be certain.
    pub const DOUBTS: [Self; 10] = [
        Self::Gap,
        Self::Unheard,
        Self::JoinedLate,
        Self::Reports,
        Self::Undecoded,
        Self::Unreadable,
        Self::UnknownParent,
        Self::TokenCount,
        Self::Conflict,
        Self::UntoldTokens,
    ];
}

/// How often each reason was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally<Reason>(BTreeMap<Reason, u64>);

impl<Reason> Default for Tally<Reason> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<Reason: Ord + Copy> Tally<Reason> {
    /// Counts one more.
    pub fn add(&mut self, reason: Reason) {
        self.add_many(reason, 1);
    }

    /// Counts some more.
    pub fn add_many(&mut self, reason: Reason, times: u64) {
        let count = self.0.entry(reason).or_default();
        *count = count.saturating_add(times);
    }

    /// How often this one was met.
    pub fn count(&self, reason: Reason) -> u64 {
        self.0.get(&reason).copied().unwrap_or_default()
    }

    /// All that were met, in the order of their type.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        self.0.iter().map(|(reason, count)| (*reason, *count))
    }
}

/// Why a view is a subset of what its rank holds; empty while it is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Doubts(u32);

impl Doubts {
    pub(super) fn add(&mut self, reason: Oddity) {
        debug_assert!(Oddity::DOUBTS.contains(&reason));
        self.0 |= 1 << reason as u32;
    }

    pub(super) fn remove(&mut self, reason: Oddity) {
        self.0 &= !(1 << reason as u32);
    }

    /// Whether the view is exact.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the rank may hold blocks that are not in the view. Of a stream that is only unheard yet, nothing says so; and
    /// of a cache that was cleared amid reports only the number of copies is in doubt. More reports would keep it so for ever.
    pub fn can_be_learnt_away(self) -> bool {
        self.iter()
            .any(|reason| !matches!(reason, Oddity::Unheard | Oddity::Reports))
    }

    /// The reasons.
    pub fn iter(self) -> impl Iterator<Item = Oddity> {
        Oddity::DOUBTS
            .into_iter()
            .filter(move |reason| self.0 & 1 << *reason as u32 != 0)
    }
}
