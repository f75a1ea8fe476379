use baton_proto::digest::RequestDigest;
use baton_proto::route::Route;
use baton_proto::ticket::Draft;
use baton_proto::token::FleetToken;
use baton_proto::{ErrorKind, Retry};
use baton_sidecar_core::engine::Verdict;
use serde_json::{Value, json};

use super::*;

const ROOM: u64 = 9_007_199_254_740_993;

fn bootstrap(room: u64) -> Bootstrap {
    Bootstrap {
        host: "10.0.0.7".to_owned(),
        port: 8998,
        room,
    }
}

fn request(body: &str) -> ClientRequest {
    ClientRequest::new(Route::ChatCompletions, body.to_owned().into()).unwrap()
}

fn ticket(metadata: TransferMetadata) -> Ticket {
    let draft = Draft {
        id: "t".parse().unwrap(),
        prefill: "p".parse().unwrap(),
        incarnation: "i".parse().unwrap(),
        decode: "d".parse().unwrap(),
        request_digest: RequestDigest::of("/v1/chat/completions", b"{}"),
        prompt_tokens: None,
        bytes: None,
        lease_ms: 1,
        metadata,
    };
    draft.seal(&FleetToken::new("0123456789abcdef").unwrap(), 1)
}

fn id() -> RequestId {
    "0123456789abcdef0123456789abcdef".parse().unwrap()
}

fn leg(id: &RequestId, quarantine: Option<&'static str>) -> Leg<'static> {
    Leg {
        request: Box::leak(Box::new(id.clone())),
        quarantine,
        report_reused: false,
    }
}

fn read(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

#[test]
fn both_legs_meet_in_one_room_under_ids_of_their_own() {
    let client = request(
        r#"{"messages":[],"rid":"mine","stream":true,"stream_options":{"include_usage":true},"data_parallel_rank":1,"routed_dp_rank":2,"disagg_prefill_dp_rank":3}"#,
    );
    let metadata = bootstrap(ROOM).metadata();
    let leg = leg(&id(), None);
    let prefill = read(&prefill_body(&client, Some(&metadata), leg));
    let decode = read(&decode_body(&client, &ticket(metadata), leg).unwrap());
    let id = "0123456789abcdef0123456789abcdef";
    assert_eq!(
        prefill,
        json!({"messages": [], "rid": id, "stream": false, "bootstrap_host": "10.0.0.7", "bootstrap_port": 8998,
            "bootstrap_room": ROOM})
    );
    assert_eq!(
        decode,
        json!({"messages": [], "rid": id, "stream": true, "stream_options": {"include_usage": true},
            "bootstrap_host": "10.0.0.7", "bootstrap_port": 8998, "bootstrap_room": ROOM})
    );
}

#[test]
fn a_local_leg_has_no_room_and_a_salt_behind_a_quarantine() {
    let client = request(r#"{"messages":[],"cache_salt":"own"}"#);
    let body = read(&local_body(&client, leg(&id(), Some("q"))));
    let id = "0123456789abcdef0123456789abcdef";
    assert_eq!(
        body,
        json!({"messages": [], "cache_salt": "baton-q/own", "rid": id})
    );
}

#[test]
fn no_engine_sees_a_room_that_it_does_not_survive() {
    let client = request(r#"{"messages":[]}"#);
    let (zero, beyond) = (bootstrap(0), bootstrap(LAST_ROOM + 1));
    let no_port = Bootstrap {
        port: 0,
        ..bootstrap(1)
    };
    let strange = [
        zero.metadata(),
        beyond.metadata(),
        no_port.metadata(),
        TransferMetadata::new(&b"{}"[..]),
        TransferMetadata::new(
            &br#"{"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":-1}"#[..],
        ),
        TransferMetadata::new(&br#"{"bootstrap_host":"h","bootstrap_room":1}"#[..]),
    ];
    for metadata in strange {
        let shown = format!("{metadata:?}");
        let refused = decode_body(&client, &ticket(metadata), leg(&id(), None)).unwrap_err();
        assert_eq!(
            (refused.kind, refused.retry),
            (ErrorKind::TicketRefused, Retry::Safe),
            "{shown}"
        );
    }
    for room in [1, LAST_ROOM] {
        let metadata = bootstrap(room).metadata();
        assert_eq!(Bootstrap::parse(&metadata), Ok(bootstrap(room)));
    }
}

/// As SGLang 0.5.23 answered.
const PREFILLED: &str = r#"{"id":"0978dc01e1844c6b91840c1233217254","object":"text_completion","created":1796006840,"model":"tiny","choices":[{"index":0,"text":";","logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":20,"total_tokens":21,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":16},"reasoning_tokens":0,"completion_tokens_details":null},"metadata":{"weight_version":"default"}}"#;

#[test]
fn a_prefill_that_answered_has_handed_over() {
    let usage = |cached_tokens| {
        Ok(Prefilled::HandedOver {
            usage: PrefillUsage {
                prompt_tokens: 20,
                cached_tokens,
            },
        })
    };
    assert_eq!(read_prefill(PREFILLED.as_bytes()), usage(Some(16)));
    let silent = PREFILLED.replace(r#"{"cached_tokens":16}"#, "null");
    assert_eq!(read_prefill(silent.as_bytes()), usage(None));
}

#[test]
fn a_200_with_an_abort_inside_is_no_prefill() {
    for reason in [r#""abort""#, "null", r#""stop""#] {
        let ended = PREFILLED.replace(r#""length""#, reason);
        let error = read_prefill(ended.as_bytes()).unwrap_err();
        assert_eq!(error.retry, Retry::AfterCancel, "{reason}");
    }
    for strange in [
        &b""[..],
        b"{}",
        br#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
    ] {
        assert!(read_prefill(strange).is_err());
    }
}

#[test]
fn answers_and_events_with_failures_inside_are_none() {
    let aborted = PREFILLED.replace(r#""length""#, r#""abort""#);
    assert_eq!(judge_answer(PREFILLED.as_bytes()), Ok(()));
    assert!(judge_answer(aborted.as_bytes()).is_err());
    let event = br#"{"error": {"object": "error", "message": "no room", "type": "BAD_REQUEST", "param": null, "code": 400}}"#;
    assert_eq!(
        judge_event(event),
        Verdict::Failed {
            status: 400,
            message: "no room".to_owned()
        }
    );
    let chunk = |content: &str, reason: &str| {
        format!(
            r#"{{"id":"c","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{"reasoning_content":null,{content}}},"logprobs":null,"finish_reason":{reason},"matched_stop":null}}]}}"#
        )
    };
    let role = chunk(r#""role":"assistant","content":"""#, "null");
    let token = chunk(r#""content":"I""#, "null");
    let abort = chunk(r#""content":"I""#, r#""abort""#);
    assert_eq!(judge_event(role.as_bytes()), Verdict::Preamble);
    assert_eq!(judge_event(token.as_bytes()), Verdict::Token);
    assert!(matches!(
        judge_event(abort.as_bytes()),
        Verdict::Failed { .. }
    ));
}

#[test]
fn an_answer_names_its_request() {
    let of = |id: &str| is_answer_to(PREFILLED.as_bytes(), &id.parse().unwrap());
    assert!(of("0978dc01e1844c6b91840c1233217254"));
    assert!(!of("0978dc01e1844c6b91840c123321725"));
    assert!(is_answer_to(b"[1]", &id()), "it does not say");
    let named = |end: &str| format!(r#"{{"id":"{}{end}"}}"#, id().as_str());
    let is_ours = |end: &str| is_answer_to(named(end).as_bytes(), &id());
    assert!(is_ours("_0") && is_ours("_12"), "prompts of a batch");
    assert!(!is_ours("_") && !is_ours("_a") && !is_ours("0"));
}
