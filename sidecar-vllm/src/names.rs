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
    /// The engine said how it calls something.
    pub fn learn(&self, held: &TransferMetadata) {
        if let Ok(held) = HeldAs::parse(held.as_bytes()) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Naming {
                suffixed: is_suffixed(&held.remote_request_id),
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
        let name = match route {
            Route::Completions => format!("cmpl-{request}-0"),
            Route::ChatCompletions => format!("chatcmpl-{request}"),
            Route::PassThrough(_) => return None,
        };
        let tp_size = known.map_or(1, |naming| naming.tp_size);
        let held = json!({"remote_request_id": name, "tp_size": tp_size});
        Some(Foreseen {
            metadata: TransferMetadata::new(held.to_string()),
            lease,
            certain: known.is_some(),
        })
    }
}

fn is_suffixed(id: &str) -> bool {
    let suffix = id.rsplit_once('-').map_or("", |(_, suffix)| suffix);
    suffix.len() == SUFFIX && suffix.bytes().all(|digit| digit.is_ascii_hexdigit())
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
    fn all_ranks_of_the_engine_are_told() {
        let names = Names::default();
        names.learn(&said("cmpl-a-0"));
        assert_eq!(held(&names, Route::Completions).unwrap().tp_size, 2);
    }
}
