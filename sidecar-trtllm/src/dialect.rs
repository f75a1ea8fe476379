//! TensorRT-LLM's dialect: how a client's body becomes a leg's body, and what the engine's answers mean.
//!
//! A handoff is context-first: the context engine computes the prompt and one token, answers with `disaggregated_params`, and the
//! generation engine is given these and fetches. They are relayed as they came, for a key that an engine does not know is a
//! refusal (`extra="forbid"`), and one that is missing may end it. Generation-first, where decode is asked before there is
//! anything to fetch, has the same two legs with an offer instead of an answer between them.

mod handoff;
#[cfg(test)]
mod tests;

use baton_proto::json::Edit;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Error, RequestId};
use baton_sidecar_core::engine::Leg;
pub use baton_sidecar_core::openai::{judge_answer, judge_event};
use baton_sidecar_core::refusal::bad_metadata;
use serde_json::json;

pub(crate) use handoff::read_offered;
pub use handoff::{Handoff, read_prefill};

use crate::ids;
use crate::server_info::ContextEndpoint;

/// The generation engine is asked when the context engine is done.
const CONTEXT_FIRST: u8 = 0;

/// It is asked at once. On the wire these are numbers, whatever the enumeration is called.
const GENERATION_FIRST: u8 = 1;

/// The context leg: the client's request, answered with one token and what is needed to go on.
pub fn prefill_body(
    request: &ClientRequest,
    offered: Option<&TransferMetadata>,
    leg: Leg<'_>,
) -> String {
    let object = request.object();
    let offered = offered.and_then(|offered| Handoff::parse(offered).ok()?.id());
    let (id, style) = match offered {
        Some(id) => (id, GENERATION_FIRST),
        None => (ids::of_leg(leg.request), CONTEXT_FIRST),
    };
    let params =
        json!({"request_type": "context_only", "disagg_request_id": id, "schedule_style": style});
    let edit = object
        .edit()
        .set("stream", "false")
        .set("stream_options", "null")
        .set("disaggregated_params", params.to_string());
    salted(edit, request, leg).finish()
}

/// The generation leg: the client's request with what the context engine answered.
pub fn decode_body(
    request: &ClientRequest,
    ticket: &Ticket,
    leg: Leg<'_>,
) -> Result<String, Error> {
    let handoff = Handoff::parse(&ticket.metadata).map_err(|why| bad_metadata(&why))?;
    let params = handoff.for_generation().map_err(|why| bad_metadata(&why))?;
    let object = request.object();
    let edit = object.edit().set("disaggregated_params", params);
    // Tokens that are there need not be made again, and could come out differently.
    let edit = match (handoff.prompt_token_ids(), request.route()) {
        (Some(ids), Route::ChatCompletions) => edit.set("prompt_token_ids", ids),
        (Some(ids), Route::Completions) => edit.set("prompt", ids),
        (_, Route::PassThrough(_)) | (None, _) => edit,
    };
    Ok(salted(edit, request, leg).finish())
}

/// The local leg: the client's request.
pub fn local_body(request: &ClientRequest, leg: Leg<'_>) -> String {
    let object = request.object();
    salted(object.edit(), request, leg).finish()
}

/// The handoff of a prefill that has not begun.
pub(crate) fn offer(id: u64, endpoint: &ContextEndpoint) -> TransferMetadata {
    let address = serde_json::Value::from(endpoint.address.as_str());
    let params = format!(
        "{{\"request_type\":\"generation_only\",\"ctx_request_id\":{id},\"disagg_request_id\":{id},\"schedule_style\":\
         {GENERATION_FIRST},\"ctx_dp_rank\":{},\"ctx_info_endpoint\":{address}}}",
        endpoint.rank
    );
    TransferMetadata::new(format!("{{\"disaggregated_params\":{params}}}"))
}

/// TensorRT-LLM shares no block between different cache salts. It knows them in chats only, and refuses anything else that has one
/// (`openai_protocol.py`).
fn salted<'a>(edit: Edit<'a>, request: &ClientRequest, leg: Leg<'_>) -> Edit<'a> {
    if request.route() != Route::ChatCompletions {
        return edit;
    }
    match leg.salt(request.object().get_set("cache_salt")) {
        Some(salt) => edit.set("cache_salt", salt),
        None => edit,
    }
}

/// Whether a context engine's answer is to this leg: it says the handoff's id again. Other answers do not say whose they are.
pub fn is_answer_to(json: &[u8], request: &RequestId) -> bool {
    handoff::id_in_answer(json).is_none_or(|id| id == ids::of_leg(request))
}
