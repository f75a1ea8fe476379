//! What bodies of all engines ask for in the same way.

use serde_json::Value;

use super::tokenizer::Tokenizer;

/// A count; `None` if it is none.
pub(super) fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// A token id; `None` if it is none.
pub(super) fn token(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// A list of token ids; `None` if it is none.
pub(super) fn tokens(ids: &Value) -> Option<Vec<u32>> {
    ids.as_array()?.iter().map(token).collect()
}

/// One prompt's tokens, whether it is a text or a list of them.
pub(super) fn prompt(given: &Value, tokenizer: &Tokenizer) -> Option<Vec<u32>> {
    match given {
        Value::String(text) => Some(tokenizer.encode(text)),
        ids => tokens(ids),
    }
}

/// The prompts of a list of them; `None` if it is one prompt, or empty.
pub(super) fn several(given: &Value) -> Option<&Vec<Value>> {
    let items = given.as_array();
    items.filter(|items| !items.is_empty() && items.iter().all(|item| !item.is_number()))
}

/// Texts that end an answer.
pub(super) fn stop_texts(stop: &Value) -> Vec<String> {
    match stop {
        Value::String(stop) => vec![stop.clone()],
        Value::Array(stops) => stops
            .iter()
            .filter_map(|stop| stop.as_str().map(str::to_owned))
            .collect(),
        _ => Vec::new(),
    }
}

/// Tokens that end an answer.
pub(super) fn stop_tokens(ids: &Value) -> Vec<u32> {
    let ids = ids.as_array().into_iter().flatten();
    ids.filter_map(token).collect()
}

/// Greedy unless a temperature is given: engines' default is 1, but whoever does not care gets what can be compared.
pub(super) fn sampling_seed(temperature: &Value, seed: Option<u64>) -> u64 {
    let temperature = temperature.as_f64().unwrap_or(0.0);
    match seed {
        _ if temperature <= 0.0 => 0,
        Some(seed) => seed.wrapping_add(1),
        None => rand::random(),
    }
}

/// Texts that a grammar allows, with this key: a few, so that the KV still decides.
pub(super) fn objects(key: &str) -> Vec<String> {
    (0..8)
        .map(|value| format!("{{\"{key}\":{value}}}"))
        .collect()
}
