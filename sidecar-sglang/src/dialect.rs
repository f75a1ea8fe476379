//! SGLang's dialect: how a client's body becomes a leg's body, and what the engine's answers mean.
//!
//! Both legs of a split request are the client's request with the same bootstrap fields. The prefill engine makes one token of
//! it by itself and answers when decode has all the KV; the decode engine goes on from there.

use baton_proto::call::PrefillUsage;
use baton_proto::json::{Edit, RawObject};
use baton_proto::request::ClientRequest;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Error, RequestId};
use baton_sidecar_core::engine::{Leg, Prefilled};
pub use baton_sidecar_core::openai::{judge_answer, judge_event};
use baton_sidecar_core::refusal::{bad_metadata, strange_prefill as strange};
use serde::{Deserialize, Serialize};

/// Largest room that an engine takes (0.5.23).
const LAST_ROOM: u64 = i64::MAX as u64;

/// Keys by which a client could choose ranks. Ranks follow from rooms.
const RANKS: [&str; 3] = [
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
];

/// Where a decode engine finds its prefill engine, and the name under which the two meet: all that a ticket has in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Host of the prefill engine's bootstrap server: its own, and no name that another one may stand behind tomorrow, for
    /// decode engines remember what they learnt there (sglang PR 34289).
    #[serde(rename = "bootstrap_host")]
    pub host: String,
    /// Its port.
    #[serde(rename = "bootstrap_port")]
    pub port: u16,
    /// The room, 1 to 2^63-1.
    #[serde(rename = "bootstrap_room")]
    pub room: u64,
}

impl Bootstrap {
    /// As a ticket carries it.
    pub fn metadata(&self) -> TransferMetadata {
        TransferMetadata::new(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads a ticket's metadata. Room 0 has a decode engine wait for ever (0.5.23), and without a port it looks at its own.
    pub fn parse(metadata: &TransferMetadata) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(metadata.as_bytes())
            .map_err(|error| format!("they are not as expected: {error}"))?;
        if read.host.is_empty() || read.port == 0 {
            return Err("they do not say where the prefill engine is".to_owned());
        }
        if !(1..=LAST_ROOM).contains(&read.room) {
            return Err(format!("no engine takes the room {}", read.room));
        }
        Ok(read)
    }
}

/// The prefill leg: the client's request in a room. Its answer is read and dropped, so it is not streamed: then a refusal has
/// a status of its own.
pub fn prefill_body(
    request: &ClientRequest,
    offered: Option<&TransferMetadata>,
    leg: Leg<'_>,
) -> String {
    let object = request.object();
    let edit = object
        .edit()
        .set("stream", "false")
        .remove("stream_options");
    // Without a room the engine refuses it.
    let bootstrap = offered.and_then(|metadata| Bootstrap::parse(metadata).ok());
    let edit = bootstrap.iter().fold(edit, in_room);
    for_engine(edit, &object, leg).finish()
}

/// The decode leg: the client's request in the same room.
pub fn decode_body(
    request: &ClientRequest,
    ticket: &Ticket,
    leg: Leg<'_>,
) -> Result<String, Error> {
    let bootstrap = Bootstrap::parse(&ticket.metadata).map_err(|why| bad_metadata(&why))?;
    let object = request.object();
    Ok(for_engine(in_room(object.edit(), &bootstrap), &object, leg).finish())
}

/// The local leg: the client's request.
pub fn local_body(request: &ClientRequest, leg: Leg<'_>) -> String {
    let object = request.object();
    for_engine(object.edit(), &object, leg).finish()
}

fn in_room<'a>(edit: Edit<'a>, bootstrap: &Bootstrap) -> Edit<'a> {
    edit.set("bootstrap_host", json(&bootstrap.host))
        .set("bootstrap_port", bootstrap.port.to_string())
        .set("bootstrap_room", bootstrap.room.to_string())
}

/// Ids are ours, never the client's, and so is the choice of ranks. SGLang shares no page between different cache salts.
fn for_engine<'a>(edit: Edit<'a>, object: &RawObject<'_>, leg: Leg<'_>) -> Edit<'a> {
    let edit = edit.set("rid", json(leg.request.as_str()));
    let edit = RANKS.into_iter().fold(edit, Edit::remove);
    match leg.salt(object.get_set("cache_salt")) {
        Some(salt) => edit.set("cache_salt", salt),
        None => edit,
    }
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[derive(Deserialize)]
struct PrefillAnswer {
    choices: Vec<PrefillChoice>,
    usage: Usage,
}

#[derive(Deserialize)]
struct PrefillChoice {
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u32,
    /// With `--enable-cache-report` only.
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// What a finished prefill left: nothing, for it answers when decode has everything. Whatever its first token was, that counts
/// as its length (0.5.23).
pub fn read_prefill(answer: &[u8]) -> Result<Prefilled, Error> {
    let answer: PrefillAnswer = serde_json::from_slice(answer)
        .map_err(|error| strange(&format!("the prefill's answer is strange: {error}")))?;
    let [choice] = &answer.choices[..] else {
        return Err(strange(&format!(
            "the prefill answered {} choices",
            answer.choices.len()
        )));
    };
    match choice.finish_reason.as_deref() {
        Some("length") => Ok(Prefilled::HandedOver {
            usage: PrefillUsage {
                prompt_tokens: answer.usage.prompt_tokens,
                cached_tokens: answer
                    .usage
                    .prompt_tokens_details
                    .and_then(|details| details.cached_tokens),
            },
        }),
        Some(other) => Err(strange(&format!("the prefill ended by {other}"))),
        None => Err(strange("the prefill has no finish_reason")),
    }
}

/// SGLang answers under the request's own id, and each prompt of a batch under that and its number: `_0`, `_1` (0.5.23).
pub fn is_answer_to(json: &[u8], request: &RequestId) -> bool {
    let Ok(object) = RawObject::parse(json) else {
        return true;
    };
    let Some(id): Option<String> = object.get_as("id") else {
        return true;
    };
    match id.strip_prefix(request.as_str()) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('_').is_some_and(is_number),
        None => false,
    }
}

/// Several choices of a prompt are answered under ids that the engine makes anew (0.5.23).
pub fn names_answers(request: &ClientRequest) -> bool {
    let choices: Option<u64> = request.object().get_as("n");
    choices.is_none_or(|choices| choices == 1)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
