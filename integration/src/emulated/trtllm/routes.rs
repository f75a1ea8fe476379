//! Which path is answered by what: what `trtllm-serve` registers, as far as anybody who serves or routes wants it.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::core::{CacheUse, Handoff, Output, Request as CoreRequest, Sampling};
use super::super::pool::CacheKeys;
use super::super::process::Life;
use super::super::script::Http;
use super::super::server::{After, Connection, Request};
use super::answers::CREATED;
use super::config::{Era, Transceiver};
use super::engine::EmulatedTrtllm;
use super::generate;
use super::iterations;
use super::outbox::Polled;
use super::request::{Refused, Route};

/// What a dead engine says of itself.
const UNAVAILABLE: &str = "LLM is unavailable. Please check the server logs for more details.";

/// Answers a request.
pub(super) async fn route(
    connection: &mut Connection,
    engine: &EmulatedTrtllm,
    life: &Arc<Life>,
    request: &Request,
) -> After {
    let path = request.path.split('?').next().unwrap_or_default();
    let main = engine.config().era == Era::Main;
    if request.method == "GET"
        && let Some(told) = told(engine, path)
    {
        return connection.json(200, &told).await;
    }
    match (request.method.as_str(), path) {
        ("GET", "/health") => health(connection, engine, life).await,
        ("GET", "/health_generate") => health_generate(connection, life).await,
        ("POST", "/kv_cache_events") => events(connection, engine).await,
        ("GET", "/metrics") => metrics(connection, engine).await,
        ("GET", "/prometheus/metrics") if engine.config().request_stats.is_some() => {
            let page = iterations::page(life);
            let page = page.as_bytes();
            connection.answer(200, iterations::CONTENT_TYPE, page).await
        }
        ("GET" | "POST", "/steady_clock_offset") => clock(connection, engine, life, request).await,
        ("GET", "/v1/data_transceiver_state") if main => {
            let told = json!({"error": "No transceiver state available"});
            connection.json(404, &told).await
        }
        ("POST", "/_internal/tokenize") if main => tokenize(connection, engine, request).await,
        ("POST", "/v1/completions") => {
            generated(connection, engine, life, request, Route::Completions).await
        }
        ("POST", "/v1/chat/completions") => {
            generated(connection, engine, life, request, Route::Chat).await
        }
        (_, "/kv_cache_events" | "/health" | "/metrics" | "/server_info") => {
            let told = json!({"detail": "Method Not Allowed"});
            connection.json(405, &told).await
        }
        _ => connection.json(404, &json!({"detail": "Not Found"})).await,
    }
}

/// What is told without work.
fn told(engine: &EmulatedTrtllm, path: &str) -> Option<Value> {
    match path {
        "/version" => Some(json!({"version": engine.config().era.version()})),
        "/v1/models" => Some(models(engine)),
        "/server_info" => Some(server_info(engine)),
        "/perf_metrics" => Some(engine.iterations().take_finished().into()),
        _ => None,
    }
}

/// Health is not progress: an engine that stands still is healthy.
async fn health(connection: &mut Connection, engine: &EmulatedTrtllm, life: &Life) -> After {
    let mode = *engine.process().http_mode.lock().unwrap();
    if let Http::SlowHealth(delay) = mode {
        tokio::time::sleep(delay).await;
    }
    if life.death.dying.is_cancelled() {
        return connection
            .answer(503, "text/plain", UNAVAILABLE.as_bytes())
            .await;
    }
    connection.answer(200, "", b"").await
}

async fn health_generate(connection: &mut Connection, life: &Life) -> After {
    let mut submitted = life.ranks[0].core.submit(CoreRequest {
        id: "health".to_owned(),
        prompt: vec![0],
        keys: CacheKeys::default(),
        sampling: Sampling {
            limit: 1,
            ..Sampling::default()
        },
        handoff: Handoff::None,
        report_hits: false,
        cache: CacheUse::Whole,
    });
    let (status, said) = match submitted.next().await {
        Some(Output::Token { .. }) => (200, "Generation health check OK"),
        _ => (500, "Generation health check failed"),
    };
    connection
        .answer(status, "text/plain", said.as_bytes())
        .await
}

fn models(engine: &EmulatedTrtllm) -> Value {
    let name = &engine.config().served_model_name;
    json!({
        "object": "list",
        "data": [{"id": name, "object": "model", "created": CREATED, "owned_by": "tensorrt_llm"}],
    })
}

fn server_info(engine: &EmulatedTrtllm) -> Value {
    let config = engine.config();
    let mut told = json!({"disaggregated_params": {}});
    if config.transceiver == Some(Transceiver::Python) {
        let seats = engine.seats();
        let endpoints = seats.iter().map(|seat| format!("tcp://{}", seat.address));
        told["disaggregated_params"] = json!({
            "ctx_dp_rank": 0, "ctx_info_endpoint": endpoints.collect::<Vec<_>>(),
        });
    }
    if config.era == Era::Main {
        told["max_batch_size"] = config.max_batch_size.into();
        told["kv_cache_hash_algo"] = config.hash_algo.name().into();
        told["tokens_per_block"] = config.tokens_per_block.into();
    }
    told
}

/// Whoever asks gets all events that wait, and nobody gets them again. Without events there are never any.
async fn events(connection: &mut Connection, engine: &EmulatedTrtllm) -> After {
    let Some(outbox) = engine.outbox() else {
        return connection.json(200, &json!([])).await;
    };
    match outbox.poll(engine.config().patience.events).await {
        Polled::Answer(events) => {
            connection
                .answer(200, "application/json", events.as_bytes())
                .await
        }
        Polled::Cut => After::Reset,
    }
}

/// With statistics of requests somebody in the engine collects those of iterations, and nobody waits.
async fn metrics(connection: &mut Connection, engine: &EmulatedTrtllm) -> After {
    let config = engine.config();
    let patience = match config.request_stats {
        Some(_) => std::time::Duration::ZERO,
        None => config.patience.metrics,
    };
    let told = engine.iterations().take(patience).await;
    connection.json(200, &told.into()).await
}

async fn clock(
    connection: &mut Connection,
    engine: &EmulatedTrtllm,
    life: &Life,
    request: &Request,
) -> After {
    if request.method == "POST" {
        return connection.answer(200, "", b"").await;
    }
    let (received, came) = (life.started, Instant::now());
    tokio::time::sleep(engine.config().patience.clock).await;
    let told = json!({
        "receive_ts": received, "transmit_ts": received + came.elapsed().as_secs_f64(),
    });
    connection.json(200, &told).await
}

async fn tokenize(
    connection: &mut Connection,
    engine: &EmulatedTrtllm,
    request: &Request,
) -> After {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let tokens = engine
        .tokenizer
        .encode(body["prompt"].as_str().unwrap_or_default());
    let told = json!({"count": tokens.len(), "tokens": tokens});
    connection.json(200, &told).await
}

/// Bodies may be MessagePack, which newer orchestrators send; whatever the content type says.
async fn generated(
    connection: &mut Connection,
    engine: &EmulatedTrtllm,
    life: &Arc<Life>,
    request: &Request,
    route: Route,
) -> After {
    let mut headers = request.headers.iter();
    let packed = headers.any(|(name, value)| name == "x-trtllm-msgpack" && value == "1");
    if !packed || engine.config().era == Era::V12 {
        return generate::generate(connection, engine, life, request, route).await;
    }
    let Ok(body) = rmp_serde::from_slice::<Value>(&request.body) else {
        let refused = Refused::bad("the body is no MessagePack");
        return connection.json(400, &refused.body()).await;
    };
    let unpacked = Request {
        method: request.method.clone(),
        path: request.path.clone(),
        headers: request.headers.clone(),
        body: body.to_string().into_bytes(),
    };
    generate::generate(connection, engine, life, &unpacked, route).await
}
