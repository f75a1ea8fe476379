//! How an engine calls KV that it holds, before it says so: an answer that breaks off takes the only mention with it.
//!
//! vLLM names it after the answer, a completion's by the prompt's number, too, and puts eight random digits behind that
//! unless `VLLM_DISABLE_REQUEST_ID_RANDOMIZATION` is set (0.32.0), which guards against callers whose ids repeat. Ours do
//! not, so an engine that the sidecar launches is given that variable. What another one does is seen at its first answer.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_proto::RequestId;
use baton_proto::route::Route;
use baton_proto::ticket::TransferMetadata;
use baton_sidecar_core::engine::Foreseen;
use serde_json::json;

use crate::transfer_params::HeldAs;

/// Set for an engine that puts nothing behind the ids that it is given.
pub const PLAIN_IDS: &str = "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION";

/// Digits of a random suffix.
const SUFFIX: usize = 8;

/// How an engine names what it holds, once it has answered.
#[derive(Debug, Default)]
pub struct Names(Mutex<Option<Naming>>);

#[derive(Debug, Clone, Copy)]
struct Naming {
    suffixed: bool,
    tp_size: u32,
}

impl Names {
    /// The engine said how it calls something. A name that is not made of a request's teaches nothing.
    pub fn learn(&self, held: &TransferMetadata) {
        let Ok(held) = HeldAs::parse(held.as_bytes()) else {
            return;
        };
        if let Some(suffixed) = is_suffixed(&held.remote_request_id) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Naming {
                suffixed,
                tp_size: held.tp_size,
            });
        }
    }

    /// What it holds for this request, unless that cannot be known. To be told of KV that it does not hold does an engine no
    /// harm, so before it has answered a plain name is worth a try.
    pub fn foresee(&self, request: &RequestId, route: Route, lease: Duration) -> Option<Foreseen> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_some_and(|naming| naming.suffixed) {
            return None;
        }
        let name = plain(request, route)?;
        let tp_size = known.map_or(1, |naming| naming.tp_size);
        let held = json!({"remote_request_id": name, "tp_size": tp_size});
        Some(Foreseen {
            metadata: TransferMetadata::new(held.to_string()),
            lease,
            certain: known.is_some(),
        })
    }
}

/// What is held for a request is called this, or this and a suffix.
fn plain(request: &RequestId, route: Route) -> Option<String> {
    match route {
        Route::Completions => Some(format!("cmpl-{request}-0")),
        Route::ChatCompletions => Some(format!("chatcmpl-{request}")),
        Route::PassThrough(_) => None,
    }
}

/// Whether something stands behind a plain name, if this is one.
fn is_suffixed(name: &str) -> Option<bool> {
    let request: RequestId = name.split('-').nth(1)?.parse().ok()?;
    let suffix = [Route::Completions, Route::ChatCompletions]
        .into_iter()
        .find_map(|route| name.strip_prefix(&plain(&request, route)?))?;
    match suffix.strip_prefix('-') {
        Some(digits) if digits.len() == SUFFIX && is_hex(digits) => Some(true),
        None if suffix.is_empty() => Some(false),
        _ => None,
    }
}

fn is_hex(digits: &str) -> bool {
    digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(id: &str) -> TransferMetadata {
        TransferMetadata::new(json!({"remote_request_id": id, "tp_size": 2}).to_string())
    }

    const ID: &str = "00112233445566778899aabbccddeeff";

    fn foreseen(names: &Names, route: Route) -> Option<Foreseen> {
        names.foresee(&ID.parse().unwrap(), route, Duration::from_secs(30))
    }

    fn held(names: &Names, route: Route) -> Option<HeldAs> {
        let foreseen = foreseen(names, route)?;
        Some(HeldAs::parse(foreseen.metadata.as_bytes()).unwrap())
    }

    fn name(names: &Names, route: Route) -> Option<String> {
        Some(held(names, route)?.remote_request_id)
    }

    #[test]
    fn plain_names_are_foreseen_and_suffixed_ones_are_not() {
        let names = Names::default();
        let (completion, chat) = (format!("cmpl-{ID}-0"), format!("chatcmpl-{ID}"));
        assert!(!foreseen(&names, Route::Completions).unwrap().certain);
        for plain in [&completion, &chat] {
            names.learn(&said(plain));
            assert!(foreseen(&names, Route::Completions).unwrap().certain);
            assert_eq!(name(&names, Route::Completions).as_ref(), Some(&completion));
            assert_eq!(name(&names, Route::ChatCompletions).as_ref(), Some(&chat));
            assert_eq!(name(&names, Route::PassThrough("/v1/score")), None);
            names.learn(&said(&format!("{plain}-0123abcd")));
            assert_eq!(name(&names, Route::Completions), None);
        }
    }

    #[test]
    fn a_strange_name_teaches_nothing() {
        let names = Names::default();
        names.learn(&said(&format!("cmpl-{ID}-0-0123abcd")));
        let strange = ["", "x", "cmpl--0", "x-0-0", "chatcmpl-"].map(str::to_owned);
        let grown = [
            "cmpl-{}",
            "cmpl-{}-1",
            "cmpl-{}-0-",
            "cmpl-{}-0x",
            "chatcmpl-{}-0123",
        ];
        for name in strange
            .into_iter()
            .chain(grown.map(|name| name.replace("{}", ID)))
        {
            names.learn(&said(&name));
            assert!(foreseen(&names, Route::Completions).is_none(), "{name}");
        }
    }

    #[test]
    fn all_ranks_of_the_engine_are_told() {
        let names = Names::default();
        names.learn(&said(&format!("cmpl-{ID}-0")));
        assert_eq!(held(&names, Route::Completions).unwrap().tp_size, 2);
    }
}
