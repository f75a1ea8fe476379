//! The fake's model: tokens, the KV that a prompt makes, and the text that KV makes.
//!
//! A token is a byte. The KV of a block is a number that depends on its tokens and on all blocks before it; the text
//! depends on every block's KV and on nothing else. So an engine that decodes from wrong, stale or missing KV says
//! something else than one that computed the prompt itself.

use serde_json::Value;

/// Tokens of a completion's prompt; `None` if it is no text and no list of token ids.
pub fn prompt_tokens(prompt: &Value) -> Option<Vec<u32>> {
    match prompt {
        Value::String(text) => Some(text_tokens(text)),
        Value::Array(ids) => ids
            .iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect(),
        _ => None,
    }
}

/// Tokens of a chat; `None` if it is none.
pub fn chat_tokens(messages: &Value) -> Option<Vec<u32>> {
    let rendered: Option<String> = messages
        .as_array()?
        .iter()
        .map(|message| {
            let (role, content) = (message["role"].as_str()?, message["content"].as_str()?);
            Some(format!("<{role}>{content}\n"))
        })
        .collect();
    Some(text_tokens(&format!("{}<assistant>", rendered?)))
}

fn text_tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The KV of each block of a prompt.
pub fn kv_of(tokens: &[u32], block_size: u32) -> Vec<u64> {
    let mut parent = SEED;
    tokens
        .chunks(block_size as usize)
        .map(|block| {
            parent = block
                .iter()
                .fold(parent, |hash, token| mix(hash, u64::from(*token)));
            parent
        })
        .collect()
}

/// The first words that an engine says from this KV.
pub fn words(kv: &[u64], count: usize) -> Vec<String> {
    let all = kv.iter().fold(SEED, |hash, block| mix(hash, *block));
    let word = |at: usize| format!(" {:04x}", mix(all, at as u64) & 0xffff);
    (0..count).map(word).collect()
}

/// What an engine that computes the prompt itself says to a completion.
pub fn text(prompt: &str, count: usize) -> String {
    words(&kv_of(&text_tokens(prompt), super::BLOCK_SIZE), count).concat()
}

/// What an engine that computes the prompt itself says to a chat.
pub fn chat_text(messages: &Value, count: usize) -> String {
    let tokens = chat_tokens(messages).expect("a chat");
    words(&kv_of(&tokens, super::BLOCK_SIZE), count).concat()
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// One step of FNV-1a over eight bytes, then spread.
fn mix(hash: u64, value: u64) -> u64 {
    let hash = value.to_le_bytes().iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 29)
}
