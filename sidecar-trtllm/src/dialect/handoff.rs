//! What a context engine's answer has in it for a generation engine, from the one to the other.

use std::time::Duration;

use baton_proto::Error;
use baton_proto::call::PrefillUsage;
use baton_proto::json::RawObject;
use baton_proto::ticket::TransferMetadata;
use baton_sidecar_core::engine::{HeldKv, Prefilled};
use baton_sidecar_core::refusal::strange_prefill as strange;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longest prompt whose tokens travel with a ticket, in bytes of JSON: all of it must fit a frame. The generation engine makes
/// them itself otherwise.
const MOST_IDS: usize = 2 << 20;

/// How a context engine's answer ends that is to be gone on with.
const GOES_ON: [&str; 2] = ["length", "not_finished"];

/// All that a ticket has in it: parts of a context engine's answer, byte for byte.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Handoff {
    disaggregated_params: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Box<RawValue>>,
}

/// What of `disaggregated_params` is looked at. Its opaque state is nobody's business.
#[derive(Debug, Deserialize)]
struct Params {
    first_gen_tokens: Option<Vec<i64>>,
    ctx_request_id: Option<u64>,
    disagg_request_id: Option<u64>,
    ctx_info_endpoint: Option<String>,
    schedule_style: Option<u8>,
}

impl Params {
    fn with_first_token(self) -> Result<Self, String> {
        match self.first_gen_tokens.as_deref() {
            None | Some([]) => Err("its disaggregated_params have no first_gen_tokens".to_owned()),
            Some(_) => Ok(self),
        }
    }
}

impl Handoff {
    /// Reads a ticket's metadata, and refuses what a generation engine does not survive: without first tokens it dies in its
    /// executor (review of pull request 18819).
    pub fn parse(metadata: &TransferMetadata) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(metadata.as_bytes())
            .map_err(|error| format!("they are not as expected: {error}"))?;
        read.params()?;
        Ok(read)
    }

    fn params(&self) -> Result<Params, String> {
        let raw = self.disaggregated_params.get();
        let params: Params = serde_json::from_str(raw)
            .map_err(|error| format!("its disaggregated_params are strange: {error}"))?;
        if params.ctx_request_id.is_none() || params.disagg_request_id.is_none() {
            return Err("its disaggregated_params have no ids".to_owned());
        }
        match params.schedule_style {
            Some(super::GENERATION_FIRST) if params.ctx_info_endpoint.is_some() => Ok(params),
            Some(super::GENERATION_FIRST) => {
                Err("they do not say where the context engine is".to_owned())
            }
            _ => params.with_first_token(),
        }
    }

    /// Its id.
    pub(super) fn id(&self) -> Option<u64> {
        self.params().ok()?.disagg_request_id
    }

    /// Tokens of the prompt, as JSON.
    pub(super) fn prompt_token_ids(&self) -> Option<&str> {
        self.prompt_token_ids.as_deref().map(RawValue::get)
    }

    /// What the generation engine is given. Only what is there already is changed: it must be known to an engine of this
    /// version.
    pub(super) fn for_generation(&self) -> Result<String, String> {
        let raw = self.disaggregated_params.get();
        let params = RawObject::parse(raw.as_bytes()).map_err(|bad| bad.to_string())?;
        let mut edit = params.edit().set("request_type", "\"generation_only\"");
        if params.get("schedule_style") == Some("null") {
            edit = edit.set("schedule_style", super::CONTEXT_FIRST.to_string());
        }
        if let (Some("null"), Some(usage)) = (params.get("ctx_usage"), &self.usage) {
            edit = edit.set("ctx_usage", usage.get());
        }
        Ok(edit.finish())
    }

    fn metadata(&self) -> TransferMetadata {
        TransferMetadata::new(serde_json::to_vec(self).unwrap_or_default())
    }
}

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
    usage: Box<RawValue>,
    prompt_token_ids: Option<Box<RawValue>>,
}

impl Answer {
    fn read(answer: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(answer)
            .map_err(|error| strange(&format!("the prefill's answer is strange: {error}")))
    }
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<String>,
    disaggregated_params: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u32,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// What a finished prefill left. An answer that ended by itself holds nothing: only what is to be gone on with is sent
/// (`_send_kv_async`).
pub fn read_prefill(answer: &[u8], lease: Duration) -> Result<Prefilled, Error> {
    let answer = Answer::read(answer)?;
    let usage = usage(&answer.usage)?;
    let Ok([choice]) = <[Choice; 1]>::try_from(answer.choices) else {
        return Err(strange("the prefill did not answer one choice"));
    };
    match choice.finish_reason.as_deref() {
        Some(reason) if GOES_ON.contains(&reason) => {}
        Some(_) => return Ok(Prefilled::Ended { usage, kv: None }),
        None => return Err(strange("the prefill has no finish_reason")),
    }
    let params = choice.disaggregated_params.ok_or_else(|| {
        strange("the prefill returned no disaggregated_params: has the engine a cache_transceiver_config?")
    })?;
    let ids = answer.prompt_token_ids;
    let handoff = Handoff {
        disaggregated_params: params,
        prompt_token_ids: ids
            .filter(|ids| ids.get().starts_with('[') && ids.get().len() <= MOST_IDS),
        usage: Some(answer.usage),
    };
    let params = handoff.params().and_then(Params::with_first_token);
    params.map_err(|why| strange(&why))?;
    Ok(Prefilled::Handoff {
        usage,
        kv: HeldKv {
            metadata: handoff.metadata(),
            bytes: None,
            lease,
        },
    })
}

/// The same of a prefill that decode did not wait for: whatever its first token was, decode has it, too.
pub(crate) fn read_offered(answer: &[u8]) -> Result<Prefilled, Error> {
    let answer = Answer::read(answer)?;
    let usage = usage(&answer.usage)?;
    Ok(Prefilled::HandedOver { usage })
}

fn usage(raw: &RawValue) -> Result<PrefillUsage, Error> {
    let usage: Usage = serde_json::from_str(raw.get())
        .map_err(|error| strange(&format!("the prefill's usage is strange: {error}")))?;
    Ok(PrefillUsage {
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage
            .prompt_tokens_details
            .and_then(|details| details.cached_tokens),
    })
}

/// The id of a handoff in an answer, if it has one.
pub(super) fn id_in_answer(json: &[u8]) -> Option<u64> {
    let answer: Answer = serde_json::from_slice(json).ok()?;
    let params = answer.choices.first()?.disaggregated_params.as_ref()?;
    let params: Params = serde_json::from_str(params.get()).ok()?;
    params.disagg_request_id
}
