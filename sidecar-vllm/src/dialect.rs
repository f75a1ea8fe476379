//! vLLM's dialect: how a client's body becomes a leg's body, and what the engine's answers mean.

use baton_proto::call::PrefillUsage;
use baton_proto::json::{Edit, RawObject};
use baton_proto::request::ClientRequest;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Error, RequestId};
use baton_sidecar_core::engine::{HeldKv, Leg, Prefilled};
pub use baton_sidecar_core::openai::{judge_answer, judge_event};
use baton_sidecar_core::refusal::{bad_metadata, strange_prefill as strange};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::handshake::Geometry;
use crate::transfer_params::{ASK, TransferParams};

const TRANSFER: &str = "kv_transfer_params";

/// The prefill leg: one token, not streamed (a streamed prefill never returns `kv_transfer_params`), and none of the keys
/// that contradict that. Chat lets `max_completion_tokens` win over `max_tokens`, so both are set.
pub fn prefill_body(request: &ClientRequest, leg: Leg<'_>) -> String {
    let object = request.object();
    let edit = object
        .edit()
        .set("stream", "false")
        .set("max_tokens", "1")
        .set("max_completion_tokens", "1")
        .remove("min_tokens")
        .remove("stream_options")
        .set(TRANSFER, ASK);
    for_engine(edit, &object, leg).finish()
}

/// The decode leg: the client's request with the handoff.
pub fn decode_body(
    request: &ClientRequest,
    ticket: &Ticket,
    leg: Leg<'_>,
) -> Result<String, Error> {
    let metadata = std::str::from_utf8(ticket.metadata.as_bytes())
        .map_err(|_| bad_metadata("they are not JSON"))?;
    let object = request.object();
    Ok(for_engine(object.edit().set(TRANSFER, metadata), &object, leg).finish())
}

/// The local leg: the client's request.
pub fn local_body(request: &ClientRequest, leg: Leg<'_>) -> String {
    let object = request.object();
    for_engine(object.edit(), &object, leg).finish()
}

/// Which engine's KV a ticket's metadata name.
pub fn remote_engine_id(ticket: &Ticket) -> Option<String> {
    RawObject::parse(ticket.metadata.as_bytes())
        .ok()?
        .get_as("remote_engine_id")
}

/// Ids are ours, never the client's. After a quarantine the cache salt keeps requests away from blocks that were cached
/// before it: vLLM shares no block between different salts.
fn for_engine<'a>(edit: Edit<'a>, object: &RawObject<'_>, leg: Leg<'_>) -> Edit<'a> {
    let edit = report_mode(edit.remove("request_id"), object, leg.report_reused);
    match leg.salt(object.get_set("cache_salt")) {
        Some(salt) => edit.set("cache_salt", salt),
        None => edit,
    }
}

/// `vllm_xargs.kv_cache_report_mode: full` has the engine announce the blocks that it reuses like new ones (0.32.0). That
/// is of use while not all that it holds is known, and of harm otherwise, so a client's own wish is not passed on.
fn report_mode<'a>(edit: Edit<'a>, object: &RawObject<'_>, full: bool) -> Edit<'a> {
    const XARGS: &str = "vllm_xargs";
    const MODE: &str = "kv_cache_report_mode";
    const FULL: &str = "\"full\"";
    let Some(raw) = object.get_set(XARGS) else {
        let own = format!("{{\"{MODE}\":{FULL}}}");
        return if full { edit.set(XARGS, own) } else { edit };
    };
    // Anything but an object is left for the engine to refuse.
    let Ok(own) = RawObject::parse(raw.as_bytes()) else {
        return edit;
    };
    match (full, own.get(MODE)) {
        (true, _) => edit.set(XARGS, own.edit().set(MODE, FULL).finish()),
        (false, Some(_)) => edit.set(XARGS, own.edit().remove(MODE).finish()),
        (false, None) => edit,
    }
}

#[derive(Deserialize)]
struct PrefillAnswer<'a> {
    choices: Vec<PrefillChoice>,
    usage: Usage,
    #[serde(borrow)]
    kv_transfer_params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct PrefillChoice {
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u32,
}

/// What a finished prefill left in the engine `from`. A prefill that ended by a stop still holds its blocks.
pub fn read_prefill(
    answer: &[u8],
    from: &Geometry,
    engine_id: &str,
    lease: std::time::Duration,
) -> Result<Prefilled, Error> {
    let answer: PrefillAnswer<'_> = serde_json::from_slice(answer)
        .map_err(|error| strange(&format!("the prefill's answer is strange: {error}")))?;
    let [choice] = &answer.choices[..] else {
        return Err(strange(&format!(
            "the prefill answered {} choices",
            answer.choices.len()
        )));
    };
    let prompt_tokens = answer.usage.prompt_tokens;
    let raw = answer
        .kv_transfer_params
        .map(RawValue::get)
        .filter(|raw| *raw != "null");
    let params = raw
        .map(|raw| usable(raw, from, engine_id, prompt_tokens))
        .transpose()?;
    let cached_tokens = params
        .as_ref()
        .and_then(|(params, _)| params.remote_prefill_cached_tokens);
    let usage = PrefillUsage {
        prompt_tokens,
        cached_tokens,
    };
    let kv = params.map(|(params, raw)| HeldKv {
        bytes: Some(params.bytes(from)),
        metadata: TransferMetadata::new(raw.to_owned()),
        lease,
    });
    match (choice.finish_reason.as_deref(), kv) {
        (Some("length"), Some(kv)) => Ok(Prefilled::Handoff { usage, kv }),
        (Some("length"), None) => Err(strange(
            "the prefill returned no kv_transfer_params: is its connector on?",
        )),
        (Some(_), kv) => Ok(Prefilled::Ended { usage, kv }),
        (None, _) => Err(strange("the prefill has no finish_reason")),
    }
}

fn usable<'a>(
    raw: &'a str,
    from: &Geometry,
    engine_id: &str,
    prompt_tokens: u32,
) -> Result<(TransferParams, &'a str), Error> {
    let params = TransferParams::parse(raw.as_bytes(), from).map_err(|why| strange(&why))?;
    if params.remote_engine_id != engine_id {
        return Err(strange(
            "kv_transfer_params are of another engine than the one attached",
        ));
    }
    // Mamba and multi-token prediction hand over one token less (0.32.0, `_p_side_truncated`).
    if !matches!(
        prompt_tokens.checked_sub(params.remote_num_tokens),
        Some(0 | 1)
    ) {
        return Err(strange(
            "kv_transfer_params are for a prompt of another length",
        ));
    }
    Ok((params, raw))
}

/// vLLM calls an answer `cmpl-` or `chatcmpl-` and the id that `X-Request-Id` gave to the request, and the KV that a
/// prefill holds the same with a suffix (0.32.0).
pub fn is_answer_to(json: &[u8], request: &RequestId) -> bool {
    let Ok(object) = RawObject::parse(json) else {
        return true;
    };
    let id: Option<String> = object.get_as("id");
    let held = object.get_set(TRANSFER);
    id.is_none_or(|id| id.ends_with(request.as_str()))
        && held.is_none_or(|params| params.contains(request.as_str()))
}

#[cfg(test)]
mod tests;
