//! Why there are no tokens: every case in which exactness cannot be vouched for.

use thiserror::Error;

/// Why the prompt's tokens are not known. Each is one sentence that can be logged as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unknown {
    /// Longer than any context of the model could hold, or than this process is willing to encode.
    #[error("the prompt has {bytes} bytes and at most {most} are encoded")]
    TooLong {
        /// What came, in bytes of body or of rendered text.
        bytes: usize,
        /// What is encoded at most, in bytes.
        most: usize,
    },
    /// A content part that is not text: its tokens depend on the model's processor.
    #[error("a content part of type {0:?} becomes tokens in the engine only")]
    Multimodal(String),
    /// The template asks for the date and the caller gave none.
    #[error("the chat template asks for the current time and none was given")]
    TimeDependent,
    /// The model has no chat template in its files.
    #[error("the model's files have no chat template")]
    NoTemplate,
    /// The template refused this chat, or does what is not reproduced here.
    #[error("the chat template: {0}")]
    Template(String),
    /// The request asks for what only the engine knows how to do.
    #[error("{0} is left to the engine")]
    Unsupported(String),
    /// The engine would answer this request with an error, as far as can be told here.
    #[error("the engine refuses {0}")]
    Refused(String),
    /// The body is not what the route takes.
    #[error("the body is no such request: {0}")]
    Body(String),
    /// The tokenizer itself failed.
    #[error("the tokenizer: {0}")]
    Tokenizer(String),
}

/// Why a model's files are not usable at all. Each is one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file is larger than the limit.
    #[error("{file} has {bytes} bytes and at most {most} are read")]
    TooLarge {
        /// Which file.
        file: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        most: usize,
    },
    /// A file cannot be parsed.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// Which file.
        file: &'static str,
        /// What its parser says.
        reason: String,
    },
    /// The engine does not make this model's prompts by its files.
    #[error("the engine makes the prompts of {0} by its own code, not by the model's files")]
    OwnCode(String),
    /// The tokenizer contradicts itself on the built-in texts.
    #[error("the tokenizer gives different tokens for the same text")]
    Unstable,
}
