//! What of an engine this sidecar can work with.

use baton_proto::Error;
use baton_proto::worker::Role;
pub(crate) use baton_sidecar_core::refusal::unusable;

use crate::attach::EngineConfig;
use crate::server_info::{Era, ServerInfo};

/// Why an engine, as it says it is, cannot be used with what was said of it.
pub(crate) fn check(config: &EngineConfig, server: &ServerInfo) -> Result<(), Error> {
    let hands_over = config.role != Role::Local;
    let blocks = [config.tokens_per_block, server.tokens_per_block];
    if let [Some(given), Some(told)] = blocks
        && given != told
    {
        return Err(unusable(&format!(
            "--tokens-per-block is {given}, but the engine has blocks of {told} tokens: leave the flag out"
        )));
    }
    if hands_over && blocks == [None, None] {
        return Err(unusable(
            "the engine does not say how large its KV blocks are, as 1.2 does not: give --tokens-per-block",
        ));
    }
    if config.generation_first && config.role.prefills() && server.endpoint().is_none() {
        return Err(unusable(
            "the engine does not say where decode engines find it (ctx_info_endpoint): --generation-first needs \
             cache_transceiver_config.transceiver_runtime: PYTHON",
        ));
    }
    Ok(())
}

/// What works, but not as well as it could: once in each life of an engine.
pub(crate) fn warnings(config: &EngineConfig, version: &str, server: &ServerInfo) -> Vec<String> {
    let mut warnings = vec![format!(
        "this sidecar was written from TensorRT-LLM's sources and was never tried with a running one, {version} or another"
    )];
    if server.era() == Era::V1_2 {
        warnings.push(
            "the engine is of the era of 1.2: what it holds is told up to two seconds late"
                .to_owned(),
        );
    }
    let algorithm = server.kv_cache_hash_algo.as_deref();
    if let Some(other) = algorithm.filter(|name| *name != "v1_block_key" && *name != "auto") {
        warnings.push(format!(
            "the engine names KV blocks by {other}, which is not checked: blocks of LoRA adapters look like plain ones"
        ));
    }
    if config.role != Role::Local && config.lease.is_none() {
        warnings.push(
            "the engine may hold KV that nobody fetches for ever: set its cache_transceiver_config.kv_transfer_timeout_ms"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::beside;

    fn server(json: &str) -> ServerInfo {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_cannot_work_is_refused_in_one_sentence() {
        let prefill = ["--role", "prefill", "--kv-transfer-timeout-ms", "60000"];
        for (flags, told, part) in [
            (&[][..], "{}", "--tokens-per-block"),
            (
                &["--tokens-per-block", "16"],
                r#"{"tokens_per_block":32}"#,
                "leave the flag out",
            ),
            (
                &["--generation-first"],
                r#"{"tokens_per_block":32}"#,
                "ctx_info_endpoint",
            ),
        ] {
            let config = beside(&[&prefill[..], flags].concat());
            let why = check(&config, &server(told)).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
        let config = beside(&prefill);
        assert_eq!(
            check(&config, &server(r#"{"tokens_per_block":32}"#)),
            Ok(())
        );
        assert_eq!(
            check(&beside(&[]), &server("{}")),
            Ok(()),
            "alone it needs nothing"
        );
    }

    #[test]
    fn what_could_be_better_is_said() {
        let unbounded = ["--role", "decode", "--allow-unbounded-transfer"];
        for (flags, told, part) in [
            (&[][..], r#"{"tokens_per_block":32}"#, "never tried"),
            (&[], "{}", "two seconds late"),
            (&[], r#"{"kv_cache_hash_algo":"v2_sha256"}"#, "v2_sha256"),
            (&unbounded, r#"{"tokens_per_block":32}"#, "for ever"),
        ] {
            let said = warnings(&beside(flags), "1.2.1", &server(told));
            assert!(said.last().unwrap().contains(part), "{said:?}");
        }
    }
}
