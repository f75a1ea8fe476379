//! Which path is answered by what. Paths, statuses and key sets are those of SGLang 0.5.23, as recorded.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::core::{CacheUse, Handoff, Request as CoreRequest, Sampling};
use super::super::pool::CacheKeys;
use super::super::process::{Life, Rank};
use super::super::script::Http;
use super::super::server::{After, Connection, Request};
use super::engine::EmulatedSglang;
use super::generate;
use super::info;
use super::load;
use super::metrics;
use super::request::{self, Route};

/// How often a health check looks whether the scheduler has moved.
const GLANCE: Duration = Duration::from_millis(5);

const FLUSHED: &str = "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting \
                       requests, the operation will not be performed.)\n";

/// Answers a request.
pub(super) async fn route(
    connection: &mut Connection,
    engine: &EmulatedSglang,
    life: &Arc<Life>,
    request: &Request,
) -> After {
    let path = request.path.split('?').next().unwrap_or_default();
    let config = engine.config();
    let open = matches!(path, "/health" | "/ready" | "/metrics" | "/ping");
    if !open && !is_admitted(engine, request) {
        return connection
            .json(401, &json!({"error": "Unauthorized"}))
            .await;
    }
    let told = match (request.method.as_str(), path) {
        ("GET", "/health" | "/health_generate") => return health(connection, engine, life).await,
        ("GET", "/ready" | "/ping") => return connection.answer(ready(life), "", b"").await,
        ("GET", "/server_info" | "/get_server_info") => info::server(engine, life),
        ("GET", "/model_info" | "/get_model_info") => info::model(config),
        ("GET", "/v1/models") => info::models(config),
        ("GET", "/v1/loads") => load::loads(config, life),
        ("GET", "/metrics") if config.metrics => {
            let page = metrics::page(config, life);
            let page = page.as_bytes();
            return connection.answer(200, metrics::CONTENT_TYPE, page).await;
        }
        ("POST", "/tokenize" | "/v1/tokenize") => {
            return tokenize(connection, engine, request).await;
        }
        ("POST", "/detokenize" | "/v1/detokenize") => detokenize(engine, request),
        ("POST", "/abort_request") => return abort(connection, engine, request).await,
        ("POST" | "GET", "/flush_cache") => return flush(connection, engine).await,
        ("POST", _) => return generated(connection, engine, life, request, path).await,
        _ => return not_found(connection).await,
    };
    connection.json(200, &told).await
}

async fn generated(
    connection: &mut Connection,
    engine: &EmulatedSglang,
    life: &Arc<Life>,
    request: &Request,
    path: &str,
) -> After {
    let route = match path {
        "/generate" => Route::Generate,
        "/v1/completions" => Route::Completions,
        "/v1/chat/completions" => Route::Chat,
        _ => return not_found(connection).await,
    };
    generate::generate(connection, engine, life, request, route).await
}

async fn not_found(connection: &mut Connection) -> After {
    connection.json(404, &json!({"detail": "Not Found"})).await
}

fn is_admitted(engine: &EmulatedSglang, request: &Request) -> bool {
    let Some(key) = &engine.config().api_key else {
        return true;
    };
    let bearer = format!("Bearer {key}");
    let mut headers = request.headers.iter();
    headers.any(|(name, value)| name == "authorization" && *value == bearer)
}

fn ready(life: &Life) -> u16 {
    if life.death.dying.is_cancelled() {
        503
    } else {
        200
    }
}

/// Health is that the scheduler moves: a token is generated for it, and that is looked at every now and then.
async fn health(connection: &mut Connection, engine: &EmulatedSglang, life: &Life) -> After {
    let mode = *engine.process().http_mode.lock().unwrap();
    if let Http::SlowHealth(delay) = mode {
        tokio::time::sleep(delay.max(Duration::from_millis(1))).await;
    }
    let patience = engine.config().patience;
    let looks = Instant::now() + patience.health_pause;
    let moved = tokio::time::timeout(patience.health, moved(&life.ranks[0])).await;
    tokio::time::sleep_until(looks).await;
    let status = if moved.is_ok() { ready(life) } else { 503 };
    connection.answer(status, "", b"").await
}

async fn moved(rank: &Rank) {
    let before = rank.core.stats().steps;
    let _token = rank.core.submit(CoreRequest {
        id: "HEALTH_CHECK".to_owned(),
        prompt: vec![0],
        keys: CacheKeys::default(),
        sampling: Sampling {
            limit: 1,
            ..Sampling::default()
        },
        handoff: Handoff::None,
        report_hits: false,
        cache: CacheUse::Nothing,
    });
    while rank.core.stats().steps == before {
        tokio::time::sleep(GLANCE).await;
    }
}

fn json_body(request: &Request) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}

async fn tokenize(
    connection: &mut Connection,
    engine: &EmulatedSglang,
    request: &Request,
) -> After {
    let (body, tokenizer) = (json_body(request), &engine.tokenizer);
    let tokens = match body["prompt"].as_str() {
        Some(prompt) => Ok(tokenizer.encode(prompt)),
        None => {
            let answer_follows = body["add_generation_prompt"] != false;
            request::chat_tokens(&body, answer_follows, engine.config(), tokenizer)
        }
    };
    match tokens {
        Ok(tokens) => {
            let told = json!({
                "tokens": tokens, "count": tokens.len(), "max_model_len": engine.config().context_length,
            });
            connection.json(200, &told).await
        }
        Err(refused) => {
            let body = refused.body(Route::Completions);
            connection.json(refused.status, &body).await
        }
    }
}

fn detokenize(engine: &EmulatedSglang, request: &Request) -> Value {
    let body = json_body(request);
    let ids = body["tokens"].as_array().into_iter().flatten();
    let ids = ids.filter_map(|id| u32::try_from(id.as_u64()?).ok());
    let ids: Vec<u32> = ids.collect();
    json!({"text": engine.tokenizer.decode(&ids)})
}

/// Names that are unknown are as good as known ones, and the beginning of one means all that begin so.
async fn abort(connection: &mut Connection, engine: &EmulatedSglang, request: &Request) -> After {
    let body = json_body(request);
    if body["abort_all"] == true {
        engine.abort("");
    } else {
        engine.abort(body["rid"].as_str().unwrap_or_default());
    }
    connection.answer(200, "", b"").await
}

async fn flush(connection: &mut Connection, engine: &EmulatedSglang) -> After {
    let busy =
        |stats: &super::super::core::Stats| stats.running + stats.waiting + stats.fetching > 0;
    if engine.stats().iter().any(busy) {
        return connection.answer(400, "", FLUSHED.as_bytes()).await;
    }
    if engine.config().has_cache() {
        engine.reset_prefix_cache();
    }
    connection.answer(200, "", FLUSHED.as_bytes()).await
}
