//! Text to tokens: the model's own tokenizer, asked only for what it has not encoded before.

use std::collections::HashSet;
use std::sync::Arc;

use tokenizers::{AddedToken, Tokenizer};

use crate::corpus;
use crate::cuts::Cuts;
use crate::files::TokenizerConfig;
use crate::limits::Limits;
use crate::pieces::Pieces;
use crate::unknown::{LoadError, Unknown};

/// A tokenizer with a memory.
#[derive(Debug)]
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    /// None: this tokenizer's texts are encoded whole.
    cuts: Option<Cuts>,
    /// None: what is put around a text is not simply put around it, so that such texts are encoded whole.
    around: Option<Around>,
    pieces: Pieces,
    longest_token_chars: usize,
    most_fresh_bytes: usize,
}

/// The tokens before and after every text that is encoded with special tokens.
#[derive(Debug, Default, PartialEq, Eq)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// Tokens and how much of them was new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub(crate) tokens: Vec<u32>,
    /// Bytes of text that had to be encoded.
    pub(crate) fresh_bytes: usize,
}

impl Encoder {
    pub(crate) fn load(
        json: &[u8],
        config: &TokenizerConfig,
        limits: &Limits,
    ) -> Result<Encoder, LoadError> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| LoadError::Unreadable {
            file: "tokenizer.json",
            reason: error.to_string(),
        })?;
        prepare(&mut tokenizer, config)?;
        let longest_token_chars = tokenizer
            .get_vocab(true)
            .keys()
            .map(|token| token.chars().count())
            .max()
            .unwrap_or(1);
        let cuts = Cuts::of(&tokenizer);
        let mut encoder = Encoder {
            tokenizer,
            cuts,
            around: None,
            pieces: Pieces::new(limits.cache_bytes),
            longest_token_chars,
            most_fresh_bytes: limits.most_fresh_bytes,
        };
        encoder.around = encoder.find_around();
        encoder.check()?;
        Ok(encoder)
    }

    /// Characters of the longest token, as the engine counts them to tell a hopeless prompt before encoding it.
    pub(crate) fn longest_token_chars(&self) -> usize {
        self.longest_token_chars
    }

    /// Whether pieces of a text are encoded apart.
    pub(crate) fn cuts_texts(&self) -> bool {
        self.cuts.is_some()
    }

    /// Bytes that the memory holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.pieces.bytes()
    }

    /// How many tokens are put around a text.
    pub(crate) fn special_tokens(&self) -> Option<(&[u32], &[u32])> {
        self.around
            .as_ref()
            .map(|around| (around.before.as_slice(), around.after.as_slice()))
    }

    /// The tokens of a text, exactly those of encoding it whole.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Encoded, Unknown> {
        if !add_special_tokens {
            return self.plain(text, Encoded::default());
        }
        let Some(around) = &self.around else {
            self.refuse_more(text.len())?;
            return Ok(Encoded {
                tokens: self.whole(text, true)?,
                fresh_bytes: text.len(),
            });
        };
        let started = Encoded {
            tokens: around.before.clone(),
            fresh_bytes: 0,
        };
        let mut encoded = self.plain(text, started)?;
        encoded.tokens.extend_from_slice(&around.after);
        Ok(encoded)
    }

    fn plain(&self, text: &str, mut encoded: Encoded) -> Result<Encoded, Unknown> {
        let Some(cuts) = &self.cuts else {
            self.piece(text, &mut encoded)?;
            return Ok(encoded);
        };
        for piece in cuts.pieces(text) {
            self.piece(piece, &mut encoded)?;
        }
        Ok(encoded)
    }

    fn piece(&self, text: &str, encoded: &mut Encoded) -> Result<(), Unknown> {
        let tokens = match self.pieces.get(text) {
            Some(tokens) => tokens,
            None => {
                self.refuse_more(encoded.fresh_bytes + text.len())?;
                let tokens: Arc<[u32]> = self.whole(text, false)?.into();
                self.pieces.put(text, Arc::clone(&tokens));
                encoded.fresh_bytes += text.len();
                tokens
            }
        };
        encoded.tokens.extend_from_slice(&tokens);
        Ok(())
    }

    /// What has been encoded before this piece stays remembered, so that the same text gets further the next time.
    fn refuse_more(&self, bytes: usize) -> Result<(), Unknown> {
        let most = self.most_fresh_bytes;
        let refused = Unknown::TooLong { bytes, most };
        (bytes <= most).then_some(()).ok_or(refused)
    }

    /// The reference: the model's tokenizer on the whole text, with nothing remembered.
    pub(crate) fn whole(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Unknown> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|error| Unknown::Tokenizer(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Asks the tokenizer what it puts around texts, and believes it only if it is the same for all of the corpus.
    fn find_around(&self) -> Option<Around> {
        let mut found = None;
        for text in corpus::texts(&self.added_contents()) {
            let (plain, full) = (
                self.whole(&text, false).ok()?,
                self.whole(&text, true).ok()?,
            );
            // Nothing can be told from texts without tokens.
            if plain.is_empty() {
                continue;
            }
            let at = match &found {
                None => full
                    .windows(plain.len())
                    .position(|window| window == plain)?,
                Some(Around { before, .. }) => before.len(),
            };
            let end = at + plain.len();
            if full.get(at..end)? != plain {
                return None;
            }
            let around = Around {
                before: full[..at].to_vec(),
                after: full[end..].to_vec(),
            };
            if found.get_or_insert(Around {
                before: around.before.clone(),
                after: around.after.clone(),
            }) != &around
            {
                return None;
            }
        }
        found
    }

    /// Cutting must give what the whole gives, else nothing is cut; the whole must give the same twice.
    fn check(&mut self) -> Result<(), LoadError> {
        for text in corpus::texts(&self.added_contents()) {
            for add_special_tokens in [false, true] {
                let Ok(whole) = self.whole(&text, add_special_tokens) else {
                    continue;
                };
                let again = self
                    .encode(&text, add_special_tokens)
                    .map(|encoded| encoded.tokens);
                if again.as_ref() != Ok(&whole) {
                    (self.cuts, self.around) = (None, None);
                }
                // A model with dropout, for one: its tokens cannot be foretold.
                if self.whole(&text, add_special_tokens).as_ref() != Ok(&whole) {
                    return Err(LoadError::Unstable);
                }
            }
        }
        Ok(())
    }

    fn added_contents(&self) -> Vec<String> {
        let mut tokens: Vec<(u32, AddedToken)> = self
            .tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .collect();
        tokens.sort_by_key(|(id, _)| *id);
        tokens.into_iter().map(|(_, token)| token.content).collect()
    }
}

/// What the engine does to a tokenizer after reading it: no truncation, no padding, its configuration's tokens.
fn prepare(tokenizer: &mut Tokenizer, config: &TokenizerConfig) -> Result<(), LoadError> {
    let unreadable = |error: tokenizers::Error| LoadError::Unreadable {
        file: "tokenizer.json",
        reason: error.to_string(),
    };
    tokenizer.with_truncation(None).map_err(unreadable)?;
    tokenizer.with_padding(None);
    tokenizer.set_encode_special_tokens(config.split_special_tokens);
    let known: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
    let mut missing: Vec<AddedToken> = config
        .listed
        .iter()
        .filter(|token| !known.contains(token))
        .cloned()
        .collect();
    let named: HashSet<&str> = known
        .iter()
        .chain(&missing)
        .map(|token| token.content.as_str())
        .collect();
    let new = config
        .named
        .iter()
        .filter(|text| !named.contains(text.as_str()))
        .map(|text| AddedToken::from(text.as_str(), true));
    let new: Vec<AddedToken> = new.collect();
    missing.extend(new);
    tokenizer.add_tokens(missing).map_err(unreadable)?;
    Ok(())
}
