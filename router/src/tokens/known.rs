//! What a plan can know of a prompt.

use baton_proto::request::ClientRequest;

use crate::view::{Prompt, Text};

/// What is known of a prompt, from most to least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Known {
    /// Its tokens: the request gives them.
    Given,
    /// Its tokens, made from the model's files.
    Files,
    /// Its tokens, as an engine told them.
    Engine,
    /// Its text: what begins alike was computed alike.
    Text,
    /// How long it is, roughly.
    #[default]
    Size,
}

impl Known {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Given,
        Self::Files,
        Self::Engine,
        Self::Text,
        Self::Size,
    ];

    /// The word in metrics, headers and logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Files => "files",
            Self::Engine => "engine",
            Self::Text => "text",
            Self::Size => "size",
        }
    }
}

/// What became of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokenised {
    /// It, if its tokens are known.
    pub prompt: Option<Prompt>,
    /// Its text, where no files make tokens of it.
    pub text: Option<Text>,
    /// By what it is planned.
    pub known: Known,
    /// Why not by tokens that are made here.
    pub because: Option<&'static str>,
    /// Why it must not be split, if so: two engines may make different prompts of it.
    pub local: Option<&'static str>,
}

impl Tokenised {
    /// A request of whose prompts these are the tokens. If the engine would not look into its cache for them they are of no use
    /// but for their number, and that is not looked at.
    pub(super) fn by_tokens(request: &ClientRequest, tokens: Vec<Vec<u32>>, known: Known) -> Self {
        let prompt = Prompt::tokenised(request, tokens);
        let known = if prompt.is_some() { known } else { Known::Size };
        Self {
            prompt,
            known,
            ..Self::default()
        }
    }
}
