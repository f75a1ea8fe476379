//! Tokens of the emulated model: a built-in vocabulary, or a model's own `tokenizer.json`.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

/// How text becomes tokens and back.
#[derive(Debug)]
pub enum Tokenizer {
    /// A token is a byte, or one of 65536 generated words: a space and four hexadecimal digits. What was generated and
    /// sent back in the next turn becomes the same tokens again.
    Builtin,
    /// The tokenizer of a model directory.
    Model(Box<ModelTokenizer>),
}

/// The tokenizer of a model directory.
#[derive(Debug)]
pub struct ModelTokenizer {
    tokenizer: tokenizers::Tokenizer,
    vocabulary: u32,
    end: Option<u32>,
    chats: Chats,
}

/// How a chat is written: the two templates of recorded models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chats {
    /// Each message between marks.
    Marked,
    /// Who says it, a colon, and what is said.
    Spoken,
}

impl Chats {
    fn of_model(folder: &Path) -> Self {
        let template = std::fs::read_to_string(folder.join("chat_template.jinja"));
        match template {
            Ok(template) if template.contains("{{m['role']}}: {{m['content']}}") => Self::Spoken,
            _ => Self::Marked,
        }
    }
}

/// First generated word of the built-in vocabulary.
const FIRST_WORD: u32 = 256;

/// The built-in end of a sequence. It is never generated unless it is asked for.
const BUILTIN_END: u32 = FIRST_WORD + 0x1_0000;

/// Of a model's vocabulary, the first ids are special tokens, which are not generated unless they are asked for.
const FIRST_PLAIN: u32 = 5;

impl Tokenizer {
    /// That of a model directory with a `tokenizer.json`; the built-in one for a mere name.
    pub fn of_model(model: &str) -> Result<Self> {
        let file = Path::new(model).join("tokenizer.json");
        if !file.exists() {
            return Ok(Self::Builtin);
        }
        let tokenizer = tokenizers::Tokenizer::from_file(&file)
            .map_err(|error| anyhow!("{} is no tokenizer: {error}", file.display()))?;
        let config = Path::new(model).join("tokenizer_config.json");
        let config: Value = match std::fs::read(&config) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is no JSON", config.display()))?,
            Err(_) => Value::Null,
        };
        let end = config["eos_token"].as_str();
        let end = end.and_then(|end| tokenizer.token_to_id(end));
        let vocabulary = u32::try_from(tokenizer.get_vocab_size(true))?;
        Ok(Self::Model(Box::new(ModelTokenizer {
            tokenizer,
            vocabulary,
            end,
            chats: Chats::of_model(Path::new(model)),
        })))
    }

    /// Tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match self {
            Self::Builtin => encode_builtin(text.as_bytes()),
            Self::Model(model) => model
                .tokenizer
                .encode_fast(text, false)
                .map(|encoding| encoding.get_ids().to_vec())
                .unwrap_or_default(),
        }
    }

    /// Text of one token.
    pub fn text(&self, token: u32) -> String {
        match self {
            Self::Builtin if token < FIRST_WORD => {
                String::from_utf8_lossy(&[u8::try_from(token).unwrap_or(b'?')]).into_owned()
            }
            Self::Builtin if token < BUILTIN_END => format!(" {:04x}", token - FIRST_WORD),
            Self::Builtin => String::new(),
            Self::Model(model) => model.tokenizer.decode(&[token], true).unwrap_or_default(),
        }
    }

    /// How a token is written in the vocabulary.
    pub fn name(&self, token: u32) -> String {
        match self {
            Self::Builtin => self.text(token),
            Self::Model(model) => model.tokenizer.id_to_token(token).unwrap_or_default(),
        }
    }

    /// Text of several tokens.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Builtin => {
                let mut bytes = Vec::new();
                for token in tokens {
                    match u8::try_from(*token) {
                        Ok(byte) => bytes.push(byte),
                        Err(_) => bytes.extend_from_slice(self.text(*token).as_bytes()),
                    }
                }
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Model(model) => model.tokenizer.decode(tokens, true).unwrap_or_default(),
        }
    }

    /// The token that a logit stands for.
    pub fn token_of(&self, logit: u64) -> u32 {
        let (first, plain) = match self {
            Self::Builtin => (FIRST_WORD, u64::from(BUILTIN_END - FIRST_WORD)),
            Self::Model(model) => (FIRST_PLAIN, u64::from(model.vocabulary - FIRST_PLAIN)),
        };
        first + u32::try_from(logit % plain).unwrap_or_default()
    }

    /// A chat as the model's template renders it, up to where the answer begins; `None` if it is none.
    pub fn render_chat(&self, messages: &Value) -> Option<String> {
        self.render_messages(messages, true)
    }

    /// The same, up to the end of its last message unless an answer is to follow.
    pub fn render_messages(&self, messages: &Value, answer_follows: bool) -> Option<String> {
        let chats = match self {
            Self::Builtin => Chats::Marked,
            Self::Model(model) => model.chats,
        };
        written(messages, chats, answer_follows)
    }

    /// The token that ends a sequence.
    pub fn end(&self) -> Option<u32> {
        match self {
            Self::Builtin => Some(BUILTIN_END),
            Self::Model(model) => model.end,
        }
    }
}

fn encode_builtin(text: &[u8]) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        match word(rest) {
            Some(token) => {
                tokens.push(token);
                rest = &rest[5..];
            }
            None => {
                tokens.push(u32::from(*byte));
                rest = behind;
            }
        }
    }
    tokens
}

/// The generated word that a text begins with.
fn word(text: &[u8]) -> Option<u32> {
    let [b' ', digits @ ..] = text.first_chunk::<5>()? else {
        return None;
    };
    let value = digits.iter().try_fold(0, |value, digit| match digit {
        b'0'..=b'9' => Some(value * 16 + u32::from(digit - b'0')),
        b'a'..=b'f' => Some(value * 16 + u32::from(digit - b'a') + 10),
        _ => None,
    })?;
    Some(FIRST_WORD + value)
}

/// A chat as the template with marks renders it; `None` if it is none.
pub fn render_chat(messages: &Value, add_generation_prompt: bool) -> Option<String> {
    written(messages, Chats::Marked, add_generation_prompt)
}

fn written(messages: &Value, chats: Chats, add_generation_prompt: bool) -> Option<String> {
    let (before, between, behind, answer) = match chats {
        Chats::Marked => (
            "<|im_start|>",
            "\n",
            "<|im_end|>\n",
            "<|im_start|>assistant\n",
        ),
        Chats::Spoken => ("<s>", ": ", "\n", "assistant: "),
    };
    let mut text = String::new();
    for message in messages.as_array()? {
        let (role, content) = (message["role"].as_str()?, content(&message["content"])?);
        text.extend([before, role, between, &content, behind]);
    }
    if add_generation_prompt {
        text.push_str(answer);
    }
    Some(text)
}

fn content(content: &Value) -> Option<String> {
    match content {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        // Texts of parts are joined by line breaks (0.32.0, content format `string`).
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part["text"].as_str());
            texts
                .collect::<Option<Vec<_>>>()
                .map(|texts| texts.join("\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_words_come_back_as_the_same_tokens() {
        let tokenizer = Tokenizer::Builtin;
        let said: Vec<u32> = (0..200u64)
            .map(|at| tokenizer.token_of(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .collect();
        let text = format!("Who said{} and why?", tokenizer.decode(&said));
        let tokens = tokenizer.encode(&text);
        assert_eq!(&tokens[8..208], &said);
        assert_eq!(tokenizer.decode(&tokens), text);
    }

    #[test]
    fn any_text_survives() {
        let tokenizer = Tokenizer::Builtin;
        for text in [
            "",
            " ",
            " 12",
            " 12g4",
            "  1234",
            "grüße 😀 \u{0}",
            " beefbeef",
        ] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text)), text);
        }
    }
}
