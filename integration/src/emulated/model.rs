//! The emulated model: KV bytes from tokens, and tokens from KV bytes.
//!
//! Every token leaves one row of KV. A row depends on its token and on the row before it, so a wrong row spoils all later
//! ones. The next token depends on every byte of every row held, and on nothing else: an engine that decodes from wrong,
//! stale or missing KV says something else than one that computed the prompt itself.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::tokenizer::Tokenizer;

/// Bytes of a row where nothing else is said: the recorded model's 2 layers of 8192 bytes per 32 tokens.
pub const ROW_BYTES: usize = 512;

/// What the first row of a sequence depends on, besides its token.
pub fn seed(lora: Option<&str>) -> u64 {
    xxh3_64_with_seed(lora.unwrap_or_default().as_bytes(), 0x00ba_70e1)
}

/// Writes the row of `token` behind a row that begins with `previous`; its own beginning.
pub fn write_row(previous: u64, token: u32, row: &mut [u8]) -> u64 {
    let first = spread(previous ^ u64::from(token).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut word = first;
    for bytes in row.chunks_mut(8) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23) ^ first;
    }
    first
}

/// The beginning of a row, for the row behind it.
pub fn beginning(row: &[u8]) -> u64 {
    let mut word = [0; 8];
    let known = row.len().min(8);
    word[..known].copy_from_slice(&row[..known]);
    u64::from_le_bytes(word)
}

/// All KV that a sequence has looked at so far.
#[derive(Clone, Default)]
pub struct Attention(Xxh3);

impl std::fmt::Debug for Attention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Attention").field(&self.0.digest()).finish()
    }
}

impl Attention {
    /// Looks at more rows.
    pub fn look_at(&mut self, rows: &[u8]) {
        self.0.update(rows);
    }

    /// What comes of it; equal KV and an equal seed give an equal number.
    pub fn logit(&self, sampling_seed: u64) -> u64 {
        spread(self.0.digest() ^ sampling_seed)
    }
}

/// What an engine that computes the prompt itself says to a completion, greedily.
pub fn text(prompt: &str, count: usize) -> String {
    let tokenizer = Tokenizer::Builtin;
    says(&tokenizer, &tokenizer.encode(prompt), count)
}

/// What an engine that computes the prompt itself says to a chat, greedily.
pub fn chat_text(messages: &serde_json::Value, count: usize) -> String {
    let chat = super::tokenizer::render_chat(messages, true).expect("a chat");
    text(&chat, count)
}

/// What an engine that computes the prompt itself says to these tokens, greedily.
pub fn tokens_text(prompt: &[u32], count: usize) -> String {
    says(&Tokenizer::Builtin, prompt, count)
}

fn says(tokenizer: &Tokenizer, prompt: &[u32], count: usize) -> String {
    let mut attention = Attention::default();
    let mut previous = seed(None);
    let mut row = [0; ROW_BYTES];
    let mut look = |attention: &mut Attention, token| {
        previous = write_row(previous, token, &mut row);
        attention.look_at(&row);
    };
    for token in prompt {
        look(&mut attention, *token);
    }
    let mut text = String::new();
    for _ in 0..count {
        let token = tokenizer.token_of(attention.logit(0));
        text.push_str(&tokenizer.text(token));
        look(&mut attention, token);
    }
    text
}

/// The finaliser of `SplitMix64`: every bit of the result depends on every bit of the value.
fn spread(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_of_any_row_changes_what_is_said() {
        let mut rows = vec![0; 4 * 24];
        let mut previous = seed(None);
        for (token, row) in rows.chunks_mut(24).enumerate() {
            previous = write_row(previous, u32::try_from(token).unwrap(), row);
        }
        let logit = |rows: &[u8]| {
            let mut attention = Attention::default();
            attention.look_at(rows);
            attention.logit(0)
        };
        let right = logit(&rows);
        for at in 0..rows.len() {
            rows[at] ^= 1;
            assert_ne!(logit(&rows), right, "byte {at}");
            rows[at] ^= 1;
        }
    }

    #[test]
    fn how_rows_are_looked_at_does_not_matter() {
        let rows: Vec<u8> = (0..200).collect();
        let mut whole = Attention::default();
        whole.look_at(&rows);
        let mut parts = Attention::default();
        rows.chunks(7).for_each(|rows| parts.look_at(rows));
        assert_eq!(whole.logit(5), parts.logit(5));
        assert_ne!(whole.logit(5), parts.logit(6));
    }

    #[test]
    fn a_changed_token_changes_all_later_rows() {
        let mut row = [0; 16];
        let one = write_row(write_row(seed(None), 1, &mut row), 9, &mut row);
        let two = write_row(write_row(seed(None), 2, &mut row), 9, &mut row);
        assert_ne!(one, two);
        assert_ne!(seed(None), seed(Some("ada")));
    }
}
