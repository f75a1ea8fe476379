//! Whose fault a refusal is. The engine answers 400 to nearly everything that goes wrong, its own failures and lost transfers
//! included (`create_error_response(str(e))`), so the words decide.

use baton_proto::error::openai_message;

/// Words of refusals that are about what this sidecar wrote: a handoff that another version does not understand, or a key that
/// is not the engine's.
const OURS: [&str; 3] = [
    "disaggregated_params",
    "Unknown request type",
    "disaggregated request authentication",
];

/// Words of failures in the engine, of those that it is known to answer 400 to.
const ENGINES: [&str; 8] = [
    "kv cache transfer",
    "timed out",
    "timeout",
    "executor",
    "shutting down",
    "CUDA",
    "out of memory",
    "Internal",
];

/// Whether a refusal with a status of 4xx is about the client's request.
pub(crate) fn is_about_the_request(body: &[u8]) -> bool {
    let said = openai_message(body).unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let says = |words: &str| {
        let (said, words) = (said.to_ascii_lowercase(), words.to_ascii_lowercase());
        said.contains(&words)
    };
    !OURS.into_iter().chain(ENGINES).any(says)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn none_of_the_known_failures_is_blamed_on_the_client() {
        let errors = include_str!("../../integration/recordings/trtllm/errors.json");
        let errors: Value = serde_json::from_str(errors).unwrap();
        let worker = errors["worker"].as_array().unwrap();
        let refusals: Vec<&Value> = worker
            .iter()
            .filter(|error| error["status"] == 400)
            .collect();
        assert_eq!(refusals.len(), 6);
        for refusal in refusals {
            let body = refusal["body"].to_string();
            assert!(!is_about_the_request(body.as_bytes()), "{body}");
        }
    }

    #[test]
    fn what_the_client_wrote_is_its_own() {
        for message in [
            "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]",
            "The sum of prompt length (5000) and max_tokens (10) should not exceed max_seq_len (4096)",
        ] {
            let body = json!({"object": "error", "message": message, "type": "BadRequestError", "code": 400});
            assert!(
                is_about_the_request(body.to_string().as_bytes()),
                "{message}"
            );
        }
    }
}
