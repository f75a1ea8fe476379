//! The dialect against what a real vLLM 0.32.0 answered (`integration/recordings/vllm`).

#![expect(
    clippy::unwrap_used,
    reason = "a recording that cannot be read fails the test"
)]

use std::time::Duration;

use baton_daemon::http::sse;
use baton_sidecar_core::engine::{Prefilled, Verdict};
use baton_sidecar_vllm::dialect::{judge_answer, judge_event, read_prefill};
use baton_sidecar_vllm::handshake::{Geometry, Handshake};
use baton_sidecar_vllm::metrics_page::MetricsPage;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Leg {
    name: String,
    status: u16,
    answer: Box<RawValue>,
}

#[derive(Deserialize)]
struct Stream {
    name: String,
    stream: String,
}

/// What is done to `kv_transfer_params`, and its name.
type Alteration = (&'static str, fn(&mut serde_json::Value));

/// The engine id in the recorded legs.
const ENGINE: &str = "prefill-1796011785";

fn lines<T: serde::de::DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn legs() -> Vec<Leg> {
    lines(include_str!(
        "../../integration/recordings/vllm/split_legs.jsonl"
    ))
}

fn handshake(side: &str) -> Handshake {
    let all: serde_json::Value = serde_json::from_str(include_str!(
        "../../integration/recordings/vllm/handshakes.json"
    ))
    .unwrap();
    let hex = all[side].as_str().unwrap();
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    Handshake::parse(&bytes).unwrap()
}

/// Shape of the engine that answered the recorded legs: that of the handshake, with more blocks.
fn geometry() -> Geometry {
    let mut geometry = handshake("prefill").geometry;
    geometry.num_blocks = 1024;
    geometry
}

fn read(leg: &Leg) -> Result<Prefilled, baton_proto::Error> {
    read_prefill(
        leg.answer.get().as_bytes(),
        &geometry(),
        ENGINE,
        Duration::from_secs(25),
    )
}

#[test]
fn a_recorded_pair_can_hand_over_and_tells_its_shape() {
    let (prefill, decode) = (handshake("prefill"), handshake("decode"));
    assert_ne!(prefill.incarnation, decode.incarnation);
    assert_eq!(
        (prefill.geometry.block_size, prefill.geometry.num_blocks),
        (32, 256)
    );
    assert_eq!(
        (
            prefill.geometry.block_bytes(0),
            prefill.geometry.bytes_per_token()
        ),
        (16_384, 512)
    );
    let [ours, theirs] =
        [&prefill, &decode].map(|side| side.compatibility(Some("same".to_owned())));
    assert_eq!(ours.hands_over_to(&theirs), Ok(()));
    let other_template = decode.compatibility(Some("other".to_owned()));
    assert_eq!(
        ours.hands_over_to(&other_template).unwrap_err().fact,
        "tokenisation"
    );
}

#[test]
fn every_recorded_prefill_is_read_for_what_it_left() {
    let prefills: Vec<Leg> = legs()
        .into_iter()
        .filter(|leg| {
            leg.name.contains("prefill") && !leg.name.contains("_2_") && !leg.name.contains("_3_")
        })
        .collect();
    let mut handoffs = 0;
    for leg in prefills.iter().filter(|leg| leg.status == 200) {
        let several = ["c3_beam_1_prefill", "c3_n2_seed_1_prefill"].contains(&leg.name.as_str());
        let stopped = leg.answer.get().contains(r#""finish_reason":"stop""#);
        match read(leg) {
            Ok(Prefilled::Handoff { usage, kv }) => {
                assert!(!several && !stopped, "{}", leg.name);
                assert_eq!(
                    kv.bytes,
                    Some(u64::from(usage.prompt_tokens.div_ceil(32)) * 16_384),
                    "{}",
                    leg.name
                );
                assert!(
                    leg.answer
                        .get()
                        .contains(std::str::from_utf8(kv.metadata.as_bytes()).unwrap()),
                    "byte for byte"
                );
                handoffs += 1;
            }
            Ok(Prefilled::Ended { kv, .. }) => {
                assert!(stopped, "{}", leg.name);
                assert!(
                    kv.is_some(),
                    "{}: a prefill that stops still holds its blocks",
                    leg.name
                );
            }
            Ok(Prefilled::HandedOver { .. }) => panic!("{}: nothing was offered", leg.name),
            Err(error) => assert!(several, "{}: {error}", leg.name),
        }
    }
    assert!(handoffs >= 30, "only {handoffs} handoffs were recorded");
}

#[test]
fn altered_transfer_params_never_become_a_ticket() {
    let plain = legs()
        .into_iter()
        .find(|leg| leg.name == "c3_plain_1_prefill")
        .unwrap();
    assert!(matches!(read(&plain), Ok(Prefilled::Handoff { .. })));
    let alterations: [Alteration; 14] = [
        ("no ids", |params| {
            params["remote_block_ids"] = serde_json::json!([]);
        }),
        ("too few ids", |params| {
            params["remote_block_ids"] = serde_json::json!([[1, 2, 3, 4]]);
        }),
        ("ids that are not there", |params| {
            params["remote_block_ids"] = serde_json::json!([[1, 2, 3, 4, 1024]]);
        }),
        ("ids of another type", |params| {
            params["remote_block_ids"] = serde_json::json!([["a"]]);
        }),
        ("no request id", |params| {
            drop(params.as_object_mut().unwrap().remove("remote_request_id"));
        }),
        ("an empty request id", |params| {
            params["remote_request_id"] = "".into();
        }),
        ("no host", |params| {
            params["remote_host"] = serde_json::Value::Null;
        }),
        ("port 0", |params| params["remote_port"] = 0.into()),
        ("another engine", |params| {
            params["remote_engine_id"] = "other".into();
        }),
        ("another length", |params| {
            params["remote_num_tokens"] = 100.into();
        }),
        ("no tokens", |params| params["remote_num_tokens"] = 0.into()),
        ("push", |params| params["transfer_mode"] = "push".into()),
        ("the wrong direction", |params| {
            params["do_remote_decode"] = true.into();
        }),
        ("no tp_size: no heartbeats", |params| {
            drop(params.as_object_mut().unwrap().remove("tp_size"));
        }),
    ];
    for (name, alter) in alterations {
        let mut answer: serde_json::Value = serde_json::from_str(plain.answer.get()).unwrap();
        alter(&mut answer["kv_transfer_params"]);
        let altered = read_prefill(
            answer.to_string().as_bytes(),
            &geometry(),
            ENGINE,
            Duration::from_secs(25),
        );
        assert!(altered.is_err(), "{name}: {altered:?}");
    }
    for garbage in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
    ] {
        assert!(
            read_prefill(
                garbage.as_bytes(),
                &geometry(),
                ENGINE,
                Duration::from_secs(25)
            )
            .is_err(),
            "{garbage}"
        );
    }
}

#[test]
fn recorded_answers_are_answers_and_recorded_errors_are_not() {
    for leg in legs() {
        let judged = judge_answer(leg.answer.get().as_bytes());
        assert_eq!(
            judged.is_ok(),
            leg.status == 200,
            "{}: {judged:?}",
            leg.name
        );
    }
    for empty in [
        "",
        "{}",
        r#"{"choices":[]}"#,
        r#"{"choices":null}"#,
        r#"{"choices":[{}],"error":{"message":"x"}}"#,
    ] {
        assert!(judge_answer(empty.as_bytes()).is_err(), "{empty}");
    }
}

#[test]
fn recorded_streams_are_judged_event_by_event() {
    let streams: Vec<Stream> = lines(include_str!(
        "../../integration/recordings/vllm/streams.jsonl"
    ));
    assert_eq!(streams.len(), 5);
    for Stream { name, stream } in streams {
        let verdicts: Vec<Verdict> = sse::events(stream.as_bytes())
            .filter_map(sse::data)
            .map(|data| judge_event(&data))
            .collect();
        assert_eq!(verdicts.last(), Some(&Verdict::Done), "{name}");
        let failed = verdicts
            .iter()
            .position(|verdict| matches!(verdict, Verdict::Failed { .. }));
        let token = verdicts
            .iter()
            .position(|verdict| *verdict == Verdict::Token);
        assert_eq!(failed.is_some(), name.starts_with("err_"), "{name}");
        match (failed, token) {
            (Some(_), None) | (None, Some(_)) => {}
            other => panic!("{name}: {other:?}"),
        }
        if name.contains("chat") {
            assert_eq!(
                verdicts[0],
                Verdict::Preamble,
                "{name}: the role chunk comes before the KV"
            );
        }
    }
}

#[test]
fn a_recorded_metrics_page_is_read() {
    let page = MetricsPage::parse(include_str!(
        "../../integration/recordings/vllm/metrics_prefill.txt"
    ));
    assert_eq!(
        page.label("vllm:cache_config_info", "block_size"),
        Some("32")
    );
    assert_eq!(page.distinct("vllm:num_requests_running", "engine"), 1);
    assert!(page.has_family("vllm:nixl_"));
    assert!(
        page.sum("process_start_time_seconds")
            .is_some_and(|start| start > 1.7e9)
    );
}
