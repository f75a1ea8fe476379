//! `disaggregated_params`: what a request says of its other leg.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::wishes::tokens;
use super::config::Era;
use super::fields::{self, invalid};
use super::request::Refused;

/// What is done of a request here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestType {
    ContextOnly,
    GenerationOnly,
    ContextAndGeneration,
}

/// What a request says of its other leg, understood.
#[derive(Debug, Clone)]
pub(super) struct Params {
    pub(super) request_type: RequestType,
    /// As they came; what is malformed in them is found out too late.
    pub(super) first_gen_tokens: Option<Vec<u32>>,
    ctx_request_id: Option<u64>,
    pub(super) disagg_request_id: Option<u64>,
    opaque_state: Option<String>,
    ctx_info_endpoint: Option<String>,
    /// Generation is asked first, and context waits for it.
    pub(super) generation_first: bool,
    pub(super) ctx_usage: Value,
    pub(super) ids_in_base64: bool,
    /// Byte for byte what came.
    raw: Value,
}

/// What context tells generation and nobody else can read.
#[derive(Debug, Serialize, Deserialize)]
struct OpaqueState {
    /// Where its rank is asked for KV.
    at: SocketAddr,
}

impl Params {
    /// Reads what is not null.
    pub(super) fn read(params: &Value) -> Result<Self, Refused> {
        let style = &params["schedule_style"];
        if !style.is_null() && !matches!(style.as_u64(), Some(0 | 1)) {
            let path = ["body", "disaggregated_params", "schedule_style"];
            return Err(invalid("enum", &path, "Input should be 0 or 1", style));
        }
        let text = |key: &str| params[key].as_str().map(str::to_owned);
        Ok(Self {
            request_type: request_type(&params["request_type"])?,
            first_gen_tokens: tokens(&params["first_gen_tokens"]),
            ctx_request_id: id(params, "ctx_request_id")?,
            disagg_request_id: id(params, "disagg_request_id")?,
            opaque_state: text("encoded_opaque_state"),
            ctx_info_endpoint: text("ctx_info_endpoint"),
            generation_first: *style == 1,
            ctx_usage: params["ctx_usage"].clone(),
            ids_in_base64: params["return_prompt_token_ids_b64"] == true,
            raw: params.clone(),
        })
    }

    /// Under which id both legs know the request.
    pub(super) fn request_id(&self) -> Option<u64> {
        self.disagg_request_id.or(self.ctx_request_id)
    }

    /// Where generation asks for its KV; `None` if that makes no sense.
    pub(super) fn context(&self) -> Option<SocketAddr> {
        if let Some(state) = &self.opaque_state {
            let state = BASE64_STANDARD.decode(state).ok()?;
            let state: OpaqueState = serde_json::from_slice(&state).ok()?;
            return Some(state.at);
        }
        let endpoint = self.ctx_info_endpoint.as_ref()?;
        endpoint.strip_prefix("tcp://")?.parse().ok()
    }

    /// Tokens that context has said cannot be missing where generation comes second. The real engine does not look before
    /// its executor loop does, and ends by that.
    pub(super) fn is_deadly(&self) -> bool {
        let said = self
            .first_gen_tokens
            .as_ref()
            .is_some_and(|said| !said.is_empty());
        self.request_type == RequestType::GenerationOnly && !self.generation_first && !said
    }

    /// The answer's own, of this leg.
    pub(super) fn told(&self, era: Era) -> Value {
        let mut told = template(era, &self.raw);
        told["schedule_style"] = Value::Null;
        if era == Era::Main {
            told["ctx_usage"] = Value::Null;
        }
        told
    }
}

/// What context says of where it is.
pub(super) fn opaque_state(at: SocketAddr) -> String {
    let state = serde_json::to_vec(&OpaqueState { at }).expect("it is writable");
    BASE64_STANDARD.encode(state)
}

/// What context tells of a request whose KV it has, but for the tokens that it says.
pub(super) struct Told<'a> {
    pub(super) era: Era,
    pub(super) params: &'a Params,
    pub(super) id: u64,
    pub(super) at: SocketAddr,
    pub(super) rank: usize,
}

impl Told<'_> {
    pub(super) fn json(&self) -> Value {
        let mut told = self.params.told(self.era);
        told["ctx_request_id"] = self.id.into();
        told["encoded_opaque_state"] = opaque_state(self.at).into();
        told["disagg_request_id"] = json!(self.params.disagg_request_id);
        told["ctx_dp_rank"] = self.rank.into();
        told
    }
}

/// All fields of an era, those that are not given as null.
fn template(era: Era, given: &Value) -> Value {
    let fields = fields::of_params(era).map(|name| (name.to_owned(), given[name].clone()));
    let mut told: Value = fields.collect::<serde_json::Map<_, _>>().into();
    if era == Era::Main {
        told["return_prompt_token_ids_b64"] = (given["return_prompt_token_ids_b64"] == true).into();
    }
    told
}

fn request_type(given: &Value) -> Result<RequestType, Refused> {
    let Some(given) = given.as_str() else {
        let path = ["body", "disaggregated_params", "request_type"];
        return Err(invalid(
            "string_type",
            &path,
            "Input should be a valid string",
            given,
        ));
    };
    match given.to_lowercase().as_str() {
        "context_only" => Ok(RequestType::ContextOnly),
        "generation_only" => Ok(RequestType::GenerationOnly),
        "context_and_generation" => Ok(RequestType::ContextAndGeneration),
        _ => Err(Refused::bad(format!(
            "Unknown request type: {given}. Must be context_only, generation_only or context_and_generation"
        ))),
    }
}

fn id(params: &Value, name: &str) -> Result<Option<u64>, Refused> {
    match &params[name] {
        Value::Null => Ok(None),
        given => match given.as_u64() {
            Some(id) => Ok(Some(id)),
            None => {
                let path = ["body", "disaggregated_params", name];
                let message = "Input should be a valid integer";
                Err(invalid("int_type", &path, message, given))
            }
        },
    }
}
