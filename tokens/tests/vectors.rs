//! What the engine and its libraries make of chats and texts (`vectors/`), against what is made of them here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use baton_tokens::{Chat, Limits, Model, ModelFiles, Now, ShownTemplate, Unknown};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The clock of the vectors: 2025-03-09 14:05:06.
const NOW: Now = Now { unix_seconds: 1_741_529_106, utc_offset_seconds: 0 };

#[derive(Deserialize)]
struct ChatVector {
    #[serde(default)]
    template: String,
    #[serde(default)]
    source: String,
    name: String,
    /// As it is written: the order of members counts.
    body: Box<RawValue>,
    text: Option<String>,
    format: Option<String>,
    error: Option<String>,
    tokens: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct TextVector {
    text: String,
    tokens: Vec<u32>,
    plain: Vec<u32>,
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Vec<T> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn files(tokenizer: &str) -> ModelFiles {
    let read = |name: &str| Bytes::from(std::fs::read(vectors().join("tokenizers").join(tokenizer).join(name)).unwrap());
    ModelFiles { tokenizer: read("tokenizer.json"), tokenizer_config: Some(read("tokenizer_config.json")), ..ModelFiles::default() }
}

fn model(template: &str) -> Model {
    let files = ModelFiles { chat_template: Some(template.to_owned()), ..files("bytelevel") };
    Model::load(&files, Limits::default()).unwrap()
}

/// Compares one chat. `Ok` says that the outcome is the engine's; `Err`, that it was left to the engine, and why.
fn compare(model: &Model, vector: &ChatVector) -> Result<(), Unknown> {
    let body = vector.body.get().as_bytes();
    let chat = Chat { body, now: Some(NOW) };
    let name = format!("{} {}: {}", vector.template, vector.name, vector.source);
    match (model.chat_text(&chat), &vector.text) {
        (Ok(text), Some(expected)) if &text == expected => {}
        (Ok(text), Some(expected)) => { eprintln!("DIFF {name}\n  {text:?}\n  {expected:?}"); return Ok(()); }
        (Ok(text), None) => { eprintln!("DIFF {name}: the engine says {:?}, here it is {text:?}", vector.error); return Ok(()); }
        (Err(_), None) => return Ok(()),
        (Err(unknown), Some(_)) => return Err(unknown),
    }
    if let Some(tokens) = &vector.tokens {
        assert_eq!(&model.chat(&chat).unwrap().tokens, tokens, "{name}");
    }
    let shown = model.shown().templates.remove(0).1;
    if let (ShownTemplate::Rendered { content_format, .. }, Some(format)) = (shown, &vector.format) {
        assert_eq!(&format!("{content_format:?}").to_lowercase(), format, "{name}");
    }
    Ok(())
}

#[test]
fn chats_are_rendered_as_by_the_engine() {
    let mut left = BTreeMap::<String, usize>::new();
    let mut models = BTreeMap::new();
    let chats: Vec<ChatVector> = read(&vectors().join("chats.json"));
    for chat in &chats {
        let model = models.entry(chat.template.clone()).or_insert_with(|| {
            model(&std::fs::read_to_string(vectors().join("templates").join(format!("{}.jinja", chat.template))).unwrap())
        });
        if let Err(unknown) = compare(model, chat) {
            *left.entry(format!("{}: {unknown}", chat.name)).or_default() += 1;
        }
    }
    let left: Vec<String> = left.into_iter().map(|(what, times)| format!("{times} {what}")).collect();
    assert_eq!(left.join("\n"), "");
}

#[test]
fn snippets_are_rendered_as_by_the_engine() {
    let snippets: Vec<ChatVector> = read(&vectors().join("snippets.json"));
    let left: Vec<String> = snippets
        .iter()
        .filter_map(|snippet| {
            let unknown = compare(&model(&snippet.source), snippet).err()?;
            Some(format!("{}: {unknown}", snippet.name))
        })
        .collect();
    assert_eq!(left.join("\n"), "");
}

#[test]
fn texts_are_tokenised_as_by_the_engine() {
    for file in std::fs::read_dir(vectors().join("texts")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let model = Model::load(&files(&name), Limits::default()).unwrap();
        // Twice: the second time from memory.
        for _ in 0..2 {
            for vector in read::<TextVector>(&path) {
                assert_eq!(model.completion(&vector.text, true).unwrap(), vector.tokens, "{name}: {:?}", vector.text);
                assert_eq!(model.completion(&vector.text, false).unwrap(), vector.plain, "{name}: {:?}", vector.text);
            }
        }
    }
}
