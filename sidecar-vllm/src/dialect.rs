//! vLLM's dialect: how a client's body becomes a leg's body, and what the engine's answers mean.

use baton_proto::call::PrefillUsage;
use baton_proto::json::{Edit, RawObject};
use baton_proto::request::ClientRequest;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Error, ErrorKind, RequestId, Retry, Source, Stage};
use baton_sidecar_core::engine::{HeldKv, Leg, Prefilled, Verdict};
use serde::Deserialize;
use serde_json::Value;
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
    let metadata = std::str::from_utf8(ticket.metadata.as_bytes()).map_err(|_| {
        let message = "the ticket's transfer metadata are not JSON";
        Error::new(
            ErrorKind::TicketRefused,
            Source::Router,
            Stage::Decode,
            message,
        )
        .retry(Retry::Safe)
    })?;
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
    let Some(quarantine) = leg.quarantine else {
        return edit;
    };
    let salt = match object.get_set("cache_salt") {
        None => format!("baton-{quarantine}"),
        // Anything but a text is left for the engine to refuse.
        Some(raw) => match serde_json::from_str::<String>(raw) {
            Ok(own) => format!("baton-{quarantine}/{own}"),
            Err(_) => return edit,
        },
    };
    edit.set("cache_salt", Value::from(salt).to_string())
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
        bytes: params.bytes(from),
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

fn strange(why: &str) -> Error {
    Error::new(ErrorKind::Protocol, Source::Engine, Stage::Prefill, why).retry(Retry::AfterCancel)
}

/// What the data of a streamed event means.
pub fn judge_event(data: &[u8]) -> Verdict {
    if data == b"[DONE]" {
        return Verdict::Done;
    }
    let Ok(object) = RawObject::parse(data) else {
        return Verdict::Failed {
            status: 502,
            message: "an event that is not a JSON object".to_owned(),
        };
    };
    if let Some(error) = object.get_set("error") {
        return in_band_error(error);
    }
    let choices: Vec<Value> = object.get_as("choices").unwrap_or_default();
    if choices.iter().any(carries_token) {
        Verdict::Token
    } else {
        Verdict::Preamble
    }
}

/// `{"error": {"message", "code"}}` inside a 200.
fn in_band_error(raw: &str) -> Verdict {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct InBand {
        message: String,
        code: Option<u16>,
    }
    let error: InBand = serde_json::from_str(raw).unwrap_or_default();
    Verdict::Failed {
        status: error.code.unwrap_or(500),
        message: error.message,
    }
}

/// Chat sends a chunk with nothing but a role before the KV has arrived; everything else needs it.
fn carries_token(choice: &Value) -> bool {
    let filled = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    let delta = choice.get("delta").and_then(Value::as_object);
    let in_delta = delta.is_some_and(|delta| {
        delta
            .iter()
            .any(|(key, value)| key != "role" && filled(value))
    });
    in_delta
        || ["finish_reason", "text", "token_ids"]
            .iter()
            .any(|key| choice.get(key).is_some_and(filled))
}

/// A 200 is an answer if it has choices and no error.
pub fn judge_answer(body: &[u8]) -> Result<(), String> {
    let object = RawObject::parse(body).map_err(|_| "is not a JSON object".to_owned())?;
    if let Some(Verdict::Failed { status, message }) = object.get_set("error").map(in_band_error) {
        return Err(format!("has an error inside, {status}: {message}"));
    }
    let choices: Vec<Choice<'_>> = object
        .get("choices")
        .and_then(|raw| serde_json::from_str(raw).ok())
        .unwrap_or_default();
    if choices.is_empty() || !choices.iter().all(Choice::has_content) {
        return Err("has no content".to_owned());
    }
    Ok(())
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

/// A choice of an answer: a completion's has a text, a chat's a message.
#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

impl Choice<'_> {
    fn has_content(&self) -> bool {
        let begins =
            |value: Option<&RawValue>, with| value.is_some_and(|raw| raw.get().starts_with(with));
        begins(self.text, '"') || begins(self.message, '{')
    }
}

#[cfg(test)]
mod tests;
