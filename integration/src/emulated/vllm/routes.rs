//! Which path is answered by what. Paths, statuses and key sets are those of vLLM 0.32.0, as recorded.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::process::Life;
use super::super::script::{Http, Leg};
use super::super::seen::Fate;
use super::super::server::{After, Connection, Request};
use super::answers;
use super::engine::EmulatedVllm;
use super::generate;
use super::request;
use super::scale_out;
use super::telling;

/// Answers a request.
pub(super) async fn route(
    connection: &mut Connection,
    engine: &EmulatedVllm,
    life: &Arc<Life>,
    request: &Request,
) -> After {
    let path = request.path.as_str();
    let open = matches!(path, "/health" | "/metrics" | "/version");
    if !open && !is_admitted(engine, request) {
        return connection
            .json(401, &json!({"error": "Unauthorized"}))
            .await;
    }
    match (request.method.as_str(), path) {
        ("GET", "/health") => health(connection, engine, life).await,
        ("GET", "/version") => connection.json(200, &json!({"version": "0.32.0"})).await,
        ("GET", "/load") => {
            let load = life.running.load(std::sync::atomic::Ordering::Relaxed);
            connection.json(200, &json!({"server_load": load})).await
        }
        ("GET", "/v1/models") => {
            connection
                .json(200, &answers::models(engine.config()))
                .await
        }
        ("GET", "/metrics") => {
            let page = telling::page(engine, life);
            let content_type = "text/plain; version=1.0.0; charset=utf-8";
            connection.answer(200, content_type, page.as_bytes()).await
        }
        ("GET", "/kv_event_sources") => connection.json(200, &sources(life)).await,
        ("POST", "/reset_prefix_cache") if engine.config().dev_mode => {
            life.ranks
                .iter()
                .for_each(|rank| rank.core.reset_prefix_cache());
            connection.json(200, &json!({"success": true})).await
        }
        ("POST", "/tokenize") => tokenize(connection, engine, request).await,
        ("POST", "/detokenize") => detokenize(connection, engine, request).await,
        ("POST", "/v1/completions" | "/v1/chat/completions") => {
            generate::generate(connection, engine, life, request).await
        }
        ("POST", "/v1/embeddings") => embed(connection, engine, request).await,
        (
            "POST",
            "/inference/v1/abort_requests"
            | "/inference/v1/generate"
            | "/v1/completions/render"
            | "/v1/chat/completions/render",
        ) if !engine.config().scale_out => {
            let message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
            let body = answers::error(403, "PermissionDeniedError", message, None);
            connection.json(403, &body).await
        }
        ("POST", "/inference/v1/abort_requests") => abort(connection, life, request).await,
        ("POST", "/inference/v1/generate") => {
            scale_out::generate(connection, engine, life, request).await
        }
        ("POST", "/v1/completions/render" | "/v1/chat/completions/render") => {
            scale_out::render(connection, engine, request).await
        }
        _ => connection.json(404, &json!({"detail": "Not Found"})).await,
    }
}

fn is_admitted(engine: &EmulatedVllm, request: &Request) -> bool {
    let Some(key) = &engine.config().api_key else {
        return true;
    };
    let bearer = format!("Bearer {key}");
    let headers = request.headers.iter();
    headers
        .clone()
        .any(|(name, value)| name == "authorization" && *value == bearer)
}

async fn health(connection: &mut Connection, engine: &EmulatedVllm, life: &Life) -> After {
    let mode = *engine.process().http_mode.lock().unwrap();
    if let Http::SlowHealth(delay) = mode {
        tokio::time::sleep(delay.max(Duration::from_millis(1))).await;
    }
    let status = if life.death.dying.is_cancelled() {
        503
    } else {
        200
    };
    connection.answer(status, "", b"").await
}

fn sources(life: &Life) -> Value {
    let publishers = life.ranks.iter().filter_map(|rank| rank.publisher.as_ref());
    let sources = publishers.filter_map(|publisher| publisher.sources().as_object().cloned());
    Value::Object(sources.flatten().collect())
}

fn json_body(request: &Request) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}

async fn tokenize(connection: &mut Connection, engine: &EmulatedVllm, request: &Request) -> After {
    let (body, tokenizer) = (json_body(request), &engine.tokenizer);
    let tokens = match body["prompt"].as_str() {
        Some(prompt) => Ok(tokenizer.encode(prompt)),
        None => request::chat_prompt(&body, tokenizer),
    };
    let tokens = match tokens {
        Ok(tokens) => tokens,
        Err(refused) => return connection.json(refused.status, &refused.body()).await,
    };
    let strings: Value = if body["return_token_strs"] == true {
        tokens.iter().map(|token| tokenizer.name(*token)).collect()
    } else {
        Value::Null
    };
    let offset = engine.config().token_offset;
    let tokens: Vec<u32> = tokens.iter().map(|token| token + offset).collect();
    let answer = json!({
        "count": tokens.len(), "max_model_len": engine.config().max_model_len, "tokens": tokens,
        "token_strs": strings,
    });
    connection.json(200, &answer).await
}

async fn detokenize(
    connection: &mut Connection,
    engine: &EmulatedVllm,
    request: &Request,
) -> After {
    let body = json_body(request);
    let tokens: Option<Vec<u32>> = body["tokens"].as_array().and_then(|ids| {
        ids.iter()
            .map(|id| u32::try_from(id.as_u64()?).ok())
            .collect()
    });
    let Some(tokens) = tokens else {
        let body = answers::error(
            400,
            "Bad Request",
            "Input should be a valid list",
            Some("body.tokens"),
        );
        return connection.json(400, &body).await;
    };
    let prompt = engine.tokenizer.decode(&tokens);
    connection.json(200, &json!({ "prompt": prompt })).await
}

async fn embed(connection: &mut Connection, engine: &EmulatedVllm, request: &Request) -> After {
    engine.note(Leg::Local, request).ended(Fate::Answered);
    let body = json!({"object": "list", "model": engine.config().served_model_name, "data": [
        {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]},
    ]});
    connection.json(200, &body).await
}

/// Ids that are unknown, or none at all, are as good as known ones.
async fn abort(connection: &mut Connection, life: &Life, request: &Request) -> After {
    let body = json_body(request);
    if body["request_ids"].is_null() {
        let message = "Missing 'request_ids' in request body";
        return connection
            .json(400, &answers::error(400, "Bad Request", message, None))
            .await;
    }
    for id in body["request_ids"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        life.ranks.iter().for_each(|rank| rank.core.abort_by_id(id));
    }
    connection.answer(200, "", b"").await
}
