//! The tokens that a real engine gave for requests, against those given here.

#![expect(
    clippy::unwrap_used,
    reason = "a recording that cannot be read fails the test"
)]

use std::path::{Path, PathBuf};

use baton_tokens::{Chat, Limits, Model, ModelFiles};
use bytes::Bytes;
use serde_json::Value;

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration/recordings/vllm")
}

fn model() -> Model {
    let read =
        |name: &str| Bytes::from(std::fs::read(recordings().join("model").join(name)).unwrap());
    let files = ModelFiles {
        tokenizer: read("tokenizer.json"),
        tokenizer_config: Some(read("tokenizer_config.json")),
        config: Some(read("config.json")),
        chat_template: Some(String::from_utf8(read("chat_template.jinja").to_vec()).unwrap()),
        ..ModelFiles::default()
    };
    Model::load(&files, Limits::default()).unwrap()
}

/// Exchanges of all recordings: name, path, request, and the engine's answers (several for a stream).
fn exchanges() -> Vec<(String, String, Value, Vec<Value>)> {
    let mut found = Vec::new();
    for file in ["exchanges.jsonl", "split_legs.jsonl", "streams.jsonl"] {
        for line in std::fs::read_to_string(recordings().join(file))
            .unwrap()
            .lines()
        {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            found.push((
                text("name"),
                text("path"),
                line["request"].clone(),
                answers(&line),
            ));
        }
    }
    found
}

fn answers(line: &Value) -> Vec<Value> {
    let events = ["answer", "body", "raw"]
        .into_iter()
        .find_map(|name| line[name].as_str());
    match events {
        Some(events) => events
            .lines()
            .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
            .collect(),
        None => vec![line["answer"].clone()],
    }
}

/// The prompt's tokens, or how many they are, if the engine told.
fn told(answers: &[Value]) -> Option<(Option<Vec<u32>>, u64)> {
    let ids = answers.iter().find_map(|answer| {
        let choice = &answer["choices"][0]["prompt_token_ids"];
        [&answer["prompt_token_ids"], choice, &answer["tokens"]]
            .into_iter()
            .find_map(|ids| serde_json::from_value::<Vec<u32>>(ids.clone()).ok())
    });
    let count = answers
        .iter()
        .find_map(|answer| answer["usage"]["prompt_tokens"].as_u64());
    match (ids, count) {
        (Some(ids), _) => {
            let count = ids.len() as u64;
            Some((Some(ids), count))
        }
        (None, count) => Some((None, count?)),
    }
}

#[test]
fn every_recorded_prompt_is_tokenised_as_the_engine_did() {
    let model = model();
    let (mut by_ids, mut by_count) = (0, 0);
    for (name, path, request, answers) in exchanges() {
        let Some((ids, count)) = told(&answers) else {
            continue;
        };
        let body = request.to_string().into_bytes();
        let chat = request.get("messages").is_some();
        let tokens = if chat {
            model.chat(&Chat::from(&body[..])).unwrap().tokens
        } else if path == "/detokenize" || path.starts_with("/inference") {
            continue;
        } else {
            // Of several prompts the engine tells the ids of the first, and counts now one, now all of them.
            let prompts = model.completions(&body).unwrap();
            if prompts.len() == 1 {
                assert_eq!(prompts[0].len() as u64, count, "{name}");
            }
            prompts.into_iter().next().unwrap()
        };
        if chat {
            assert_eq!(tokens.len() as u64, count, "{name}");
        }
        if let Some(ids) = ids {
            assert_eq!(tokens, ids, "{name}");
            by_ids += 1;
        } else {
            by_count += 1;
        }
    }
    assert!(
        by_ids > 150 && by_count > 20,
        "{by_ids} by ids, {by_count} by count"
    );
}

#[test]
fn a_chat_is_tokenised_as_the_engine_did() {
    let body = br#"{"model": "tiny", "messages": [{"role": "user", "content": "hello world"}]}"#;
    let rendered = model().chat(&Chat::from(&body[..])).unwrap();
    assert_eq!(
        rendered.tokens,
        [3, 760, 203, 340, 793, 4, 203, 3, 289, 964, 88, 286, 88, 203]
    );
    assert_eq!(
        model().completion("the quick brown fox", true).unwrap(),
        [728, 792, 796, 761]
    );
}
