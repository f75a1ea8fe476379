//! Chats that grow turn by turn: the tokens are those of encoding the whole, whatever was remembered and forgotten.

#![expect(
    clippy::unwrap_used,
    reason = "a model that cannot be loaded fails the test"
)]

use std::path::Path;

use baton_tokens::{Chat, Limits, Model, ModelFiles};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tokenizers::Tokenizer;

const TOKENIZERS: [&str; 9] = [
    "bytelevel",
    "composed",
    "digits",
    "gpt2",
    "metaspace-always",
    "metaspace-first",
    "prepend",
    "unigram",
    "wordpiece",
];
/// Of each tokenizer.
const CHATS: u32 = 400;

/// A template in which turns begin and end with added tokens, as far as the tokenizer has any.
fn template(begin: &str, end: &str) -> String {
    let (begin, end) = (
        serde_json::to_string(begin).unwrap(),
        serde_json::to_string(end).unwrap(),
    );
    format!(
        "{{% for m in messages %}}{{{{ {begin} + m.role + '\n' + m.content + {end} + '\n' }}}}{{% endfor %}}\
         {{% if add_generation_prompt %}}{{{{ {begin} + 'assistant\n' }}}}{{% endif %}}"
    )
}

struct Pair {
    model: Model,
    /// The reference: another copy of the tokenizer, which remembers nothing.
    whole: Tokenizer,
    added: Vec<String>,
}

fn pair(name: &str, cache_bytes: u64) -> Pair {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("vectors/tokenizers")
        .join(name);
    let json = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let whole = Tokenizer::from_bytes(&json).unwrap();
    let mut added: Vec<String> = whole
        .get_added_tokens_decoder()
        .into_values()
        .map(|token| token.content)
        .collect();
    added.sort();
    let pick = |nth: usize| added.get(nth).map_or("", String::as_str);
    let files = ModelFiles {
        tokenizer: Bytes::from(json),
        chat_template: Some(template(pick(added.len() - 1), pick(0))),
        ..ModelFiles::default()
    };
    let model = Model::load(
        &files,
        Limits {
            cache_bytes,
            ..Limits::default()
        },
    )
    .unwrap();
    Pair {
        model,
        whole,
        added,
    }
}

/// What people, programs and attackers write: words, blanks, scripts, and the tokenizer's own tokens.
fn content(added: Vec<String>) -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "hello",
        " world",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "1234567",
        " it's",
        "Zürich",
        "e\u{301}",
        "你好",
        "👨‍👩‍👧",
        "\u{a0}",
        "▁",
        "<|",
        "|>",
        "[",
        "INST",
        "baton",
        "Single",
        "x",
        " ",
        ".",
        "{\"a\": 1}",
        "İ",
        "\u{0}",
        "\u{2028}",
    ]);
    let piece = prop_oneof![6 => words.prop_map(str::to_owned), 2 => prop::sample::select(added), 1 => any::<String>()];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn check(pair: &Pair, contents: &[String]) {
    for turns in 1..=contents.len() {
        let message = |(nth, content): (usize, &String)| json!({"role": if nth % 2 == 0 { "user" } else { "assistant" }, "content": content});
        let messages: Vec<_> = contents[..turns].iter().enumerate().map(message).collect();
        for add_special_tokens in [false, true] {
            let body =
                json!({"messages": messages, "add_special_tokens": add_special_tokens}).to_string();
            let chat = Chat::from(body.as_bytes());
            let text = pair.model.chat_text(&chat).unwrap();
            let whole = pair
                .whole
                .encode_fast(text.as_str(), add_special_tokens)
                .unwrap();
            assert_eq!(
                pair.model.chat(&chat).unwrap().tokens,
                whole.get_ids(),
                "{text:?}"
            );
        }
    }
}

#[test]
fn remembered_tokens_are_those_of_the_whole() {
    for name in TOKENIZERS {
        // Room for a few dozen pieces, so that most are forgotten and come again.
        for cache_bytes in [1 << 24, 1 << 14] {
            let pair = pair(name, cache_bytes);
            let contents = prop::collection::vec(content(pair.added.clone()), 1..6);
            let config = Config {
                cases: CHATS / 2,
                failure_persistence: None,
                ..Config::default()
            };
            TestRunner::new(config)
                .run(&contents, |contents| {
                    check(&pair, &contents);
                    Ok(())
                })
                .unwrap();
        }
    }
}

#[test]
fn a_next_turn_costs_what_is_new_in_it() {
    let pair = pair("bytelevel", 1 << 24);
    assert!(pair.model.shown().cuts_texts);
    let mut messages = Vec::new();
    let mut fresh = Vec::new();
    for turn in 0..20 {
        messages.push(json!({"role": "user", "content": format!("question {turn}: {}", "words and words ".repeat(50))}));
        let body = json!({"messages": messages}).to_string();
        let rendered = pair.model.chat(&Chat::from(body.as_bytes())).unwrap();
        fresh.push(rendered.fresh_bytes);
        assert!(rendered.text_bytes > 800 * (turn + 1));
        messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
    }
    // The first turn costs all of it; every later one its own question and the answer before it.
    assert!(fresh[1..].iter().all(|&bytes| bytes < 1_000), "{fresh:?}");
}

#[test]
fn the_memory_keeps_its_bound() {
    let pair = pair("bytelevel", 1 << 16);
    for nth in 0..2_000 {
        let text = format!("{}{}", nth, "a text of its own ".repeat(nth % 40));
        pair.model.completion(&text, true).unwrap();
    }
    let held = pair.model.shown().memory_bytes;
    assert!((1..=1 << 16).contains(&held), "{held} bytes");
}
