//! What it says of itself: `/server_info`, `/model_info`. What nobody has to care about is what was recorded.

use serde_json::{Value, json};

use super::super::process::Life;
use super::config::{Config, EventsConfig, Mode};
use super::engine::EmulatedSglang;
use super::events::Format;

const RECORDED: &str = include_str!("../../../recordings/sglang/server_info_prefill.json");

/// `/server_info`: everything it was started with, keys and passwords included.
pub(super) fn server(engine: &EmulatedSglang, life: &Life) -> Value {
    let config = engine.config();
    let mut info: Value = serde_json::from_str(RECORDED).expect("the recording is JSON");
    let own = own(engine);
    put(&mut info, &own);
    let state = info["internal_states"][0].take();
    let mut states = vec![state; config.dp_size as usize];
    for state in &mut states {
        put(state, &own);
    }
    info["internal_states"] = states.into();
    info["startup_time"]["scheduler_e2e"] = (life.started % 100_000.0 / 1_000.0).into();
    info
}

/// Replaces what the recording has, too.
fn put(info: &mut Value, own: &Value) {
    for (key, value) in own.as_object().into_iter().flatten() {
        if let Some(place) = info.get_mut(key) {
            *place = value.clone();
        }
    }
}

fn own(engine: &EmulatedSglang) -> Value {
    let config = engine.config();
    let tokens = u64::from(config.pages) * u64::from(config.page_size);
    let balance = match config.mode {
        Mode::Prefill => "follow_bootstrap_room",
        _ => "round_robin",
    };
    json!({
        "model_path": config.model, "tokenizer_path": config.model, "served_model_name": config.served_model_name,
        "max_running_requests": config.max_running_requests, "max_total_tokens": tokens,
        "chunked_prefill_size": config.chunked_prefill_size, "page_size": config.page_size,
        "disable_radix_cache": !config.has_cache(), "dp_size": config.dp_size,
        "load_balance_method": balance, "host": engine.address().ip().to_string(),
        "port": engine.address().port(), "api_key": config.api_key, "admin_api_key": config.admin_api_key,
        "enable_cache_report": config.cache_report, "enable_metrics": config.metrics,
        "kv_events_config": config.events.as_ref().map(|events| events_flag(events).to_string()),
        "load_publish_endpoint": config.load_endpoint, "disaggregation_mode": config.mode.name(),
        "disaggregation_bootstrap_port": config.bootstrap_port,
        "disaggregation_decode_enable_radix_cache": config.decode_radix_cache,
        "launch_command": config.launch_command, "context_length": config.context_length,
        "max_total_num_tokens": tokens, "max_req_input_len": config.context_length.saturating_sub(6),
        "kv_events": kv_events(config),
    })
}

fn events_flag(events: &EventsConfig) -> Value {
    let format = match events.format {
        Format::Default => "default",
        Format::Dynamo => "dynamo",
    };
    json!({
        "publisher": "zmq", "endpoint": events.endpoint, "replay_endpoint": events.replay_endpoint,
        "topic": events.topic, "format": format,
    })
}

/// Where its events and its load can be had.
pub(super) fn kv_events(config: &Config) -> Value {
    let Some(events) = &config.events else {
        return Value::Null;
    };
    let (host, port) = parts(&events.endpoint);
    let mut told = json!({
        "publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": events.topic,
        "block_size": config.page_size, "dp_size": config.dp_size,
    });
    if let Some(endpoint) = &config.load_endpoint {
        told["load_endpoint_port_base"] = parts(endpoint).1;
        told["load_topic"] = super::load::TOPIC.into();
    }
    if let Some(endpoint) = &events.replay_endpoint {
        told["replay_endpoint_port_base"] = parts(endpoint).1;
    }
    told
}

fn parts(endpoint: &str) -> (Value, Value) {
    let address = endpoint.trim_start_matches("tcp://");
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    (host.into(), port.parse::<u16>().ok().into())
}

/// `/model_info`.
pub(super) fn model(config: &Config) -> Value {
    json!({
        "model_path": config.model, "served_model_name": config.served_model_name, "tokenizer_path": config.model,
        "is_generation": true, "preferred_sampling_params": null, "weight_version": "default", "load_format": "auto",
        "reasoning_parser": null, "tool_call_parser": null, "disaggregation_mode": config.mode.name(),
        "has_image_understanding": false, "has_audio_understanding": false, "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    })
}

/// `/v1/models`.
pub(super) fn models(config: &Config) -> Value {
    json!({"object": "list", "data": [{
        "id": config.served_model_name, "object": "model", "created": 1_796_005_881, "owned_by": "sglang",
        "root": config.served_model_name, "parent": null, "max_model_len": config.context_length,
    }]})
}
