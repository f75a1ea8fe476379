//! What was read of TensorRT-LLM's wire, compared with what the emulated engine says. Nothing here was recorded: see
//! `recordings/trtllm`.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use baton_integration::client::{self, Answer};
use baton_integration::conformance::mask::When;
use baton_integration::conformance::shape::Difference;
use baton_integration::conformance::trtllm::{self as shapes, LEFT_OUT, SHAPES};
use baton_integration::emulated::trtllm::{
    Auth, Config, EmulatedTrtllm, Era, EventsConfig, HashAlgo, Patience, Transceiver, v1_block_key,
};
use baton_integration::wait;
use serde_json::{Value, json};

const MODEL: &str = "TinyLlama-1.1B-Chat-v1.0";

/// As the shapes' engine was started, as far as they tell.
fn config(era: Era) -> Config {
    Config {
        model: MODEL.to_owned(),
        served_model_name: MODEL.to_owned(),
        blocks: 1024,
        row_bytes: 8,
        max_seq_len: 65_536,
        max_num_tokens: 65_536,
        patience: Patience {
            transfer: Some(wait::PATIENCE),
            ..Patience::real(era).scaled(0.02)
        },
        ..Config::new(era)
    }
}

async fn started(config: Config) -> EmulatedTrtllm {
    let engine = EmulatedTrtllm::new(config);
    engine.start().await;
    engine
}

async fn post(engine: &EmulatedTrtllm, path: &str, body: &Value) -> Answer {
    client::call(engine.address(), "POST", path, &[], body.to_string()).await
}

async fn get(engine: &EmulatedTrtllm, path: &str) -> Answer {
    client::call(engine.address(), "GET", path, &[], "").await
}

async fn poll(engine: &EmulatedTrtllm) -> Value {
    let path = "/kv_cache_events";
    post(engine, path, &Value::Null).await.served().json()
}

#[track_caller]
fn conforms(differences: impl IntoIterator<Item = Difference>) {
    let differences = differences.into_iter();
    let shown: Vec<String> = differences.map(|found| found.to_string()).collect();
    assert!(shown.is_empty(), "\n{}", shown.join("\n"));
}

/// The prompt of all shapes.
fn prompt() -> Vec<u32> {
    (1000..1071).collect()
}

async fn say(engine: &EmulatedTrtllm, prompt: &[u32]) {
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 1});
    post(engine, "/v1/completions", &body).await.served();
}

/// A pair of which context has the first block of the prompt already.
async fn pair(era: Era) -> (EmulatedTrtllm, EmulatedTrtllm) {
    let (prefill, decode) = (started(config(era)).await, started(config(era)).await);
    say(&prefill, &prompt()[..33]).await;
    (prefill, decode)
}

/// What is asked of generation as the shape has it, with what this context has said.
fn generation(shape: &str, said: &Value) -> Value {
    let mut body = shapes::json(shape);
    let told = &said["choices"][0]["disaggregated_params"];
    for key in ["first_gen_tokens", "encoded_opaque_state", "ctx_request_id"] {
        body["disaggregated_params"][key] = told[key].clone();
    }
    body
}

async fn context(prefill: &EmulatedTrtllm) -> Value {
    let body = shapes::json("ctx_completion_request.json");
    post(prefill, "/v1/completions", &body)
        .await
        .served()
        .json()
}

#[tokio::test]
async fn context_answers_a_completion() {
    for (era, name) in [
        (Era::Main, "ctx_completion_response.json"),
        (Era::V12, "ctx_completion_response_1_2.json"),
    ] {
        let (prefill, _) = pair(era).await;
        let said = context(&prefill).await;
        conforms(shapes::compare(name, &shapes::json(name), &said, &[]));
        if era == Era::Main {
            let name = "ctx_completion_response_finished_early.json";
            let mut body = shapes::json("ctx_completion_request.json");
            body["stop_token_ids"] =
                said["choices"][0]["disaggregated_params"]["first_gen_tokens"].clone();
            let mut early = post(&prefill, "/v1/completions", &body)
                .await
                .served()
                .json();
            // The shape's engine ended by itself; this one by a token that it was told of, and with the prompt in its cache.
            assert!(early["choices"][0]["stop_reason"].take().is_u64());
            early["usage"]["prompt_tokens_details"]["cached_tokens"] = 32.into();
            conforms(shapes::compare(name, &shapes::json(name), &early, &[]));
        }
    }
}

#[tokio::test]
async fn context_answers_a_chat() {
    let (prefill, _) = pair(Era::Main).await;
    let mut body = shapes::json("ctx_chat_request.json");
    for (name, in_base64) in [
        ("ctx_chat_response.json", false),
        ("ctx_chat_response_b64_ids.json", true),
    ] {
        if in_base64 {
            body["disaggregated_params"]["return_prompt_token_ids_b64"] = true.into();
        }
        let mut said = post(&prefill, "/v1/chat/completions", &body)
            .await
            .served()
            .json();
        // What was asked is said again, also where the shape forgets it.
        said["choices"][0]["disaggregated_params"]["return_prompt_token_ids_b64"] = false.into();
        let circumstances = [When::OtherTokenizer];
        conforms(shapes::compare(
            name,
            &shapes::json(name),
            &said,
            &circumstances,
        ));
    }
}

#[tokio::test]
async fn generation_answers_whole() {
    let (prefill, decode) = pair(Era::Main).await;
    let mut body = generation("gen_completion_request.json", &context(&prefill).await);
    body["stream"] = false.into();
    body.as_object_mut().unwrap().remove("stream_options");
    let said = post(&decode, "/v1/completions", &body)
        .await
        .served()
        .json();
    let name = "gen_completion_response.json";
    conforms(shapes::compare(name, &shapes::json(name), &said, &[]));
}

fn ids(frames: &[String]) -> BTreeSet<String> {
    let frames = frames.iter().filter(|frame| *frame != "[DONE]");
    let id = |frame: &String| serde_json::from_str::<Value>(frame).unwrap()["id"].to_string();
    frames.map(id).collect()
}

#[tokio::test]
async fn generation_streams_a_completion() {
    for (era, name, different) in [
        (Era::Main, "gen_completion_stream.sse", 1),
        (Era::V12, "gen_completion_stream_1_2.sse", 4),
    ] {
        let (prefill, decode) = pair(era).await;
        let mut body = generation("gen_completion_request.json", &context(&prefill).await);
        body["max_tokens"] = 3.into();
        if era == Era::V12 {
            // Which 1.2 forbids: it says what it found itself.
            body["disaggregated_params"]
                .as_object_mut()
                .unwrap()
                .remove("ctx_usage");
        }
        let said = post(&decode, "/v1/completions", &body).await;
        let mut text = said.served().text().to_owned();
        if era == Era::V12 {
            text = text.replace("\"cached_tokens\":0", "\"cached_tokens\":32");
        }
        conforms(shapes::compare_stream(name, &text));
        let known = client::events(shapes::text(name));
        assert_eq!(ids(&known).len(), different, "{name}");
        assert_eq!(ids(&said.events()).len(), different, "{name}");
        assert_eq!(said.events().len(), known.len(), "{name}");
    }
}

#[tokio::test]
async fn generation_streams_a_chat() {
    let (prefill, decode) = pair(Era::Main).await;
    let mut body = generation("gen_chat_request.json", &context(&prefill).await);
    body["max_tokens"] = 3.into();
    let said = post(&decode, "/v1/chat/completions", &body).await;
    let name = "gen_chat_stream.sse";
    conforms(shapes::compare_stream(name, said.served().text()));
    let blank = |text: &str| text.split("\n\n").next().unwrap().ends_with("} ");
    assert!(
        blank(shapes::text(name)) && blank(said.text()),
        "a blank too many"
    );
    assert_eq!(
        said.events().len(),
        client::events(shapes::text(name)).len()
    );
}

#[tokio::test]
async fn a_stream_that_fails_says_so_in_a_completion_and_breaks_in_a_chat() {
    let decode = started(config(Era::Main)).await;
    let mut body = shapes::json("gen_completion_request.json");
    let said = post(&decode, "/v1/completions", &body).await;
    let known = client::events(shapes::text("completion_stream_error.sse"));
    let (said, known) = (said.served().events(), &known[1..]);
    assert_eq!(said.len(), known.len(), "{said:?}");
    assert_eq!(said[1..], known[1..], "it is over, twice");
    let keys = |frame: &str| {
        let error = serde_json::from_str::<Value>(frame).unwrap()["error"].clone();
        (
            error["type"].clone(),
            error["code"].clone(),
            error["param"].clone(),
            error["message"].is_string(),
        )
    };
    assert_eq!(keys(&said[0]), keys(&known[0]));

    body = shapes::json("gen_chat_request.json");
    let said = post(&decode, "/v1/chat/completions", &body).await;
    assert_eq!(
        (said.status, said.complete, said.events()),
        (200, false, Vec::new())
    );
}

/// Sends the two legs as the shape has them, generation first.
#[tokio::test]
async fn generation_first_is_as_in_the_pair() {
    let pair = shapes::json("generation_first_pair.json");
    let config = Config {
        transceiver: Some(Transceiver::Python),
        ..config(Era::Main)
    };
    let (prefill, decode) = (started(config.clone()).await, started(config).await);
    let info = get(&prefill, "/server_info").await.served().json();
    let name = "generation_first_pair.json";
    conforms(shapes::compare(name, &pair["ctx_server_info"], &info, &[]));
    let body = |params: &Value| json!({"model": MODEL, "prompt": prompt(), "max_tokens": 3, "disaggregated_params": params});
    let mut second = body(&pair["gen_request_disaggregated_params"]);
    second["disaggregated_params"]["ctx_info_endpoint"] =
        info["disaggregated_params"]["ctx_info_endpoint"][0].clone();
    let first = body(&pair["ctx_request_disaggregated_params"]);
    let (generated, computed) = tokio::join!(
        post(&decode, "/v1/completions", &second),
        post(&prefill, "/v1/completions", &first)
    );
    generated.served();
    computed.served();
}

fn error<'a>(errors: &'a Value, why: &str) -> &'a Value {
    let known = errors["worker"].as_array().unwrap().iter();
    let found = known
        .into_iter()
        .find(|error| error["why"].as_str().unwrap().starts_with(why));
    found.unwrap_or_else(|| panic!("no error is {why}"))
}

#[tokio::test]
async fn a_worker_fails_in_these_words() {
    let errors = shapes::json("errors.json");
    let (prefill, decode) = pair(Era::Main).await;
    let as_known = |why: &str, said: &Answer| {
        let known = error(&errors, why);
        assert_eq!(json!(said.status), known["status"], "{why}");
        assert_eq!(said.json(), known["body"], "{why}");
    };
    let path = "/v1/completions";
    let mut extra = shapes::json("ctx_completion_request.json");
    extra["disaggregated_params"]["foo"] = 1.into();
    as_known("pydantic", &post(&prefill, path, &extra).await);
    let mut kind = shapes::json("ctx_completion_request.json");
    kind["disaggregated_params"]["request_type"] = "prefill".into();
    as_known("bad request_type", &post(&prefill, path, &kind).await);
    let mut unknown = shapes::json("gen_completion_request.json");
    unknown["stream"] = false.into();
    unknown.as_object_mut().unwrap().remove("stream_options");
    as_known("any engine exception", &post(&decode, path, &unknown).await);
    as_known(
        "/v1/data_transceiver_state",
        &get(&prefill, "/v1/data_transceiver_state").await,
    );

    let guarded = started(Config {
        auth: Auth::Key("secret".to_owned()),
        ..config(Era::Main)
    })
    .await;
    as_known("auth configured", &post(&guarded, path, &unknown).await);
    let vouched = shapes::json("disagg_auth_vector.json")["header"]["x-trtllm-disagg-auth"].clone();
    let headers = [("x-trtllm-disagg-auth", vouched.as_str().unwrap())];
    let said = client::call(
        guarded.address(),
        "POST",
        path,
        &headers,
        unknown.to_string(),
    )
    .await;
    as_known("any engine exception", &said);
}

#[tokio::test]
async fn a_generation_times_out_in_these_words() {
    let prefill = started(config(Era::Main)).await;
    let hasty = Patience {
        transfer: Some(Duration::from_millis(20)),
        ..config(Era::Main).patience
    };
    let decode = started(Config {
        patience: hasty,
        ..config(Era::Main)
    })
    .await;
    let mut body = generation("gen_completion_request.json", &context(&prefill).await);
    body["stream"] = false.into();
    body.as_object_mut().unwrap().remove("stream_options");
    prefill.freeze(true);
    let said = post(&decode, "/v1/completions", &body).await;
    let errors = shapes::json("errors.json");
    let known = error(&errors, "generation side kv_transfer_timeout_ms")["body"].to_string();
    let id = body["disaggregated_params"]["disagg_request_id"].to_string();
    let known: Value = serde_json::from_str(&known.replace("42", &id)).unwrap();
    assert_eq!((said.status, said.json()), (400, known));
}

#[tokio::test]
async fn the_rest_of_the_surface_answers() {
    let small = shapes::json("small_endpoints.json");
    let v12 = started(config(Era::V12)).await;
    let main = started(Config {
        transceiver: Some(Transceiver::Python),
        max_batch_size: 64,
        ..config(Era::Main)
    })
    .await;
    let health = get(&v12, "/health").await;
    assert_eq!((health.status, health.text()), (200, ""));
    let plain = |name: &str, seen: Value| conforms(shapes::compare(name, &small[name], &seen, &[]));
    plain("GET /version", get(&v12, "/version").await.served().json());
    plain(
        "GET /v1/models",
        get(&v12, "/v1/models").await.served().json(),
    );
    plain(
        "GET /server_info (C++ transceiver)",
        get(&v12, "/server_info").await.served().json(),
    );
    plain(
        "GET /server_info (main)",
        get(&main, "/server_info").await.served().json(),
    );
    plain(
        "GET /steady_clock_offset",
        get(&v12, "/steady_clock_offset").await.served().json(),
    );
    plain(
        "GET /perf_metrics (off)",
        get(&v12, "/perf_metrics").await.served().json(),
    );
    let offset = &small["POST /steady_clock_offset"];
    let answer = post(&v12, "/steady_clock_offset", &offset["request"]).await;
    assert_eq!(
        (json!(answer.status), json!(answer.text())),
        (offset["status"].clone(), offset["body_text"].clone())
    );
    let tokenize = &small["POST /_internal/tokenize"];
    let told = post(&main, "/_internal/tokenize", &tokenize["request"])
        .await
        .served()
        .json();
    let keys = |of: &Value| {
        of.as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(keys(&told), keys(&tokenize["response"]));
}

#[tokio::test]
async fn statistics_have_their_shapes() {
    let engine = started(Config {
        request_stats: Some(10),
        ..config(Era::Main)
    })
    .await;
    say(&engine, &prompt()).await;
    for (path, name) in [
        ("/metrics", "metrics_iteration_stats.json"),
        ("/perf_metrics", "perf_metrics.json"),
    ] {
        let seen = get(&engine, path).await.served().json();
        conforms(shapes::compare_counts(name, &shapes::json(name), &seen));
    }
    let page = get(&engine, "/prometheus/metrics").await;
    let types = |text: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        lines.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (told, known) = (
        types(page.served().text()),
        types(shapes::text("prometheus.txt")),
    );
    assert!(told.is_superset(&known), "{known:?} in {told:?}");
}

fn windows(config: Config, windows: &[u32], second_manager: bool) -> Config {
    Config {
        events: Some(EventsConfig {
            buffer: 8192,
            windows: windows.to_vec(),
            second_manager,
        }),
        ..config
    }
}

/// The prompt but for its last token, which no name of a block knows.
fn named() -> Vec<u32> {
    prompt()[..70].to_vec()
}

#[tokio::test]
async fn events_are_told_poll_by_poll() {
    let name = "kv_events_v1_polls.json";
    let shape = shapes::json(name);
    let polls = &shape["polls"];
    let engine = started(config(Era::Main)).await;
    let same =
        |at: usize, seen: Value| conforms(shapes::compare(name, &polls[at]["body"], &seen, &[]));
    same(0, poll(&engine).await);
    say(&engine, &named()).await;
    same(1, poll(&engine).await);
    same(2, poll(&engine).await);
    let branch = [&prompt()[..64], &[7, 8, 9]].concat();
    say(&engine, &branch).await;
    same(3, poll(&engine).await);

    // So many blocks that both tails go, and then one more.
    let rest: Vec<u32> = (0..1022 * 32).map(|token| 3000 + token % 50_000).collect();
    say(&engine, &rest).await;
    let first = poll(&engine).await;
    say(&engine, &(60_000..60_032).collect::<Vec<_>>()).await;
    let second = poll(&engine).await;
    let removed = |told: &Value| {
        let events = told.as_array().unwrap().iter();
        events
            .filter(|event| event["data"]["type"] == "removed")
            .cloned()
            .collect::<Vec<_>>()
    };
    same(4, [removed(&first), removed(&second)].concat().into());
}

#[tokio::test]
async fn events_of_windows_managers_and_eras_have_their_shapes() {
    let name = "kv_events_vswa.json";
    let two = Config {
        blocks: 512,
        ..windows(config(Era::Main), &[1024, 131_072], false)
    };
    let engine = started(two).await;
    say(&engine, &named()).await;
    let mut shape = shapes::json(name);
    // Both windows of the emulated engine have the same blocks, and evict them together.
    shape[1]["data"]["num_blocks_per_cache_level"][0] = 512.into();
    shape.as_array_mut().unwrap().pop();
    conforms(shapes::compare(name, &shape, &poll(&engine).await, &[]));

    for (name, algo) in [
        ("kv_events_v2_sha256.json", HashAlgo::V2Sha256),
        ("kv_events_v2_v1algo.json", HashAlgo::V1BlockKey),
    ] {
        let second = Config {
            blocks: 2048,
            hash_algo: algo,
            ..windows(config(Era::Main), &[4096], true)
        };
        let engine = started(second).await;
        say(&engine, &prompt()[..64]).await;
        let (shape, seen) = (shapes::json(name), poll(&engine).await);
        for (shape, seen) in shape
            .as_array()
            .unwrap()
            .iter()
            .zip(seen.as_array().unwrap())
        {
            conforms(match algo {
                HashAlgo::V1BlockKey => shapes::compare(name, shape, seen, &[]),
                _ => shapes::compare_digests(name, shape, seen),
            });
        }
        assert_eq!(seen.as_array().unwrap().len(), 2);
    }

    let eras = shapes::json("kv_events_serializer_eras.json");
    for (era, key) in [(Era::V12, "1.2 "), (Era::Main, "1.3+/main")] {
        let engine = started(config(era)).await;
        say(&engine, &prompt()[..32]).await;
        let told = poll(&engine).await;
        let shape = eras
            .as_object()
            .unwrap()
            .iter()
            .find(|(name, _)| name.starts_with(key));
        conforms(shapes::compare(
            key,
            shape.unwrap().1,
            &told[1]["data"]["blocks"][0],
            &[],
        ));
    }
}

#[tokio::test]
async fn events_of_ranks_restarts_and_overflows_have_their_shapes() {
    let name = "kv_events_attention_dp.json";
    let engine = started(Config {
        blocks: 512,
        attention_dp: Some(2),
        ..config(Era::Main)
    })
    .await;
    say(&engine, &named()).await;
    let told = poll(&engine).await;
    let shape = shapes::json(name);
    // The created events of both ranks come first here; each rank's own are in their order.
    for (at, seen) in [(0, &told[0]), (2, &told[1]), (1, &told[2])] {
        conforms(shapes::compare(name, &shape[at], seen, &[]));
    }
    engine.restart().await;
    let told = poll(&engine).await;
    assert_eq!(
        (&told[0]["event_id"], &told[1]["event_id"]),
        (&json!(0), &json!(0))
    );

    let single = started(config(Era::Main)).await;
    single.restart().await;
    let name = "kv_events_restart.json";
    let told = poll(&single).await;
    assert_eq!(
        told[0]["event_id"],
        shapes::json(name)["body"][0]["event_id"]
    );
    conforms(shapes::compare(
        name,
        &shapes::json(name)["body"],
        &told,
        &[],
    ));

    let mut overflows = config(Era::Main);
    overflows.events.as_mut().unwrap().buffer = 1;
    let engine = started(overflows).await;
    say(&engine, &prompt()[..32]).await;
    say(&engine, &named()).await;
    let name = "kv_events_overflow_gap.json";
    let told = poll(&engine).await;
    assert!(told[0]["event_id"].as_u64().unwrap() > 1, "a gap");
    conforms(shapes::compare(
        name,
        &shapes::json(name)["body"],
        &told,
        &[],
    ));
}

#[tokio::test]
async fn events_of_the_host_and_of_salts_have_their_shapes() {
    let name = "kv_events_offload_updated.json";
    let shape = shapes::json(name);
    let engine = started(Config {
        blocks: 4,
        host_blocks: 4096,
        ..config(Era::Main)
    })
    .await;
    say(&engine, &prompt()[..64]).await;
    say(&engine, &(5000..5096).collect::<Vec<_>>()).await;
    say(&engine, &prompt()[..65]).await;
    let told = poll(&engine).await;
    let moves = |to: u64| {
        let mut events = told.as_array().unwrap().iter();
        events
            .find(|event| event["data"]["cache_level"]["new_value"] == to)
            .unwrap()
            .clone()
    };
    let like = |at: usize, mut seen: Value| {
        // Which block goes first is the scheduler's affair.
        seen["data"]["block_hash"] = shape[at]["data"]["block_hash"].clone();
        conforms(shapes::compare(name, &shape[at], &seen, &[]));
    };
    like(2, moves(1));
    like(4, moves(0));

    let name = "kv_events_mm_and_salt.json";
    let shape = shapes::json(name);
    let engine = started(config(Era::Main)).await;
    let chat = json!({
        "model": MODEL, "messages": [], "prompt_token_ids": &prompt()[..32], "max_tokens": 1, "cache_salt": "tenant-a",
    });
    post(&engine, "/v1/chat/completions", &chat).await.served();
    let mut told = poll(&engine).await;
    let salt = shapes::json("hash_vectors_v1_block_key.json")["salt_ids"]["main sha256[:8] LE of 'tenant-a'"].as_u64();
    let expected = v1_block_key(&prompt()[..32], 0, None, salt);
    let hash = &mut told[1]["data"]["blocks"][0]["block_hash"];
    assert_eq!(*hash, expected, "salted by the salt's digest");
    // The generator salted with a number of its own.
    *hash = shape[2]["data"]["blocks"][0]["block_hash"].clone();
    conforms(shapes::compare(name, &shape[2], &told[1], &[]));
}

#[test]
fn blocks_are_named_as_in_the_vectors() {
    let vectors = shapes::json("hash_vectors_v1_block_key.json");
    let tokens = |of: &Value| shapes::numbers(of);
    let mut compared = 0;
    for vector in vectors["vectors"].as_array().unwrap() {
        if vector.get("token_extra_ids").or(vector.get("mm")).is_some() {
            continue;
        }
        let (lora, salt) = (
            vector["lora_task_id"].as_u64(),
            vector["cache_salt_id"].as_u64(),
        );
        let parent = vector["parent"].as_u64().unwrap();
        let hash = v1_block_key(&tokens(&vector["tokens"]), parent, lora, salt);
        assert_eq!(vector["hash"], hash, "{vector}");
        compared += 1;
    }
    assert_eq!(compared, 5);
    let chain = &vectors["prompt_chain"];
    let prompt = tokens(&chain["tokens"]);
    let mut parent = 0;
    for (block, hash) in prompt[..prompt.len() - 1]
        .chunks(32)
        .zip(chain["hashes"].as_array().unwrap())
    {
        parent = v1_block_key(block, parent, None, None);
        assert_eq!(*hash, parent);
    }
}

/// Every shape is used by a test of this file, or left out with a reason; the folder has no other.
#[test]
fn nothing_is_left_out_without_a_reason() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/trtllm");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name());
    let files: BTreeSet<String> = files.map(|name| name.into_string().unwrap()).collect();
    let known: BTreeSet<String> = SHAPES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let readme = BTreeSet::from(["README.md".to_owned()]);
    assert_eq!(files, known.union(&readme).cloned().collect());
    let source = include_str!("conformance_trtllm.rs");
    for (name, _) in SHAPES {
        let left_out = LEFT_OUT.iter().any(|(left, _)| left == name);
        assert_eq!(!left_out, source.contains(&format!("\"{name}\"")), "{name}");
    }
    let errors = shapes::json("errors.json");
    for error in errors["worker"].as_array().unwrap() {
        let why = error["why"].as_str().unwrap();
        let left_out = LEFT_OUT.iter().any(|(left, _)| left.ends_with(why));
        let words = [
            "pydantic",
            "any engine exception",
            "generation side",
            "bad request_type",
            "auth configured",
            "/v1/data_transceiver_state",
        ];
        assert_ne!(
            left_out,
            words.iter().any(|word| why.starts_with(word)),
            "{why}"
        );
    }
    for (name, why) in LEFT_OUT {
        assert!(why.split(' ').count() > 3, "{name}: {why}");
    }
}
