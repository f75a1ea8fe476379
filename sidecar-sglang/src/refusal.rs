//! What of an engine this sidecar can work with.

use baton_proto::Error;
use baton_proto::worker::Role;
pub(crate) use baton_sidecar_core::refusal::unusable;

use crate::server_info::ServerInfo;

/// Version whose wire facts this sidecar was verified with.
pub(crate) const VERIFIED: &str = "0.5.23";

/// What moves KV between engines that this sidecar pairs.
const BACKEND: &str = "nixl";

/// Pages so small that a view of them is as large as the tokens themselves.
const SMALL_PAGE: u32 = 4;

/// Which legs the engine may serve, or why it cannot be used at all.
pub(crate) fn role(server: &ServerInfo) -> Result<Role, Error> {
    if server.page_size == 0 {
        return Err(unusable("the engine's page_size is 0"));
    }
    let role = match server.disaggregation_mode.as_deref() {
        None | Some("null") => return Ok(Role::Local),
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        Some(other) => {
            return Err(unusable(&format!(
                "the engine's disaggregation_mode {other:?} is none of null, prefill, decode"
            )));
        }
    };
    match server.disaggregation_transfer_backend.as_deref() {
        Some(BACKEND) => {}
        other => {
            let other = other.unwrap_or("nothing");
            return Err(unusable(&format!(
                "the engine hands KV over by {other}, which is not supported: start it with --disaggregation-transfer-backend {BACKEND}"
            )));
        }
    }
    if server.pp_size.is_some_and(|stages| stages > 1) {
        return Err(unusable(
            "an engine of several pipeline stages that hands KV over is not supported yet",
        ));
    }
    if role == Role::Prefill && server.disaggregation_bootstrap_port.is_none() {
        return Err(unusable(
            "the prefill engine does not say at which port decode engines find it (disaggregation_bootstrap_port)",
        ));
    }
    let spread = server.load_balance_method.as_deref();
    let has_ranks = server.dp_size.is_some_and(|ranks| ranks > 1);
    if role == Role::Prefill && has_ranks && spread != Some("follow_bootstrap_room") {
        return Err(unusable(
            "the prefill engine has several data-parallel ranks and does not choose among them by room: start it without \
             --load-balance-method, or with follow_bootstrap_room",
        ));
    }
    Ok(role)
}

/// What works, but not as well as it could: once in each life of an engine.
pub(crate) fn warnings(server: &ServerInfo) -> Vec<String> {
    let mut warnings = Vec::new();
    if server.version != VERIFIED {
        warnings.push(format!(
            "this sidecar was verified with SGLang {VERIFIED} only, not with {}",
            server.version
        ));
    }
    if server.page_size < SMALL_PAGE {
        warnings.push(format!(
            "the engine's pages have {} tokens, so what it holds is told almost token by token: give it --page-size 16 or more",
            server.page_size
        ));
    }
    if server.keeps_prefixes() && server.kv_events.is_some() && !server.tells_namespaces() {
        warnings.push(
            "KV events of requests with and without an extra_key look alike: give \"format\":\"dynamo\" in the engine's \
             --kv-events-config"
                .to_owned(),
        );
    }
    if server.nnodes.is_some_and(|hosts| hosts > 1) && server.dp_size.is_some_and(|ranks| ranks > 1)
    {
        warnings.push(
            "KV events of data-parallel ranks on other hosts cannot be heard: those ranks stay uncertain".to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(changes: &Value) -> ServerInfo {
        let mut info = json!({"version": VERIFIED, "model_path": "m", "page_size": 16, "dp_size": 1, "pp_size": 1,
            "disaggregation_mode": "prefill", "disaggregation_transfer_backend": "nixl",
            "disaggregation_bootstrap_port": 8998, "load_balance_method": "follow_bootstrap_room",
            "kv_events_config": "{\"format\":\"dynamo\"}", "kv_events": {}});
        for (key, value) in changes.as_object().unwrap() {
            info[key] = value.clone();
        }
        serde_json::from_value(info).unwrap()
    }

    #[test]
    fn roles() {
        for (mode, expected) in [
            (json!(null), Role::Local),
            (json!("null"), Role::Local),
            (json!("prefill"), Role::Prefill),
            (json!("decode"), Role::Decode),
        ] {
            assert_eq!(
                role(&told(&json!({"disaggregation_mode": mode}))),
                Ok(expected)
            );
        }
        let aggregated = json!({"disaggregation_mode": "null", "disaggregation_transfer_backend": "mooncake", "pp_size": 2});
        assert_eq!(role(&told(&aggregated)), Ok(Role::Local));
    }

    #[test]
    fn what_cannot_work_is_refused_in_one_sentence() {
        for (changes, part) in [
            (json!({"page_size": 0}), "page_size is 0"),
            (
                json!({"disaggregation_mode": "encode"}),
                "\"encode\" is none of",
            ),
            (
                json!({"disaggregation_transfer_backend": "mooncake"}),
                "--disaggregation-transfer-backend nixl",
            ),
            (
                json!({"disaggregation_transfer_backend": null}),
                "by nothing",
            ),
            (json!({"pp_size": 2}), "pipeline stages"),
            (
                json!({"disaggregation_bootstrap_port": null}),
                "disaggregation_bootstrap_port",
            ),
            (
                json!({"dp_size": 2, "load_balance_method": "round_robin"}),
                "--load-balance-method",
            ),
        ] {
            let why = role(&told(&changes)).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn what_could_be_better_is_said() {
        assert_eq!(warnings(&told(&json!({}))), Vec::<String>::new());
        for (changes, part) in [
            (json!({"version": "0.5.22"}), "not with 0.5.22"),
            (json!({"page_size": 1}), "--page-size 16"),
            (
                json!({"kv_events_config": "{\"publisher\":\"zmq\"}"}),
                "dynamo",
            ),
            (json!({"nnodes": 2, "dp_size": 4}), "other hosts"),
        ] {
            let said = warnings(&told(&changes));
            assert!(matches!(&said[..], [one] if one.contains(part)), "{said:?}");
        }
    }
}
