//! Requests and files that mean harm: each costs a bound, and none gives wrong tokens.

#![expect(
    clippy::unwrap_used,
    reason = "a model that cannot be loaded fails the test"
)]

use std::path::Path;

use baton_tokens::{Chat, EngineSettings, Limits, LoadError, Model, ModelFiles, Unknown};
use bytes::Bytes;
use serde_json::json;

const CHATML: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

fn files(template: &str) -> ModelFiles {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/tokenizers/bytelevel");
    ModelFiles {
        tokenizer: Bytes::from(std::fs::read(folder.join("tokenizer.json")).unwrap()),
        chat_template: Some(template.to_owned()),
        ..ModelFiles::default()
    }
}

fn model(template: &str) -> Model {
    Model::load(&files(template), Limits::default()).unwrap()
}

fn user(content: &str) -> Vec<u8> {
    json!({"messages": [{"role": "user", "content": content}]})
        .to_string()
        .into_bytes()
}

fn chat(model: &Model, body: &[u8]) -> Result<Vec<u32>, Unknown> {
    model
        .chat(&Chat::from(body))
        .map(|rendered| rendered.tokens)
}

#[test]
fn ten_megabytes_are_refused_before_they_are_looked_at() {
    let model = model(CHATML);
    let huge = "a".repeat(10 << 20);
    let most = Limits::default().most_bytes;
    assert_eq!(
        model.completion(&huge, true),
        Err(Unknown::TooLong {
            bytes: huge.len(),
            most
        })
    );
    assert!(matches!(
        chat(&model, &user(&huge)),
        Err(Unknown::TooLong { .. })
    ));
    assert!(matches!(
        model.completions(&user(&huge)),
        Err(Unknown::TooLong { .. })
    ));
}

#[test]
fn only_so_much_is_encoded_anew() {
    let limits = Limits {
        most_fresh_bytes: 1_000,
        ..Limits::default()
    };
    let model = Model::load(&files(CHATML), limits).unwrap();
    let one = "x".repeat(1_001);
    let most = 1_000;
    assert_eq!(
        model.completion(&one, true),
        Err(Unknown::TooLong { bytes: 1_001, most })
    );
    // Piece by piece, a text that is asked for again gets further.
    let turn = |turn: u32| format!("<|im_start|>{turn}{}", "words ".repeat(60));
    let many = (0..10).map(turn).collect::<Vec<_>>().concat();
    let tries = (1..=10).find(|_| model.completion(&many, true).is_ok());
    assert!(tries.is_some_and(|tries| tries > 1), "{tries:?}");
    assert_eq!(
        model.completion(&many, true),
        self::model(CHATML).completion(&many, true)
    );
}

#[test]
fn what_no_context_can_hold_is_refused() {
    let engine = EngineSettings {
        context_length: Some(16),
        ..EngineSettings::default()
    };
    let model = Model::load(
        &ModelFiles {
            engine,
            ..files(CHATML)
        },
        Limits::default(),
    )
    .unwrap();
    let most = model.shown().most_bytes;
    assert!(most < 1 << 18, "{most}");
    assert!(matches!(
        model.completion(&"b".repeat(most + 1), true),
        Err(Unknown::TooLong { .. })
    ));
    assert!(model.completion(&"b".repeat(100), true).is_ok());
}

#[test]
fn a_template_cannot_grow_without_bound() {
    let squared = "{% for m in messages %}{% for n in messages %}{% for o in messages %}{{ m.content }}{% endfor %}{% endfor %}{% endfor %}";
    let message = json!({"role": "user", "content": "x".repeat(1000)});
    let body = json!({"messages": vec![message; 300]})
        .to_string()
        .into_bytes();
    assert!(matches!(
        chat(&model(squared), &body),
        Err(Unknown::TooLong { .. })
    ));
    let silent = "{% for m in messages %}{% for n in messages %}{% for o in messages %}{% set x = m.content ~ n.content %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(
        chat(&model(silent), &body),
        Err(Unknown::Template(_))
    ));
    let range = "{% for i in range(100000000) %}{% set x = i %}{% endfor %}";
    assert!(matches!(
        chat(&model(range), &user("x")),
        Err(Unknown::Template(_))
    ));
    let recursive = "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(messages) }}";
    assert!(matches!(
        chat(&model(recursive), &user("x")),
        Err(Unknown::Template(_))
    ));
    let indented = "{{ messages | tojson(indent=100000000) }}";
    assert!(chat(&model(indented), &user("x")).is_ok_and(|tokens| tokens.len() < 2_000));
}

#[test]
fn deep_and_broken_bodies_are_refused() {
    let model = model(CHATML);
    let deep = format!(
        "{{\"messages\": {}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let bodies: [&[u8]; 8] = [
        deep.as_bytes(),
        b"",
        b"[]",
        b"{",
        b"{\"messages\": 1}",
        b"{\"messages\": [1]}",
        b"{\"messages\": [{\"role\": 1}]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}",
    ];
    for body in bodies {
        let outcome = chat(&model, body);
        assert!(
            matches!(outcome, Err(Unknown::Body(_) | Unknown::Refused(_))),
            "{outcome:?}"
        );
    }
    let surrogate = br#"{"messages": [{"role": "user", "content": "\ud800"}]}"#;
    assert!(matches!(chat(&model, surrogate), Err(Unknown::Body(_))));
}

#[test]
fn many_tokens_and_long_words_are_encoded_in_bounded_time() {
    let model = model(CHATML);
    for text in [
        "<|im_start|>".repeat(20_000),
        "a".repeat(200_000),
        " ".repeat(200_000),
        "你".repeat(60_000),
        "é1 ".repeat(60_000),
    ] {
        assert!(!chat(&model, &user(&text)).unwrap().is_empty());
    }
}

#[test]
fn requests_that_only_the_engine_understands_are_left_to_it() {
    let model = model(CHATML);
    let message = json!({"role": "user", "content": "x"});
    let with = |name: &str, value: serde_json::Value| {
        let mut body = json!({"messages": [message]});
        body[name] = value;
        chat(&model, body.to_string().as_bytes())
    };
    assert!(with("temperature", json!(0.5)).is_ok());
    assert!(matches!(
        with("chat_template", json!("{{ 1 }}")),
        Err(Unknown::Unsupported(_))
    ));
    assert!(matches!(
        with("chat_template_kwargs", json!({"tokenize": true})),
        Err(Unknown::Unsupported(_))
    ));
    assert!(matches!(
        with("truncate_prompt_tokens", json!(-1)),
        Err(Unknown::Unsupported(_))
    ));
    assert!(matches!(
        with("add_generation_prompt", json!("yes")),
        Err(Unknown::Unsupported(_))
    ));
    assert!(matches!(with("tools", json!([])), Err(Unknown::Refused(_))));
    let all = with("a", json!(1)).unwrap();
    let last = with("truncate_prompt_tokens", json!(3)).unwrap();
    assert_eq!(last, all[all.len() - 3..]);
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]});
    assert_eq!(
        chat(&model, image.to_string().as_bytes()),
        Err(Unknown::Multimodal("image_url".into()))
    );
}

#[test]
fn a_template_that_reads_the_clock_needs_one() {
    let model = model("{% if messages | length > 1 %}{{ strftime_now('%Y') }}{% endif %}x");
    assert!(chat(&model, &user("x")).is_ok());
    let two =
        json!({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]})
            .to_string();
    assert_eq!(chat(&model, two.as_bytes()), Err(Unknown::TimeDependent));
}

#[test]
fn without_a_template_there_are_completions_only() {
    let model = Model::load(
        &ModelFiles {
            chat_template: None,
            ..files("")
        },
        Limits::default(),
    )
    .unwrap();
    assert_eq!(chat(&model, &user("x")), Err(Unknown::NoTemplate));
    assert!(model.completion("x", true).is_ok());
}

#[test]
fn files_that_are_no_model_are_refused_in_a_sentence() {
    let load = |files: ModelFiles| Model::load(&files, Limits::default()).map(|_| ());
    for tokenizer in ["", "{}", "[1]", "{\"model\": {\"type\": \"BPE\"}}"] {
        let outcome = load(ModelFiles {
            tokenizer: Bytes::from(tokenizer),
            ..ModelFiles::default()
        });
        assert!(
            matches!(
                outcome,
                Err(LoadError::Unreadable {
                    file: "tokenizer.json",
                    ..
                })
            ),
            "{outcome:?}"
        );
    }
    let small = Limits {
        most_file_bytes: 100,
        ..Limits::default()
    };
    let outcome = Model::load(&files(CHATML), small).map(|_| ());
    assert!(
        matches!(outcome, Err(LoadError::TooLarge { most: 100, .. })),
        "{outcome:?}"
    );
    for (config, own) in [
        (r#"{"model_type": "gpt_oss"}"#, "gpt_oss"),
        (
            r#"{"architectures": ["DeepseekV32ForCausalLM"]}"#,
            "DeepseekV32ForCausalLM",
        ),
    ] {
        let config = Some(Bytes::from(config));
        let outcome = load(ModelFiles {
            config,
            ..files(CHATML)
        });
        assert_eq!(outcome, Err(LoadError::OwnCode(own.into())));
    }
    let tokenizer_config = Some(Bytes::from("[1]"));
    let outcome = load(ModelFiles {
        tokenizer_config,
        ..files(CHATML)
    });
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "tokenizer_config.json cannot be read: it holds an array and no object"
    );
}

/// The vectors' chats with bytes changed, doubled and taken away.
#[test]
fn damaged_bodies_give_tokens_or_a_reason() {
    #[derive(serde::Deserialize)]
    struct Vector {
        body: serde_json::Value,
    }
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let chats: Vec<Vector> =
        serde_json::from_slice(&std::fs::read(vectors.join("chats.json")).unwrap()).unwrap();
    let template = std::fs::read_to_string(vectors.join("templates/chatml.jinja")).unwrap();
    let (remembering, forgetful) = (
        model(&template),
        Model::load(
            &files(&template),
            Limits {
                cache_bytes: 0,
                ..Limits::default()
            },
        )
        .unwrap(),
    );
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).unwrap()
    };
    let (mut given, mut left) = (0, 0);
    for round in 0..2_000 {
        let mut body = chats[round % chats.len()].body.to_string().into_bytes();
        for _ in 0..next(3) {
            let (at, length) = (next(body.len()), next(12));
            let end = (at + length).min(body.len());
            match next(3) {
                0 => drop(body.drain(at..end)),
                1 => body[at] = b"{}[]\",:\\0ant \xff"[next(14)],
                _ => body.extend_from_within(at..end),
            }
            body.push(b' ');
        }
        let outcome = chat(&remembering, &body);
        assert_eq!(outcome, chat(&forgetful, &body));
        *if outcome.is_ok() {
            &mut given
        } else {
            &mut left
        } += 1;
    }
    assert!(given > 500 && left > 500, "{given} given, {left} left");
}
