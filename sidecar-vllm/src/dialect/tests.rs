use baton_proto::route::Route;
use baton_proto::ticket::{Draft, TransferMetadata};
use baton_proto::token::FleetToken;

use baton_sidecar_core::engine::Verdict;

use super::*;

fn request(body: &str) -> ClientRequest {
    ClientRequest::new(Route::ChatCompletions, body.to_owned().into()).unwrap()
}

fn with_leg<T>(quarantine: Option<&str>, body: impl FnOnce(Leg<'_>) -> T) -> T {
    let request = "r-1".parse().unwrap();
    body(Leg {
        request: &request,
        quarantine,
        report_reused: false,
    })
}

fn ticket() -> Ticket {
    let draft = Draft {
        id: "t".parse().unwrap(),
        prefill: "p".parse().unwrap(),
        incarnation: "i".parse().unwrap(),
        decode: "d".parse().unwrap(),
        request_digest: request("{}").digest(),
        prompt_tokens: Some(1),
        bytes: Some(1),
        lease_ms: 1,
        metadata: TransferMetadata::new(&br#"{"remote_engine_id": "e",  "x":1.50}"#[..]),
    };
    draft.seal(&FleetToken::new("0123456789abcdef").unwrap(), 1)
}

#[test]
fn a_prefill_leg_asks_for_one_token_and_a_handoff() {
    let client = request(
        r#"{ "messages" : [{"role":"user","content":"\ud83d é"}], "stream":true,"stream_options":{"include_usage":true},
           "max_tokens": 64, "min_tokens":5, "request_id":"mine", "temperature":0.70 }"#,
    );
    let body = with_leg(None, |leg| prefill_body(&client, leg));
    let expected = format!(
        r#"{{ "messages" : [{{"role":"user","content":"\ud83d é"}}], "stream":false,
           "max_tokens": 1, "temperature":0.70,"max_completion_tokens":1,"kv_transfer_params":{ASK} }}"#
    );
    assert_eq!(
        body.split_whitespace().collect::<String>(),
        expected.split_whitespace().collect::<String>()
    );
    assert!(
        body.contains(r#"[{"role":"user","content":"\ud83d é"}]"#),
        "the messages are the client's bytes"
    );
}

#[test]
fn a_decode_leg_is_the_clients_request_with_the_metadata_verbatim() {
    let client = request(r#"{"messages":[],"stream":true,"request_id":"mine"}"#);
    let body = with_leg(None, |leg| decode_body(&client, &ticket(), leg)).unwrap();
    assert_eq!(
        body,
        r#"{"messages":[],"stream":true,"kv_transfer_params":{"remote_engine_id": "e",  "x":1.50}}"#
    );
    assert_eq!(remote_engine_id(&ticket()).as_deref(), Some("e"));
}

#[test]
fn a_local_leg_is_the_clients_request() {
    let client = request(r#"{ "messages":[] , "n":2 }"#);
    assert_eq!(
        with_leg(None, |leg| local_body(&client, leg)),
        r#"{ "messages":[] , "n":2 }"#
    );
}

#[test]
fn a_quarantine_changes_the_salt_of_every_leg() {
    let salted = |body: &str| with_leg(Some("q2"), |leg| local_body(&request(body), leg));
    assert_eq!(salted("{}"), r#"{"cache_salt":"baton-q2"}"#);
    assert_eq!(
        salted(r#"{"cache_salt":null}"#),
        r#"{"cache_salt":"baton-q2"}"#
    );
    assert_eq!(
        salted(r#"{"cache_salt":"tenant \"a\""}"#),
        r#"{"cache_salt":"baton-q2/tenant \"a\""}"#
    );
    assert_eq!(
        salted(r#"{"cache_salt":5}"#),
        r#"{"cache_salt":5}"#,
        "for the engine to refuse"
    );
}

#[test]
fn only_what_needs_the_kv_is_a_token() {
    let verdict = |choices: &str| judge_event(format!(r#"{{"choices":{choices}}}"#).as_bytes());
    for preamble in [
        "[]",
        r#"[{"delta":{"role":"assistant","content":""},"finish_reason":null}]"#,
        r#"[{"delta":{"role":"assistant"}}]"#,
        r#"[{"text":"","finish_reason":null}]"#,
    ] {
        assert_eq!(verdict(preamble), Verdict::Preamble, "{preamble}");
    }
    for token in [
        r#"[{"delta":{"content":"a"}}]"#,
        r#"[{"delta":{"reasoning_content":"hm"}}]"#,
        r#"[{"delta":{"tool_calls":[{"index":0}]}}]"#,
        r#"[{"delta":{},"finish_reason":"stop"}]"#,
        r#"[{"text":"a"}]"#,
        r#"[{"text":"","token_ids":[5]}]"#,
        r#"[{"delta":{}},{"delta":{"content":"b"}}]"#,
    ] {
        assert_eq!(verdict(token), Verdict::Token, "{token}");
    }
    assert_eq!(judge_event(b"[DONE]"), Verdict::Done);
    assert!(matches!(
        judge_event(br#"{"error":{"message":"m","code":503}}"#),
        Verdict::Failed { status: 503, .. }
    ));
    assert!(matches!(
        judge_event(br#"{"error":"odd"}"#),
        Verdict::Failed { status: 500, .. }
    ));
    assert!(matches!(
        judge_event(b"<html>"),
        Verdict::Failed { status: 502, .. }
    ));
    assert_eq!(
        judge_event(br#"{"error":null,"choices":[]}"#),
        Verdict::Preamble
    );
}

#[test]
fn an_answer_has_content_in_every_choice() {
    for good in [
        r#"{"choices":[{"text":""}]}"#,
        r#"{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[]}}]}"#,
        r#"{"choices":[{"text":"a"},{"text":"b"}],"error":null}"#,
    ] {
        assert_eq!(judge_answer(good.as_bytes()), Ok(()), "{good}");
    }
    for bad in [
        "",
        "[]",
        "{}",
        r#"{"choices":[]}"#,
        r#"{"choices":[{}]}"#,
        r#"{"choices":[null]}"#,
        r#"{"choices":[{"text":null}]}"#,
        r#"{"choices":[{"text":"a"},{}]}"#,
        r#"{"choices":[{"text":"a"}],"error":{}}"#,
    ] {
        assert!(judge_answer(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn an_answer_names_its_request() {
    let request: RequestId = "0f".repeat(16).parse().unwrap();
    let answers =
        |json: &str| is_answer_to(json.replace("ID", request.as_str()).as_bytes(), &request);
    for ours in [
        r#"{"id":"cmpl-ID"}"#,
        r#"{"id":"chatcmpl-ID","kv_transfer_params":null}"#,
        r#"{"id":"cmpl-ID","kv_transfer_params":{"remote_request_id":"cmpl-ID-0-5e6f7a8b"}}"#,
        r#"{"choices":[]}"#,
        "not for this question to say",
    ] {
        assert!(answers(ours), "{ours}");
    }
    for anothers in [
        r#"{"id":"cmpl-5e6f7a8b"}"#,
        r#"{"id":""}"#,
        r#"{"id":"cmpl-ID","kv_transfer_params":{"remote_request_id":"cmpl-other-0-5e6f7a8b"}}"#,
    ] {
        assert!(!answers(anothers), "{anothers}");
    }
}

#[test]
fn reused_blocks_are_reported_when_asked_for_and_never_otherwise() {
    let body = |report_reused, body: &str| {
        let id = "r-1".parse().unwrap();
        let leg = Leg {
            request: &id,
            quarantine: None,
            report_reused,
        };
        local_body(&request(body), leg)
    };
    for (client, silent, full) in [
        (
            "{}",
            "{}",
            r#"{"vllm_xargs":{"kv_cache_report_mode":"full"}}"#,
        ),
        (
            r#"{"vllm_xargs":{"a":1.50}}"#,
            r#"{"vllm_xargs":{"a":1.50}}"#,
            r#"{"vllm_xargs":{"a":1.50,"kv_cache_report_mode":"full"}}"#,
        ),
        (
            r#"{"vllm_xargs":{"kv_cache_report_mode":"full","a":1}}"#,
            r#"{"vllm_xargs":{"a":1}}"#,
            r#"{"vllm_xargs":{"kv_cache_report_mode":"full","a":1}}"#,
        ),
        (
            r#"{"vllm_xargs":7}"#,
            r#"{"vllm_xargs":7}"#,
            r#"{"vllm_xargs":7}"#,
        ),
        (
            r#"{"vllm_xargs":null}"#,
            r#"{"vllm_xargs":null}"#,
            r#"{"vllm_xargs":{"kv_cache_report_mode":"full"}}"#,
        ),
    ] {
        assert_eq!(body(false, client), silent, "{client}");
        assert_eq!(body(true, client), full, "{client}");
    }
}
