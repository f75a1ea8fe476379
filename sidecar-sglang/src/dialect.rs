//! SGLang's dialect: how a client's body becomes a leg's body, and what the engine's answers mean.

use baton_proto::request::ClientRequest;
use baton_proto::ticket::Ticket;
use baton_proto::{Error, ErrorKind, RequestId, Retry, Source, Stage};
use baton_sidecar_core::engine::{Leg, Prefilled, Verdict};

/// The prefill leg.
pub fn prefill_body(request: &ClientRequest, leg: Leg<'_>) -> String {
    local_body(request, leg)
}

/// What a finished prefill left.
pub fn read_prefill(_answer: &[u8]) -> Result<Prefilled, Error> {
    Err(unsupported(Stage::Prefill))
}

/// The decode leg.
pub fn decode_body(
    _request: &ClientRequest,
    _ticket: &Ticket,
    _leg: Leg<'_>,
) -> Result<String, Error> {
    Err(unsupported(Stage::Decode))
}

fn unsupported(stage: Stage) -> Error {
    let why = "handoffs between SGLang engines are not there yet";
    Error::new(ErrorKind::Incompatible, Source::Sidecar, stage, why).retry(Retry::Safe)
}

/// The local leg: the client's request under our id.
pub fn local_body(request: &ClientRequest, leg: Leg<'_>) -> String {
    let id = serde_json::Value::from(leg.request.as_str()).to_string();
    request.object().edit().set("rid", id).finish()
}

/// What the data of a streamed event means.
pub fn judge_event(data: &[u8]) -> Verdict {
    if data == b"[DONE]" {
        return Verdict::Done;
    }
    Verdict::Token
}

/// Whether a whole 200 answer is an answer at all.
pub fn judge_answer(_body: &[u8]) -> Result<(), String> {
    Ok(())
}

/// Whether an answer, or an event of one, is to this request.
pub fn is_answer_to(_json: &[u8], _request: &RequestId) -> bool {
    true
}
