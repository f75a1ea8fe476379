//! The conformance suite against the recordings themselves: they obey the laws, satisfy each other's masks, are all used;
//! and a comparison that should find something does.

use std::collections::BTreeSet;

use baton_integration::conformance::answer::{Answer, Body, Frame};
use baton_integration::conformance::cases::{self, Case};
use baton_integration::conformance::events::{self, Batch, Hashes};
use baton_integration::conformance::http::Request;
use baton_integration::conformance::laws::event_log;
use baton_integration::conformance::laws::exchange::{self, Exchange};
use baton_integration::conformance::laws::{handshake, metrics_page};
use baton_integration::conformance::left_out;
use baton_integration::conformance::mask::{self, Part, Rule, When};
use baton_integration::conformance::metrics::Page;
use baton_integration::conformance::recording::{self, Recording, Source};
use baton_integration::conformance::{shape, socket};
use serde_json::{Value, json};

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
        include_str!("../recordings/vllm/metrics/aggregated.txt"),
        include_str!("../recordings/vllm/metrics/decode.txt"),
        include_str!("../recordings/vllm/metrics_prefill.txt"),
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

/// Recorded exchanges that must satisfy each other's masks: two of one kind.
const ALIKE: &[(&str, &str, &[When])] = &[
    ("models", "c5_models_P", &[When::OtherFlags]),
    ("c5_models_P", "c5_models_D", &[]),
    ("c5_kv_event_sources_P", "c5_kv_event_sources_P", &[]),
    ("c1_prefill_length_plain", "c3_plain_1_prefill", &[]),
    ("c3_plain_1_prefill", "c3_seed_t1_1_prefill", &[]),
    ("c3_plain_1_prefill", "c3_user_field_1_prefill", &[]),
    ("c3_plain_2_decode", "c3_plain_3_aggregated", &[]),
    ("c3_plain_2_decode", "c3_penalties_3_aggregated", &[]),
    ("c3_logprobs3_2_decode", "c3_logprobs3_3_aggregated", &[]),
    ("c3_logprobs0_2_decode", "c3_logprobs0_3_aggregated", &[]),
    (
        "c3_echo_logprobs_2_decode",
        "c3_echo_logprobs_3_aggregated",
        &[],
    ),
    (
        "c3_prompt_logprobs2_2_decode",
        "c3_prompt_logprobs2_3_aggregated",
        &[],
    ),
    (
        "c3_chat_plain_1_prefill",
        "c3_chat_n2_prefill_n1_1_prefill",
        &[],
    ),
    ("c3_chat_plain_2_decode", "c3_chat_tools_none_2_decode", &[]),
    (
        "c3_chat_logprobs_top3_2_decode",
        "c3_chat_logprobs_top3_3_aggregated",
        &[When::OtherFlags],
    ),
    (
        "c3_chat_prompt_logprobs_2_decode",
        "c3_chat_prompt_logprobs_3_aggregated",
        &[],
    ),
    (
        "c3_chat_tools_named_2_decode",
        "c3_chat_tools_named_3_aggregated",
        &[When::OtherFlags],
    ),
    (
        "c3_structured_choice_2_decode",
        "c3_structured_regex_3_aggregated",
        &[When::Grammar],
    ),
    ("c3_n2_1_prefill", "c3_chat_n2_1_prefill", &[]),
    (
        "c1_prefill_stop_string",
        "c1_prefill_stop_string_include",
        &[],
    ),
    (
        "c8_cold_P_cold_D_1_prefill",
        "c8_cold_P_warm_D_1_prefill",
        &[],
    ),
    (
        "c8_warm_P_cold_D_2_decode",
        "c8_warm_P_warm_D_2_decode",
        &[],
    ),
    ("pd_2_decode", "pd_3_aggregated_reference", &[]),
    ("err_first_use_ok", "err_lease_expired", &[]),
    ("err_first_use_ok", "err_wrong_prompt_same_len", &[]),
    (
        "err_too_few_block_ids",
        "err_prompt_longer_than_prefilled",
        &[],
    ),
    ("err_block_ids_out_of_range", "err_wrong_engine_id", &[]),
    (
        "err_first_use_ok",
        "recompute_prefill_killed_between_steps",
        &[],
    ),
    ("oot_base", "oot_cached_usage", &[When::OtherFlags]),
];

#[test]
fn recordings_of_one_kind_satisfy_each_others_masks() {
    for (one, other, circumstances) in ALIKE {
        for (one, other) in [(one, other), (other, one)] {
            let answer = |name: &str| {
                let recording = recording::named(name);
                let mut answer = recording.answer.clone();
                if recording.source == Source::Oot {
                    // Block ids of a connector of its own.
                    if let Body::Json(body) = &mut answer.body {
                        body["kv_transfer_params"] = Value::Null;
                    }
                }
                answer
            };
            let differences = shape::answers(&answer(one), &answer(other), circumstances);
            assert_eq!(differences, [], "{one} and {other}");
        }
    }
}

#[test]
fn a_request_of_another_kind_is_not_alike() {
    let different = [
        ("c3_plain_1_prefill", "c3_plain_2_decode"),
        ("c3_plain_2_decode", "c3_logprobs3_2_decode"),
        (
            "c2_chat_prefill_both_mt1_mct16",
            "c2_chat_prefill_both_mt16_mct1",
        ),
        ("completion_stream", "chat_stream"),
        ("chat_stream", "pd_chat_2_decode_stream"),
        ("err_stream_side_channel_dead", "completion_stream"),
        ("err_first_use_ok", "err_wrong_engine_id"),
        ("err_wrong_engine_id", "err_too_few_block_ids"),
        ("c1_decode_stop_string", "c1_decode_length_plain"),
        ("c8_cold_P_cold_D_1_prefill", "c8_warm_P_cold_D_1_prefill"),
        ("health", "version"),
    ];
    for (one, other) in different {
        let (then, now) = (recording::named(one), recording::named(other));
        let differences = shape::answers(&then.answer, &now.answer, &[]);
        assert!(!differences.is_empty(), "{one} and {other}");
    }
}

/// The places of a document's leaves, as JSON pointers and as paths.
fn leaves(value: &Value, pointer: &str, path: &[Part], out: &mut Vec<(String, Vec<Part>)>) {
    let mut into = |key: String, part: Part, value: &Value| {
        let path = [path, &[part]].concat();
        leaves(value, &format!("{pointer}/{key}"), &path, out);
    };
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                into(
                    key.replace('~', "~0").replace('/', "~1"),
                    Part::Key(key.clone()),
                    value,
                );
            }
        }
        Value::Array(array) if !array.is_empty() => {
            for (index, value) in array.iter().enumerate() {
                into(index.to_string(), Part::Index(index), value);
            }
        }
        _ => out.push((pointer.to_owned(), path.to_vec())),
    }
}

/// Another value of the same type.
fn altered(value: &Value) -> Value {
    match value {
        Value::Null => json!("no longer null"),
        Value::Bool(value) => json!(!value),
        Value::Number(number) => json!(number.as_f64().unwrap_or_default() + 1.0),
        Value::String(text) => json!(format!("{text}, and more")),
        Value::Array(_) => json!([null]),
        Value::Object(_) => json!({"new": null}),
    }
}

/// The first mask on the way to a place.
fn mask_over(path: &[Part]) -> Option<Rule> {
    let mut prefixes = (0..=path.len()).map(|length| &path[..length]);
    prefixes
        .find_map(|prefix| mask::mask_for(prefix, &[]))
        .map(|mask| mask.rule)
}

#[test]
fn a_change_is_found_unless_a_mask_is_over_it() {
    let (mut found, mut masked) = (0, 0);
    for recording in recording::all().values() {
        let Some(document) = recording.answer.json() else {
            continue;
        };
        // The logprobs of a whole prompt say nothing that those of an answer do not.
        if document.to_string().len() > 20_000 {
            continue;
        }
        let mut places = Vec::new();
        leaves(document, "", &[], &mut places);
        // Thousands of numbers of one list say nothing new.
        places.retain(|(_, path)| {
            !path
                .iter()
                .any(|part| matches!(part, Part::Index(index) if *index > 1))
        });
        for (pointer, path) in places {
            let mut changed = recording.answer.clone();
            let Body::Json(body) = &mut changed.body else {
                continue;
            };
            let Some(leaf) = body.pointer_mut(&pointer) else {
                continue;
            };
            let was_null = leaf.is_null();
            *leaf = altered(leaf);
            let differences = shape::answers(&recording.answer, &changed, &[]);
            let over = mask_over(&path);
            match over {
                None => {
                    assert_eq!(differences.len(), 1, "{} {pointer}", recording.name);
                    found += 1;
                }
                Some(Rule::Text | Rule::Number) if !was_null => {
                    assert_eq!(differences, [], "{} {pointer}", recording.name);
                    masked += 1;
                }
                Some(Rule::Text | Rule::Number | Rule::SameShape) => {
                    assert!(!differences.is_empty(), "{} {pointer}", recording.name);
                    found += 1;
                }
                Some(_) => masked += 1,
            }
        }
    }
    assert!(
        found > 2000 && masked > 500,
        "{found} found, {masked} masked"
    );
}

#[test]
fn a_key_that_is_gone_or_new_is_found() {
    for recording in recording::all().values() {
        let Some(Value::Object(object)) = recording.answer.json() else {
            continue;
        };
        for key in object.keys() {
            let mut less = recording.answer.clone();
            if let Body::Json(Value::Object(object)) = &mut less.body {
                object.remove(key);
            }
            assert_eq!(
                shape::answers(&recording.answer, &less, &[]).len(),
                1,
                "{} {key}",
                recording.name
            );
            assert_eq!(
                shape::answers(&less, &recording.answer, &[]).len(),
                1,
                "{} {key}",
                recording.name
            );
        }
    }
}

#[test]
fn frames_that_are_gone_new_or_in_another_order_are_found() {
    let mut streams = 0;
    for recording in recording::all().values() {
        let Body::Stream(frames) = &recording.answer.body else {
            continue;
        };
        streams += 1;
        let with = |frames: Vec<Frame>| Answer {
            body: Body::Stream(frames),
            ..recording.answer.clone()
        };
        let differ =
            |frames: Vec<Frame>| !shape::answers(&recording.answer, &with(frames), &[]).is_empty();
        assert!(
            differ(frames[..frames.len() - 1].to_vec()),
            "{}: no [DONE]",
            recording.name
        );
        // Where all frames are of one kind, their number says nothing.
        let first = recording.source == Source::Oot || differ(frames[1..].to_vec());
        assert!(first, "{}: no first frame", recording.name);
        let reversed = frames.iter().rev().cloned().collect();
        assert!(
            frames.len() < 2 || differ(reversed),
            "{}: reversed",
            recording.name
        );
        let error = json!({"error": {"message": "x", "type": "x", "param": null, "code": 500}});
        let more = [frames.as_slice(), &[Frame::Data(error)]].concat();
        assert!(differ(more), "{}: an error more", recording.name);
    }
    assert_eq!(streams, 7);
}

#[test]
fn tokens_may_share_a_chunk() {
    let recording = recording::named("completion_stream");
    let Body::Stream(mut frames) = recording.answer.body.clone() else {
        panic!("no stream");
    };
    // Of the middle two of four.
    frames.remove(1);
    if let Frame::Data(frame) = &mut frames[1] {
        frame["choices"][0]["token_ids"] = json!([723, 61]);
    }
    let merged = Answer {
        body: Body::Stream(frames),
        ..recording.answer.clone()
    };
    assert_eq!(shape::answers(&recording.answer, &merged, &[]), []);
    assert_eq!(broken(recording, &merged), [""; 0]);
}

#[test]
fn every_law_of_exchanges_can_be_broken() {
    type Breaking = (&'static str, &'static str, fn(&mut Value));
    let breakings: &[Breaking] = &[
        (
            "err_model",
            "an error tells its status in OpenAI's shape",
            |a| a["error"]["code"] = 400.into(),
        ),
        (
            "completion",
            "a total is the sum of prompt and completion",
            |a| a["usage"]["total_tokens"] = 1.into(),
        ),
        (
            "completion_long",
            "as many token ids as the usage says",
            |a| a["choices"][0]["token_ids"] = json!([1]),
        ),
        (
            "pd_2_decode",
            "the prompt's token ids are the prompt's",
            |a| {
                a["choices"][0]["prompt_token_ids"][3] = 0.into();
            },
        ),
        (
            "completion",
            "an answer that ended by length has that length",
            |a| {
                a["usage"]["completion_tokens"] = 7.into();
            },
        ),
        (
            "c3_n2_seed_2_decode",
            "as many choices as were asked for",
            |a| a["choices"][1]["index"] = 0.into(),
        ),
        (
            "c8_warm_P_cold_D_1_prefill",
            "cached tokens are whole blocks, fewer than the prompt",
            |a| {
                a["usage"]["prompt_tokens_details"]["cached_tokens"] = 320.into();
            },
        ),
        (
            "c8_warm_P_cold_D_2_decode",
            "decode repeats what prefill had cached",
            |a| {
                a["usage"]["prompt_tokens_details"]["cached_tokens"] = 0.into();
            },
        ),
        ("c3_logprobs3_2_decode", "logprobs for every token", |a| {
            a["choices"][0]["logprobs"]["tokens"] = json!([]);
        }),
        (
            "c3_plain_1_prefill",
            "a ticket where one is due, with the keys of its kind",
            |a| {
                a["kv_transfer_params"]["tp_size"].take();
                a["kv_transfer_params"]
                    .as_object_mut()
                    .unwrap()
                    .remove("tp_size");
            },
        ),
        (
            "c3_plain_2_decode",
            "a ticket where one is due, with the keys of its kind",
            |a| {
                a["kv_transfer_params"] = json!({"do_remote_prefill": true});
            },
        ),
        (
            "c3_plain_1_prefill",
            "a ticket names the blocks of its computed tokens",
            |a| {
                a["kv_transfer_params"]["remote_block_ids"] = json!([[1, 2, 3, 4]]);
            },
        ),
        (
            "c3_plain_1_prefill",
            "a ticket's request id is the answer's id, with a suffix",
            |a| {
                a["kv_transfer_params"]["remote_request_id"] = "cmpl-x".into();
            },
        ),
    ];
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    for (name, law, breaking) in breakings {
        let recording = recording::named(name);
        let mut answer = recording.answer.clone();
        let Body::Json(document) = &mut answer.body else {
            panic!("{name} is no document");
        };
        breaking(document);
        assert!(broken(recording, &answer).contains(law), "{name}: {law}");
        shown.insert(law);
    }
    let stream = recording::named("chat_stream");
    let Body::Stream(frames) = &stream.answer.body else {
        panic!("no stream");
    };
    let with = |frames: Vec<Frame>| Answer {
        body: Body::Stream(frames),
        ..stream.answer.clone()
    };
    let ends = "a stream ends with [DONE], alike after an error";
    let cut = with(frames[..frames.len() - 1].to_vec());
    assert!(broken(stream, &cut).contains(&ends));
    let one_id = "every frame of a stream has the same id";
    let mut renamed = frames.clone();
    if let Frame::Data(frame) = &mut renamed[1] {
        frame["id"] = "chatcmpl-another".into();
    }
    assert!(broken(stream, &with(renamed)).contains(&one_id));
    shown.extend([ends, one_id]);
    let all: BTreeSet<&str> = exchange::LAWS.iter().map(|(law, _)| *law).collect();
    assert_eq!(shown, all);
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

#[test]
fn logs_are_compared_by_which_block_is_which() {
    let recorded = &events::recorded()["agg"][0];
    assert_eq!(events::compare(recorded, recorded, Hashes::Equal), []);
    let mut renamed = recorded.clone();
    for batch in &mut renamed {
        for event in &mut batch.events {
            for hash in event["block_hashes"].as_array_mut().into_iter().flatten() {
                *hash = (hash.as_u64().unwrap() ^ 0xff00).into();
            }
            let parent = event["parent_block_hash"].as_u64();
            if let Some(parent) = parent {
                event["parent_block_hash"] = (parent ^ 0xff00).into();
            }
        }
    }
    assert_eq!(events::compare(recorded, &renamed, Hashes::Renamed), []);
    assert!(!events::compare(recorded, &renamed, Hashes::Equal).is_empty());
    // Another block is evicted first.
    renamed[10].events.swap(0, 1);
    assert!(!events::compare(recorded, &renamed, Hashes::Renamed).is_empty());
}

#[test]
fn no_recording_is_left_out_silently() {
    let cases = cases::all();
    let used: BTreeSet<&str> = cases.iter().flat_map(Case::recordings).collect();
    let left: BTreeSet<&str> = left_out::EXCHANGES.iter().map(|(name, _)| *name).collect();
    let known: BTreeSet<&str> = recording::all().keys().map(String::as_str).collect();
    let accounted: BTreeSet<&str> = used.union(&left).copied().collect();
    assert_eq!(accounted, known);
    assert_eq!(used.intersection(&left).count(), 0, "left out and used");
    for (name, why) in left_out::EXCHANGES.iter().chain(left_out::NOT_TAKEN) {
        assert!(why.split(' ').count() > 3, "{name}: {why}");
    }
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases have one name");
}

/// What Baton must refuse is what was recorded here.
#[test]
fn refused_bodies_are_the_recorded_ones() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/vllm/refused");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let refused: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let name = format!("err_{}", path.file_stem().unwrap().to_str().unwrap());
        let recording = recording::named(&name);
        assert_eq!(recording.request.as_ref(), Some(&refused["body"]), "{name}");
        assert_eq!(refused["engine_status"], recording.answer.status, "{name}");
        files += 1;
    }
    assert!(files >= 20, "{files}");
}

#[test]
fn no_mask_is_there_for_nothing() {
    let mut documents: Vec<Value> = recording::all()
        .values()
        .flat_map(|recording| recording.answer.documents())
        .cloned()
        .collect();
    documents.push(json!({"handshake": socket::recorded_handshake("prefill")}));
    let logs = events::recorded();
    let all = logs
        .values()
        .flatten()
        .flatten()
        .flat_map(|batch| &batch.events);
    documents.extend(all.map(|event| json!({"event": event})));
    let mut used: BTreeSet<&str> = BTreeSet::new();
    let every = [
        When::OtherTokenizer,
        When::OtherFlags,
        When::Grammar,
        When::Chunk,
    ];
    for document in &documents {
        visit(document, &mut Vec::new(), &mut |path| {
            for circumstances in [
                &[][..],
                &every[..1],
                &every[1..2],
                &every[2..3],
                &every[3..],
            ] {
                used.extend(mask::mask_for(path, circumstances).map(|mask| mask.at));
            }
        });
    }
    let all: BTreeSet<&str> = mask::MASKS.iter().map(|mask| mask.at).collect();
    assert_eq!(all.difference(&used).collect::<Vec<_>>(), [&""; 0]);
}

fn visit(value: &Value, path: &mut Vec<Part>, see: &mut impl FnMut(&[Part])) {
    see(path);
    let mut into = |part: Part, value: &Value| {
        path.push(part);
        visit(value, path, see);
        path.pop();
    };
    match value {
        Value::Object(object) => object
            .iter()
            .for_each(|(key, value)| into(Part::Key(key.clone()), value)),
        Value::Array(array) => {
            for (index, value) in array.iter().take(3).enumerate() {
                into(Part::Index(index), value);
            }
        }
        _ => {}
    }
}
