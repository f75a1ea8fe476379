//! The files by which a router turns requests into the very tokens that the engine makes of them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::frame;

/// What decides the tokens of a prompt, as it lies beside the engine. Served by a sidecar whose
/// [`crate::worker::WorkerInfo::tokenizer_digest`] says so.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelFiles {
    /// `tokenizer.json`.
    pub tokenizer: Bytes,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Bytes>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<Bytes>,
    /// `config.json`.
    pub config: Option<Bytes>,
    /// The chat template that the engine was given, or `chat_template.jinja`.
    pub chat_template: Option<String>,
    /// How the engine was started, as far as it changes prompts.
    pub prompting: Prompting,
}

/// Settings of an engine that change what a chat becomes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Prompting {
    /// The form in which the template gets a message's content, `string` or `openai`; the engine looks into the template
    /// if absent.
    pub content_format: Option<String>,
    /// JSON object of arguments for the template that requests do not give.
    pub default_template_arguments: Option<String>,
    /// Tools are not shown to the template when none may be chosen.
    pub exclude_tools_when_not_chosen: bool,
    /// What comes between the parts of a content that the template gets as one string; a line break if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_separator: Option<String>,
}

impl ModelFiles {
    /// The same for the same files and settings, on every host.
    pub fn digest(&self) -> String {
        let digest = blake3::hash(&frame::to_bytes(self));
        digest.to_hex()[..32].to_owned()
    }
}

/// Answer of [`crate::call::path::TOKENIZE`]: the tokens that the engine makes of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// Token ids.
    pub tokens: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_and_setting_is_in_the_digest() {
        let files = ModelFiles {
            tokenizer: Bytes::from_static(b"{}"),
            ..ModelFiles::default()
        };
        let mut others = vec![ModelFiles::default(), files.clone()];
        let mut other = |change: fn(&mut ModelFiles)| {
            let mut changed = files.clone();
            change(&mut changed);
            others.push(changed);
        };
        other(|files| files.tokenizer_config = Some(Bytes::from_static(b"{}")));
        other(|files| files.special_tokens_map = Some(Bytes::from_static(b"{}")));
        other(|files| files.config = Some(Bytes::from_static(b"{}")));
        other(|files| files.chat_template = Some("{}".to_owned()));
        other(|files| files.prompting.content_format = Some("string".to_owned()));
        other(|files| files.prompting.default_template_arguments = Some("{}".to_owned()));
        other(|files| files.prompting.exclude_tools_when_not_chosen = true);
        other(|files| files.prompting.part_separator = Some(" ".to_owned()));
        let digests: std::collections::HashSet<String> =
            others.iter().map(ModelFiles::digest).collect();
        assert_eq!(digests.len(), others.len());
        assert_eq!(files.digest(), files.clone().digest());
    }
}
