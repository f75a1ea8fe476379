//! The fake's answers, with the key sets that were recorded.

use serde_json::{Value, json};

use super::MODEL;

const CREATED: u64 = 1_796_006_084;
const FINGERPRINT: &str = "vllm-0.32.0-5ef3db3f";

/// What to say.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) chat: bool,
    pub(super) id: String,
    pub(super) words: Vec<String>,
    pub(super) choices: usize,
    pub(super) finish: &'static str,
    pub(super) prompt_tokens: usize,
    pub(super) params: Value,
}

/// The list of models.
pub(super) fn models() -> Value {
    json!({"object": "list", "data": [{
        "id": MODEL, "object": "model", "created": CREATED, "owned_by": "vllm", "root": "model", "parent": null,
        "max_model_len": 1024, "permission": [],
    }]})
}

/// An error in vLLM's own shape.
pub(super) fn error(status: u16, kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
}

/// The body of every failed transfer.
pub(super) fn internal_error() -> Value {
    error(500, "InternalServerError", "Internal server error")
}

/// The last words of an engine.
pub(super) fn engine_dead() -> Value {
    let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
    error(500, "InternalServerError", message)
}

fn usage(said: &Said) -> Value {
    let generated = said.words.len() * said.choices;
    json!({
        "prompt_tokens": said.prompt_tokens, "total_tokens": said.prompt_tokens + generated,
        "completion_tokens": generated, "prompt_tokens_details": null, "completion_tokens_details": null,
    })
}

/// An unary answer.
pub(super) fn whole(said: &Said) -> Value {
    let text = said.words.concat();
    let choice = |index: usize| {
        if said.chat {
            json!({"index": index, "message": {"role": "assistant", "content": text, "refusal": null, "annotations": null,
                "audio": null, "function_call": null, "reasoning": null}, "logprobs": null, "finish_reason": said.finish,
                "stop_reason": null, "token_ids": null, "routed_experts": null})
        } else {
            json!({"index": index, "text": text, "logprobs": null, "finish_reason": said.finish, "stop_reason": null,
                "token_ids": null, "prompt_logprobs": null, "prompt_token_ids": null, "routed_experts": null})
        }
    };
    let choices: Vec<Value> = (0..said.choices).map(choice).collect();
    json!({
        "id": said.id, "object": if said.chat { "chat.completion" } else { "text_completion" }, "created": CREATED,
        "model": MODEL, "choices": choices, "service_tier": null, "system_fingerprint": FINGERPRINT, "usage": usage(said),
        "kv_transfer_params": said.params, "ec_transfer_params": null, "metrics": null,
    })
}

/// The chunk that chat sends before the KV has arrived.
pub(super) fn role_chunk(said: &Said) -> Value {
    let choice = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null});
    json!({"id": said.id, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL, "choices": [choice],
        "prompt_token_ids": null, "prompt_text": null})
}

/// The chunk of one token.
pub(super) fn token_chunk(said: &Said, at: usize) -> Value {
    let finish = (at + 1 == said.words.len()).then_some(said.finish);
    let word = &said.words[at];
    if said.chat {
        let choice = json!({"index": 0, "delta": {"content": word}, "logprobs": null, "finish_reason": finish, "token_ids": null});
        json!({"id": said.id, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL, "choices": [choice]})
    } else {
        let choice = json!({"index": 0, "text": word, "logprobs": null, "finish_reason": finish, "stop_reason": null,
            "prompt_token_ids": null, "token_ids": null});
        json!({"id": said.id, "object": "text_completion", "created": CREATED, "model": MODEL, "choices": [choice]})
    }
}

/// The chunk that `stream_options.include_usage` asks for.
pub(super) fn usage_chunk(said: &Said) -> Value {
    let object = if said.chat {
        "chat.completion.chunk"
    } else {
        "text_completion"
    };
    json!({"id": said.id, "object": object, "created": CREATED, "model": MODEL, "choices": [], "usage": usage(said),
        "system_fingerprint": FINGERPRINT})
}
