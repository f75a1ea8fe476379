use std::time::Duration;

use baton_proto::digest::RequestDigest;
use baton_proto::ticket::Draft;
use baton_proto::token::FleetToken;
use baton_proto::{ErrorKind, Retry, Source};
use baton_sidecar_core::engine::{Prefilled, Verdict};
use proptest::prelude::*;
use serde_json::Value;

use super::*;

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../integration/recordings/trtllm/",
            $name
        ))
    };
}

const LEASE: Duration = Duration::from_secs(54);

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn id() -> RequestId {
    "0123456789abcdef0123456789abcdef".parse().unwrap()
}

fn leg(quarantine: Option<&'static str>) -> Leg<'static> {
    Leg {
        request: Box::leak(Box::new(id())),
        quarantine,
        report_reused: false,
    }
}

fn chat(body: &Value) -> ClientRequest {
    ClientRequest::new(Route::ChatCompletions, body.to_string().into()).unwrap()
}

fn completion(body: &Value) -> ClientRequest {
    ClientRequest::new(Route::Completions, body.to_string().into()).unwrap()
}

fn ticket(metadata: TransferMetadata) -> Ticket {
    let draft = Draft {
        id: "t".parse().unwrap(),
        prefill: "p".parse().unwrap(),
        incarnation: "i".parse().unwrap(),
        decode: "d".parse().unwrap(),
        request_digest: RequestDigest::of("/v1/completions", b"{}"),
        prompt_tokens: None,
        bytes: None,
        lease_ms: 1,
        metadata,
    };
    draft.seal(&FleetToken::new("0123456789abcdef").unwrap(), 1)
}

/// The metadata of a context engine's recorded answer.
fn metadata(answer: &str) -> TransferMetadata {
    match read_prefill(answer.as_bytes(), LEASE).unwrap() {
        Prefilled::Handoff { usage, kv } => {
            assert_eq!((usage.prompt_tokens, usage.cached_tokens), (71, Some(32)));
            assert_eq!((kv.lease, kv.bytes), (LEASE, None));
            kv.metadata
        }
        other => panic!("{other:?}"),
    }
}

/// An answer with one thing about it changed.
fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut answer = value(recorded!("ctx_completion_response.json"));
    change(&mut answer);
    answer.to_string()
}

fn without_nulls(mut params: Value) -> Value {
    let params = params.as_object_mut().unwrap();
    params.retain(|key, value| !value.is_null() && key != "return_prompt_token_ids_b64");
    Value::Object(params.clone())
}

#[test]
fn the_context_leg_is_as_the_engines_own_orchestrator_writes_it() {
    for (recorded, is_chat) in [
        (recorded!("ctx_completion_request.json"), false),
        (recorded!("ctx_chat_request.json"), true),
    ] {
        let expected = value(recorded);
        let mut client = expected.clone();
        client
            .as_object_mut()
            .unwrap()
            .remove("disaggregated_params");
        client["stream"] = true.into();
        client["stream_options"] = json!({"include_usage": true});
        let request = if is_chat {
            chat(&client)
        } else {
            completion(&client)
        };
        let mut body = value(&prefill_body(&request, None, leg(None)));
        let id = body["disaggregated_params"]["disagg_request_id"].take();
        assert!(id.as_u64().unwrap() >= 1 << 40);
        let mut expected = expected;
        expected["disaggregated_params"]["disagg_request_id"] = Value::Null;
        expected["stream_options"] = Value::Null;
        assert_eq!(body, expected);
    }
}

#[test]
fn the_generation_leg_is_as_the_engines_own_orchestrator_writes_it() {
    let mut expected = value(recorded!("gen_completion_request.json"));
    let mut client = expected.clone();
    client
        .as_object_mut()
        .unwrap()
        .remove("disaggregated_params");
    client["prompt"] = "the text that the tokens were made of".into();
    let of_completion = metadata(recorded!("ctx_completion_response.json"));
    let body = decode_body(&completion(&client), &ticket(of_completion), leg(None)).unwrap();
    let mut body = value(&body);
    body["disaggregated_params"] = without_nulls(body["disaggregated_params"].take());
    assert_eq!(body, expected);

    expected = value(recorded!("gen_chat_request.json"));
    let mut client = expected.clone();
    for key in ["disaggregated_params", "prompt_token_ids"] {
        client.as_object_mut().unwrap().remove(key);
    }
    let of_chat = metadata(recorded!("ctx_chat_response.json"));
    let body = decode_body(&chat(&client), &ticket(of_chat), leg(None)).unwrap();
    let mut body = value(&body);
    body["disaggregated_params"] = without_nulls(body["disaggregated_params"].take());
    assert_eq!(body, expected);
}

#[test]
fn no_key_is_added_that_the_engine_did_not_have() {
    let answer = recorded!("ctx_completion_response_1_2.json");
    let told = value(answer)["choices"][0]["disaggregated_params"].clone();
    let ticket = ticket(metadata(answer));
    let body = decode_body(&completion(&json!({"prompt": "p"})), &ticket, leg(None)).unwrap();
    let params = value(&body)["disaggregated_params"].clone();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&params), keys(&told));
    assert_eq!(params["encoded_opaque_state"], told["encoded_opaque_state"]);
}

#[test]
fn tokens_in_another_form_are_left_to_the_engine() {
    let ticket = ticket(metadata(recorded!("ctx_chat_response_b64_ids.json")));
    let body = decode_body(&chat(&json!({"messages": []})), &ticket, leg(None)).unwrap();
    assert_eq!(value(&body).get("prompt_token_ids"), None);
}

#[test]
fn an_answer_that_ended_by_itself_is_no_handoff() {
    let answer = recorded!("ctx_completion_response_finished_early.json");
    let read = read_prefill(answer.as_bytes(), LEASE).unwrap();
    assert!(
        matches!(read, Prefilled::Ended { kv: None, .. }),
        "{read:?}"
    );
}

#[test]
fn what_a_generation_engine_does_not_survive_never_reaches_it() {
    let params = |key: &'static str, to: Value| {
        changed(move |answer| answer["choices"][0]["disaggregated_params"][key] = to)
    };
    for (answer, part) in [
        (params("first_gen_tokens", Value::Null), "first_gen_tokens"),
        (params("first_gen_tokens", json!([])), "first_gen_tokens"),
        (params("first_gen_tokens", json!(["a"])), "strange"),
        (
            changed(|answer| {
                let params = &mut answer["choices"][0]["disaggregated_params"];
                params["schedule_style"] = 1.into();
                params["ctx_info_endpoint"] = "tcp://a:1".into();
                params["first_gen_tokens"] = Value::Null;
            }),
            "first_gen_tokens",
        ),
        (params("ctx_request_id", Value::Null), "no ids"),
        (params("disagg_request_id", Value::Null), "no ids"),
        (
            changed(|answer| answer["choices"][0]["disaggregated_params"] = Value::Null),
            "no disaggregated_params",
        ),
        (
            changed(|answer| answer["choices"][0]["finish_reason"] = Value::Null),
            "finish_reason",
        ),
        (
            changed(|answer| answer["choices"] = json!([])),
            "one choice",
        ),
        (
            changed(|answer| {
                let choice = answer["choices"][0].clone();
                answer["choices"] = json!([choice.clone(), choice]);
            }),
            "one choice",
        ),
        (changed(|answer| answer["usage"] = Value::Null), "usage"),
    ] {
        let error = read_prefill(answer.as_bytes(), LEASE).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.source_of_blame, Source::Engine);
    }
    for metadata in [
        "{}",
        "",
        r#"{"disaggregated_params":{"ctx_request_id":1,"disagg_request_id":1,"first_gen_tokens":[]}}"#,
    ] {
        let ticket = ticket(TransferMetadata::new(metadata.to_owned()));
        let error = decode_body(&completion(&json!({})), &ticket, leg(None)).unwrap_err();
        assert_eq!(
            (error.kind, error.retry),
            (ErrorKind::TicketRefused, Retry::Safe)
        );
    }
}

#[test]
fn an_answer_is_to_the_leg_whose_id_it_has() {
    let ours = ids::of_leg(&id());
    let answer = changed(|answer| {
        answer["choices"][0]["disaggregated_params"]["disagg_request_id"] = ours.into()
    });
    assert!(is_answer_to(answer.as_bytes(), &id()));
    assert!(!is_answer_to(
        recorded!("ctx_completion_response.json").as_bytes(),
        &id()
    ));
    assert!(
        is_answer_to(b"{\"id\":\"cmpl-1\"}", &id()),
        "nothing is said"
    );
}

#[test]
fn a_handoff_that_begins_with_decode_has_one_id_on_both_legs() {
    let recorded = value(recorded!("generation_first_pair.json"));
    let server: crate::server_info::ServerInfo =
        serde_json::from_value(recorded["ctx_server_info"].clone()).unwrap();
    let id = recorded["ctx_request_disaggregated_params"]["disagg_request_id"]
        .as_u64()
        .unwrap();
    let offered = offer(id, &server.endpoint().unwrap());
    let request = completion(&json!({"prompt": "p"}));
    let context = value(&prefill_body(&request, Some(&offered), leg(None)));
    assert_eq!(
        context["disaggregated_params"],
        recorded["ctx_request_disaggregated_params"]
    );
    let generation = value(&decode_body(&request, &ticket(offered), leg(None)).unwrap());
    assert_eq!(
        generation["disaggregated_params"],
        recorded["gen_request_disaggregated_params"]
    );
    assert_eq!(generation["prompt"], "p");
    let answer = recorded!("ctx_completion_response_finished_early.json");
    let read = read_offered(answer.as_bytes()).unwrap();
    assert!(matches!(read, Prefilled::HandedOver { .. }));
}

#[test]
fn behind_a_quarantine_chats_have_a_salt_and_nothing_else_knows_one() {
    let request = chat(&json!({"messages": [], "cache_salt": "own"}));
    let body = value(&local_body(&request, leg(Some("q"))));
    assert_eq!(body, json!({"messages": [], "cache_salt": "baton-q/own"}));
    let body = value(&prefill_body(&request, None, leg(Some("q"))));
    assert_eq!(body["cache_salt"], "baton-q/own");
    let text = completion(&json!({"prompt": "p"}));
    assert_eq!(local_body(&text, leg(Some("q"))), r#"{"prompt":"p"}"#);
    assert_eq!(
        local_body(&request, leg(None)),
        r#"{"cache_salt":"own","messages":[]}"#
    );
}

/// What events of a stream mean, in its order.
fn verdicts(stream: &str) -> Vec<Verdict> {
    let events = baton_daemon::http::sse::events(stream.as_bytes());
    let data = events.filter_map(baton_daemon::http::sse::data);
    data.map(|data| judge_event(&data)).collect()
}

#[test]
fn streams_of_both_eras_are_understood() {
    use Verdict::{Done, Preamble, Token};
    let completion = [Token, Token, Token, Preamble, Done];
    assert_eq!(verdicts(recorded!("gen_completion_stream.sse")), completion);
    assert_eq!(
        verdicts(recorded!("gen_completion_stream_1_2.sse")),
        completion
    );
    assert_eq!(
        verdicts(recorded!("gen_chat_stream.sse")),
        [Preamble, Token, Token, Token, Done]
    );
}

#[test]
fn a_failure_inside_a_stream_is_one_whatever_follows() {
    let verdicts = verdicts(recorded!("completion_stream_error.sse"));
    assert_eq!(verdicts[0], Verdict::Token);
    let Verdict::Failed { status, message } = &verdicts[1] else {
        panic!("{verdicts:?}");
    };
    assert_eq!((*status, message.as_str()), (500, "Request 42 timed out"));
    assert_eq!(verdicts[2..], [Verdict::Done, Verdict::Done]);
}

#[test]
fn whole_answers_are_judged() {
    assert_eq!(
        judge_answer(recorded!("gen_completion_response.json").as_bytes()),
        Ok(())
    );
    let errors = value(recorded!("errors.json"));
    for error in errors["worker"].as_array().unwrap() {
        let body = error["body"].to_string();
        assert!(judge_answer(body.as_bytes()).is_err(), "{body}");
    }
}

proptest! {
    /// Whatever bytes an answer or a ticket has, it is read or refused; what is read can be given to decode.
    #[test]
    fn no_answer_is_too_strange(at in 0usize..3000, to in any::<u8>()) {
        let mut answer = recorded!("ctx_completion_response.json").as_bytes().to_vec();
        let at = at % answer.len();
        answer[at] = to;
        if let Ok(Prefilled::Handoff { kv, .. }) = read_prefill(&answer, LEASE) {
            let request = completion(&json!({"prompt": "p"}));
            let body = decode_body(&request, &ticket(kv.metadata), leg(None)).unwrap();
            prop_assert!(serde_json::from_str::<Value>(&body).is_ok());
        }
        let _ = is_answer_to(&answer, &id());
        let _ = Handoff::parse(&TransferMetadata::new(answer));
    }
}
