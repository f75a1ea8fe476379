//! Where a text may be cut so that its pieces encode to the tokens of the whole.
//!
//! A tokenizer takes the added tokens out of a text first and never looks across them, so a text may be cut before one.
//! (Cutting at line breaks or spaces is not exact.) A piece begins with its added token: what follows it is then not at
//! the start of a text, in the piece as in the whole, which is what a `Metaspace` that marks only the first word asks.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::{AddedToken, Tokenizer};

/// Finds the cuts of one tokenizer.
#[derive(Debug)]
pub(crate) struct Cuts {
    tokens: AhoCorasick,
    /// By pattern: may a text be cut before this token?
    eligible: Vec<bool>,
}

impl Cuts {
    /// None where the tokenizer has no token at which a cut is exact.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Cuts> {
        // Added tokens that match normalised text are looked for later, inside a piece.
        let tokens: Vec<AddedToken> = tokenizer
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| !token.normalized && !token.content.is_empty())
            .collect();
        // Whether a single word matches depends on its neighbours, which a cut would take away.
        if tokenizer.get_encode_special_tokens() || tokens.iter().any(|token| token.single_word) {
            return None;
        }
        let eligible: Vec<bool> = tokens.iter().map(may_be_cut_before).collect();
        if !eligible.contains(&true) {
            return None;
        }
        let contents = tokens.iter().map(|token| &token.content);
        // The same rule as the tokenizer's own: leftmost, and of those the longest.
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(contents)
            .ok()?;
        Some(Cuts { tokens, eligible })
    }

    /// The pieces of a text, in order; none of them is empty.
    pub(crate) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let starts = self
            .tokens
            .find_iter(text)
            .filter(|found| self.eligible[found.pattern().as_usize()])
            .map(|found| found.start());
        let mut from = 0;
        starts.chain([text.len()]).filter_map(move |to| {
            let piece = &text[from..to];
            from = to;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// Not before a token that takes the blanks on its left, or that could itself be blanks taken by the one before it.
fn may_be_cut_before(token: &AddedToken) -> bool {
    !token.lstrip && !token.content.starts_with(char::is_whitespace)
}
