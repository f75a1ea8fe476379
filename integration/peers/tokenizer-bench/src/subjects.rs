//! The tokenizers that are compared, behind one call.

use anyhow::{Error, Result, anyhow};
use tokenizers::AddedToken;

/// A loaded tokenizer.
pub enum Subject {
    HuggingFace(Box<tokenizers::Tokenizer>),
    Fastokens(Box<fastokens::Tokenizer>),
    Kitoken(Box<kitoken::Kitoken>),
}

/// The one that says what is right.
pub fn reference(json: &[u8]) -> Result<Subject> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(Error::from_boxed)?;
    tokenizer
        .with_padding(None)
        .with_truncation(None)
        .map_err(Error::from_boxed)?;
    Ok(Subject::HuggingFace(Box::new(tokenizer)))
}

/// The others, loaded from the same file.
pub fn peers(json: &[u8]) -> Vec<(&'static str, Result<Subject>)> {
    let fastokens = || -> Result<Subject> {
        let tokenizer = fastokens::Tokenizer::from_json(serde_json::from_slice(json)?)
            .map_err(|error| anyhow!("{error}"))?;
        Ok(Subject::Fastokens(Box::new(tokenizer)))
    };
    let kitoken = || -> Result<Subject> {
        let tokenizer =
            kitoken::Kitoken::from_tokenizers_slice(json).map_err(|error| anyhow!("{error:?}"))?;
        Ok(Subject::Kitoken(Box::new(tokenizer)))
    };
    vec![("fastokens", fastokens()), ("kitoken", kitoken())]
}

impl Subject {
    /// The text's tokens, added tokens among them, with nothing put around them.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Subject::HuggingFace(tokenizer) => Ok(tokenizer
                .encode_fast(text, false)
                .map_err(Error::from_boxed)?
                .get_ids()
                .to_vec()),
            Subject::Fastokens(tokenizer) => {
                tokenizer.encode(text).map_err(|error| anyhow!("{error}"))
            }
            Subject::Kitoken(tokenizer) => tokenizer
                .encode(text, true)
                .map_err(|error| anyhow!("{error:?}")),
        }
    }

    /// The added tokens of the reference.
    pub fn added(&self) -> Vec<String> {
        self.added_where(|_| true)
    }

    /// A token of the reference at which a text may be cut.
    pub fn separator(&self) -> Option<String> {
        let plain = |token: &AddedToken| {
            token.special && !token.normalized && !token.lstrip && !token.single_word
        };
        self.added_where(plain).pop()
    }

    fn added_where(&self, wanted: impl Fn(&AddedToken) -> bool) -> Vec<String> {
        let Subject::HuggingFace(tokenizer) = self else {
            return Vec::new();
        };
        let added = tokenizer
            .get_added_tokens_decoder()
            .into_values()
            .filter(wanted);
        let mut added: Vec<String> = added.map(|token| token.content).collect();
        added.sort();
        added.truncate(64);
        added
    }
}
