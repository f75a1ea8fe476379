//! Every law holds for what was recorded, and can be broken.

use std::collections::BTreeSet;

use serde_json::json;

use super::exchange::{self, Exchange};
use super::{event_log, handshake, metrics_page};
use crate::conformance::answer::{Answer, Body, Frame};
use crate::conformance::events::{self, Batch};
use crate::conformance::http::Request;
use crate::conformance::metrics::Page;
use crate::conformance::recording::{self, Recording, Source};
use crate::conformance::{shape, socket};

fn sent(recording: &Recording) -> Request {
    Request {
        method: recording.method.clone(),
        path: recording.path.clone(),
        headers: recording.headers.clone(),
        body: recording.request.clone(),
    }
}

fn broken(recording: &Recording, answer: &Answer) -> Vec<&'static str> {
    let exchange = Exchange {
        request: &sent(recording),
        answer,
        connected: matches!(recording.source, Source::Prefill | Source::Decode),
    };
    let broken = exchange::broken(&exchange);
    broken.into_iter().map(|(law, _)| law).collect()
}

/// Those that an engine with vLLM's own connector, or none, answered.
fn exchanges() -> impl Iterator<Item = &'static Recording> {
    let all = recording::all().values();
    all.filter(|recording| recording.source != Source::Oot)
}

#[test]
fn every_recorded_exchange_obeys_the_laws() {
    let mut judged = 0;
    for recording in exchanges() {
        judged += 1;
        let broken = broken(recording, &recording.answer);
        assert_eq!(broken, [""; 0], "{}", recording.name);
    }
    assert!(judged > 200, "{judged}");
}

#[test]
fn every_recorded_log_obeys_the_laws() {
    let logs = events::recorded();
    assert_eq!(logs.len(), 5);
    for (name, logs) in logs {
        for log in logs {
            assert_eq!(event_log::broken(log), [], "{name}");
        }
    }
    let computable = &logs["dp_rank0_sha256cbor_bytes"][0];
    assert_eq!(event_log::hashes_can_be_computed(computable), [""; 0]);
    let pickled = &logs["lora_salt_session_bytes_hash"][0];
    assert!(!event_log::hashes_can_be_computed(pickled).is_empty());
}

#[test]
fn recorded_pages_and_handshakes_obey_the_laws() {
    for page in [
        include_str!("../../../recordings/vllm/metrics_agg.txt"),
        include_str!("../../../recordings/vllm/metrics_decode.txt"),
        include_str!("../../../recordings/vllm/metrics_prefill.txt"),
    ] {
        assert_eq!(metrics_page::broken(&Page::read(page)), []);
        let wrong = page.replace("vllm:prompt_tokens_total{", "vllm:prompt_tokens_totals{");
        assert!(!metrics_page::broken(&Page::read(&wrong)).is_empty());
    }
    let [prefill, decode] = ["prefill", "decode"].map(socket::recorded_handshake);
    for payload in [&prefill, &decode] {
        assert_eq!(handshake::broken(payload), []);
    }
    assert_eq!(prefill["compatibility_hash"], decode["compatibility_hash"]);
    let (then, now) = (json!({"handshake": prefill}), json!({"handshake": decode}));
    assert_eq!(shape::documents(&then, &now, &[]), []);
    let mut other = now.clone();
    other["handshake"]["metadata"]["block_size"] = 64.into();
    assert_eq!(shape::documents(&then, &other, &[]).len(), 1);
}

/// A recording, the law that a change of it breaks, and the change: a place and what is there instead.
const BREAKINGS: &[(&str, &str, &str, &str)] = &[
    (
        "err_model",
        "an error tells its status in OpenAI's shape",
        "/error/code",
        "400",
    ),
    (
        "completion",
        "a total is the sum of prompt and completion",
        "/usage/total_tokens",
        "1",
    ),
    (
        "completion_long",
        "as many token ids as the usage says",
        "/choices/0/token_ids",
        "[1]",
    ),
    (
        "pd_2_decode",
        "the prompt's token ids are the prompt's",
        "/choices/0/prompt_token_ids/3",
        "0",
    ),
    (
        "completion",
        "an answer that ended by length has that length",
        "/usage/completion_tokens",
        "7",
    ),
    (
        "c3_n2_seed_2_decode",
        "as many choices as were asked for",
        "/choices/1/index",
        "0",
    ),
    (
        "c8_warm_P_cold_D_1_prefill",
        "cached tokens are whole blocks, fewer than the prompt",
        "/usage/prompt_tokens_details/cached_tokens",
        "320",
    ),
    (
        "c8_warm_P_cold_D_2_decode",
        "decode repeats what prefill had cached",
        "/usage/prompt_tokens_details/cached_tokens",
        "0",
    ),
    (
        "c3_logprobs3_2_decode",
        "logprobs for every token",
        "/choices/0/logprobs/tokens",
        "[]",
    ),
    (
        "c3_plain_1_prefill",
        "a ticket where one is due, with the keys of its kind",
        "/kv_transfer_params",
        "{}",
    ),
    (
        "c3_plain_2_decode",
        "a ticket where one is due, with the keys of its kind",
        "/kv_transfer_params",
        "{\"do_remote_prefill\": true}",
    ),
    (
        "c3_plain_1_prefill",
        "a ticket names the blocks of its computed tokens",
        "/kv_transfer_params/remote_block_ids",
        "[[1, 2, 3, 4]]",
    ),
    (
        "c3_plain_1_prefill",
        "a ticket's request id is the answer's id, with a suffix",
        "/kv_transfer_params/remote_request_id",
        "\"cmpl-x\"",
    ),
];

const ENDS: &str = "a stream ends with [DONE], alike after an error";
const ONE_ID: &str = "every frame of a stream has the same id";

#[test]
fn every_law_of_exchanges_can_be_broken() {
    for (name, law, place, instead) in BREAKINGS {
        let recording = recording::named(name);
        let mut answer = recording.answer.clone();
        if let Body::Json(document) = &mut answer.body {
            *document.pointer_mut(place).unwrap() = serde_json::from_str(instead).unwrap();
        }
        assert!(broken(recording, &answer).contains(law), "{name}: {law}");
    }
    let mut shown: BTreeSet<&str> = BREAKINGS.iter().map(|(_, law, ..)| *law).collect();
    shown.extend([ENDS, ONE_ID]);
    let all: BTreeSet<&str> = exchange::LAWS.iter().map(|(law, _)| *law).collect();
    assert_eq!(shown, all);
}

#[test]
fn the_laws_of_streams_can_be_broken() {
    let stream = recording::named("chat_stream");
    let Body::Stream(frames) = &stream.answer.body else {
        panic!("no stream");
    };
    let with = |frames: Vec<Frame>| Answer {
        body: Body::Stream(frames),
        ..stream.answer.clone()
    };
    let cut = with(frames[..frames.len() - 1].to_vec());
    assert!(broken(stream, &cut).contains(&ENDS));
    let mut renamed = frames.clone();
    if let Frame::Data(frame) = &mut renamed[1] {
        frame["id"] = "chatcmpl-another".into();
    }
    assert!(broken(stream, &with(renamed)).contains(&ONE_ID));
}

#[test]
fn every_law_of_event_logs_can_be_broken() {
    type Breaking = (&'static str, fn(&mut Vec<Batch>));
    let breakings: &[Breaking] = &[
        ("sequence numbers run from 0 without a gap", |log| {
            log.remove(3);
        }),
        ("the clock does not run backwards", |log| log[2].at = 1.0),
        ("an event's tokens fill its blocks", |log| {
            log[0].events[0]["token_ids"] = json!([1])
        }),
        ("a parent is stored", |log| {
            log[5].events[0]["parent_block_hash"] = 1.into()
        }),
        ("what is removed was stored", |log| {
            log[9].events[0]["block_hashes"] = json!([1])
        }),
        ("a sequence loses its tail first", |log| {
            log[9].events.swap(0, 1)
        }),
        ("a clearing comes first in its batch", |log| {
            log[12].events.reverse()
        }),
        ("hashes are of one kind", |log| {
            log[0].events[0]["block_hashes"] = json!(["hex:00", 1, 2])
        }),
        ("every event is for device memory", |log| {
            log[0].events[0]["medium"] = "CPU".into()
        }),
    ];
    for (law, breaking) in breakings {
        let mut log = events::recorded()["agg"][0].clone();
        breaking(&mut log);
        let broken = event_log::broken(&log);
        assert!(
            broken.iter().any(|(found, _)| found == law),
            "{law}: {broken:?}"
        );
    }
    let shown: Vec<&str> = breakings.iter().map(|(law, _)| *law).collect();
    let all: Vec<&str> = event_log::LAWS.iter().map(|(law, _)| *law).collect();
    assert_eq!(shown, all);
}
