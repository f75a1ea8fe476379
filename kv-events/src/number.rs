//! Arrays of numbers: nearly all bytes of nearly all batches.

use baton_sidecar_core::mirror::event::EngineHash;

use crate::cursor::{Cursor, Malformed, Value};

/// How to take an unsigned number out of the eight bytes that begin with its marker.
#[derive(Clone, Copy)]
struct Form {
    /// Bits of the marker, shifted out to the left.
    left: u8,
    /// Bits behind the number, shifted out to the right.
    right: u8,
    /// Bytes it takes; 0 for all that is no unsigned number of up to four bytes.
    bytes: u8,
}

/// Tokens have one to three forms in one array, in no order, so a branch for each would be guessed wrong; shifts by table
/// take half the time.
const FORMS: [Form; 256] = {
    let mut forms = [Form {
        left: 0,
        right: 0,
        bytes: 0,
    }; 256];
    let mut marker = 0;
    while marker < 0x80 {
        forms[marker].right = 56;
        forms[marker].bytes = 1;
        marker += 1;
    }
    let mut width = 0;
    while width < 3 {
        let bytes = 1 << width;
        forms[0xcc + width] = Form {
            left: 8,
            right: 64 - 8 * bytes,
            bytes: bytes + 1,
        };
        width += 1;
    }
    forms
};

/// Reads `count` numbers that fit 32 bits. Whether all were such; if not, the cursor is anywhere.
pub fn read_tokens(
    cursor: &mut Cursor<'_>,
    count: u32,
    tokens: &mut Vec<u32>,
) -> Result<bool, Malformed> {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    // A claimed length is believed as far as there are bytes.
    tokens.reserve(left.min(cursor.rest().len()));
    while left > 0 {
        left -= read_short(cursor, left, tokens);
        if left == 0 {
            break;
        }
        let Value::Unsigned(number) = cursor.value()? else {
            return Ok(false);
        };
        let Ok(token) = u32::try_from(number) else {
            return Ok(false);
        };
        tokens.push(token);
        left -= 1;
    }
    Ok(true)
}

/// Reads numbers of up to four bytes as long as there are some and eight bytes to look at; how many.
fn read_short(cursor: &mut Cursor<'_>, most: usize, tokens: &mut Vec<u32>) -> usize {
    let before = cursor.rest();
    let mut rest = before;
    let mut taken = 0;
    while taken < most
        && let Some(window) = rest.first_chunk::<8>()
    {
        let form = FORMS[usize::from(window[0])];
        if form.bytes == 0 {
            break;
        }
        let number = u64::from_be_bytes(*window) << form.left >> form.right;
        #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits are left")]
        tokens.push(number as u32);
        rest = &rest[usize::from(form.bytes)..];
        taken += 1;
    }
    cursor.advance(before.len() - rest.len());
    taken
}

/// Reads `count` pairs of numbers that fit 32 bits, and keeps the first of each. Whether all were such; if not, the cursor
/// is anywhere.
pub fn read_pairs(
    cursor: &mut Cursor<'_>,
    count: u32,
    tokens: &mut Vec<u32>,
) -> Result<bool, Malformed> {
    for _ in 0..count {
        let pair = [cursor.value()?, cursor.value()?, cursor.value()?];
        let [Value::Array(2), Value::Unsigned(first), Value::Unsigned(_)] = pair else {
            return Ok(false);
        };
        let Ok(token) = u32::try_from(first) else {
            return Ok(false);
        };
        tokens.push(token);
    }
    Ok(true)
}

/// Reads `count` names of blocks. Whether all were such; if not, the cursor is anywhere.
pub fn read_hashes(
    cursor: &mut Cursor<'_>,
    count: u32,
    hashes: &mut Vec<EngineHash>,
) -> Result<bool, Malformed> {
    for _ in 0..count {
        match hash(cursor.value()?) {
            Some(hash) => hashes.push(hash),
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// An engine's name of a block: an integer, signed or not, or the bytes of a digest. vLLM itself makes the one of the other by taking the
/// last eight bytes as a big-endian number (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`), so a block has one key in either form.
pub fn hash(value: Value<'_>) -> Option<EngineHash> {
    match value {
        Value::Unsigned(number) => Some(EngineHash(number)),
        Value::Negative(number) => Some(EngineHash(number.cast_unsigned())),
        Value::Bytes(bytes) if !bytes.is_empty() => {
            let last = &bytes[bytes.len().saturating_sub(8)..];
            let number = last
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte));
            Some(EngineHash(number))
        }
        _ => None,
    }
}
