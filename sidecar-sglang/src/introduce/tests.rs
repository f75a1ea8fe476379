//! What a real engine of 0.5.23 said of itself.

use serde_json::{Value, json};

use super::*;

/// What another engine has otherwise.
type Change = fn(&mut ServerInfo);

fn recorded() -> (ServerInfo, Value) {
    let recorded = include_str!("../../../integration/recordings/sglang/server_info_prefill.json");
    let raw: Value = serde_json::from_str(recorded).unwrap();
    (serde_json::from_value(raw.clone()).unwrap(), raw)
}

#[test]
fn a_recorded_engine_is_known() {
    let (server, _) = recorded();
    let role = refusal::role(&server).unwrap();
    let mut info = info(&server, &[], role);
    let page = "sglang:kv_cache_memory_usage_gb{engine_type=\"prefill\",tp_rank=\"0\"} 0.0019550323486328125\n";
    let fixed = Fixed {
        bytes_per_token: bytes_per_token(page, &server),
        tokenisation: Some("abc".to_owned()),
        files: None,
    };
    fixed.complete(&mut info, &server, role);
    assert_eq!(
        (info.role, info.ranks, info.block_size),
        (Role::Prefill, 1, Some(4))
    );
    assert_eq!(
        (
            info.capacity[0].blocks,
            info.max_sequences,
            info.max_batched_tokens
        ),
        (1024, Some(8), Some(4096))
    );
    // Two layers of two heads of 32 values of two bytes, for keys and for values.
    assert_eq!(info.kv_bytes_per_token, Some(512));
    let compatibility = info.compatibility.unwrap();
    assert_eq!(
        (compatibility.handoff.as_str(), compatibility.block_size),
        ("sglang-nixl", 4)
    );
    assert_eq!(compatibility.facts["model"], "model");
    assert_eq!(compatibility.facts["tokenisation"], "abc");
}

#[test]
fn nothing_secret_is_kept() {
    let (_, mut raw) = recorded();
    for key in [
        "api_key",
        "admin_api_key",
        "ssl_keyfile_password",
        "launch_command",
    ] {
        raw[key] = json!("hunter2");
    }
    let server: ServerInfo = serde_json::from_value(raw).unwrap();
    assert!(!format!("{server:?}").contains("hunter2"));
}

#[test]
fn engines_that_differ_in_one_thing_do_not_match() {
    let (server, _) = recorded();
    let fixed = Fixed::default();
    let prefill = fixed.compatibility(&server, 4);
    assert_eq!(prefill.hands_over_to(&prefill), Ok(()));
    let changes: [(&str, Change); 5] = [
        ("version", |server| server.version = "0.5.24".to_owned()),
        ("model", |server| {
            server.model_path = "/models/other/".to_owned()
        }),
        ("tp_size", |server| server.tp_size = Some(2)),
        ("kv_cache_dtype", |server| {
            server.kv_cache_dtype = Some("fp8_e4m3".to_owned())
        }),
        ("page_size", |server| server.page_size = 8),
    ];
    for (fact, change) in changes {
        let mut other = server.clone();
        change(&mut other);
        let mismatch = prefill
            .hands_over_to(&fixed.compatibility(&other, 4))
            .unwrap_err();
        assert_eq!(mismatch.fact, fact);
    }
    let mut elsewhere = server.clone();
    elsewhere.model_path = "/mnt/models/model".to_owned();
    assert_eq!(
        prefill.hands_over_to(&fixed.compatibility(&elsewhere, 4)),
        Ok(())
    );
}

#[test]
fn a_start_is_known_by_how_long_it_took() {
    let (server, _) = recorded();
    let first = server.incarnation().unwrap();
    assert_eq!(server.incarnation().unwrap(), first);
    let decode: ServerInfo = serde_json::from_str(include_str!(
        "../../../integration/recordings/sglang/server_info_decode.json"
    ))
    .unwrap();
    assert_ne!(decode.incarnation().unwrap(), first);
    let mut again = server.clone();
    let seconds = again.startup_time.as_mut().unwrap();
    seconds.insert("scheduler_e2e".to_owned(), json!(6.103_648_297_000_064));
    assert_ne!(again.incarnation().unwrap(), first);
    let mut silent = server;
    silent.startup_time = None;
    let why = silent.incarnation().unwrap_err().to_string();
    assert!(why.contains("startup_time"), "{why}");
}

#[test]
fn prompts_that_cannot_be_known_are_not_guessed() {
    let (server, _) = recorded();
    let known = prompts(&server, None).unwrap();
    assert_eq!(
        (known.tokenizer.as_deref(), known.other_tokenizer),
        (Some("model"), false)
    );
    let changes: [Change; 2] = [
        |server| server.chat_template = Some("chatml".to_owned()),
        |server| server.hf_chat_template_name = Some("tool_use".to_owned()),
    ];
    for change in changes {
        let mut other = server.clone();
        change(&mut other);
        assert!(prompts(&other, None).is_err());
    }
    let changes: [Change; 2] = [
        |server| server.tokenizer_mode = Some("slow".to_owned()),
        |server| server.skip_tokenizer_init = Some(true),
    ];
    for change in changes {
        let mut other = server.clone();
        change(&mut other);
        assert!(prompts(&other, None).unwrap().other_tokenizer);
    }
}
