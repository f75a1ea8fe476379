//! The tokenizers that are compared, behind one call.

use anyhow::{Error, Result, anyhow};

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
        let Subject::HuggingFace(tokenizer) = self else {
            return Vec::new();
        };
        let mut added: Vec<String> = tokenizer
            .get_added_tokens_decoder()
            .into_values()
            .map(|token| token.content)
            .collect();
        added.sort();
        added.truncate(64);
        added
    }
}
