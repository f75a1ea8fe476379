//! A client's chat on its way to tokens: whatever comes, the text is cut without changing a token, within its bounds.

#![no_main]

use std::sync::LazyLock;

use baton_tokens::{Chat, Limits, Model, ModelFiles, Now, Unknown};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const TOKENIZER: &[u8] = include_bytes!("../../tokens/vectors/tokenizers/bytelevel/tokenizer.json");
const TEMPLATES: [&str; 3] = [
    include_str!("../../tokens/vectors/templates/chatml.jinja"),
    include_str!("../../tokens/vectors/templates/alternating.jinja"),
    include_str!("../../tokens/vectors/templates/turns.jinja"),
];
const NOW: Now = Now { unix_seconds: 1_741_529_106, utc_offset_seconds: 3_600 };

/// Small enough that a rendering cannot take long.
fn limits(cache_bytes: u64) -> Limits {
    Limits { most_bytes: 1 << 16, cache_bytes, template_fuel: 200_000, ..Limits::default() }
}

/// Two models: one that remembers what it has encoded, and one that can remember nothing.
fn load(template: &str) -> [Model; 2] {
    let files = ModelFiles {
        tokenizer: Bytes::from_static(TOKENIZER),
        chat_template: Some(template.to_owned()),
        ..ModelFiles::default()
    };
    [1 << 20, 0].map(|cache_bytes| Model::load(&files, limits(cache_bytes)).expect("the vectors' own files"))
}

static MODELS: LazyLock<[[Model; 2]; 3]> = LazyLock::new(|| TEMPLATES.map(load));

fuzz_target!(|data: &[u8]| {
    let Some((steer, body)) = baton_fuzz::steered(data) else { return };
    let [remembering, forgetful] = &MODELS[steer % TEMPLATES.len()];
    let chat = Chat { body, now: Some(NOW) };
    let outcome = remembering.chat(&chat);
    let _ = remembering.completions(body);
    match &outcome {
        Ok(rendered) => assert!(rendered.text_bytes <= 1 << 16 && rendered.tokens.len() <= rendered.text_bytes + 1),
        Err(unknown) => assert_ne!(unknown, &Unknown::TimeDependent),
    }
    assert_eq!(outcome.map(|rendered| rendered.tokens), forgetful.chat(&chat).map(|rendered| rendered.tokens));
});
