//! What the command line and the file of options become.

use super::*;
use crate::emulated::trtllm::Transceiver;

fn config(flags: &[&str]) -> Result<Config> {
    let flags = ["baton-emulated-trtllm"].iter().chain(flags);
    Args::try_parse_from(flags)?.config()
}

fn with_options(options: &str, flags: &[&str]) -> Result<Config> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("options.yaml");
    std::fs::write(&file, options).unwrap();
    let mut all = vec!["--config", file.to_str().unwrap()];
    all.extend(flags);
    config(&all)
}

#[test]
fn without_options_nothing_is_told_and_nothing_is_handed_over() {
    let plain = config(&["serve", "models/tiny"]).unwrap();
    assert_eq!(plain.served_model_name, "tiny");
    assert_eq!((plain.events, plain.transceiver), (None, None));
    assert_eq!(plain.patience.transfer, None, "1.2 has no timeout");
    assert!(!plain.iteration_stats);
}

#[test]
fn options_say_what_there_is() {
    let options = r#"{"kv_cache_config": {"event_buffer_max_size": 64, "tokens_per_block": 16, "max_tokens": 1600,
        "max_attention_window": [512, 4096]}, "enable_iter_perf_stats": true, "enable_attention_dp": true,
        "tensor_parallel_size": 2, "cache_transceiver_config": {"backend": "NIXL", "transceiver_runtime": "PYTHON",
        "kv_transfer_timeout_ms": 250}, "internal_request_auth_key": "k", "disable_overlap_scheduler": true}"#;
    let told = with_options(options, &["--emulate-era", "main", "--max_seq_len", "4096"]).unwrap();
    let events = told.events.clone().unwrap();
    assert_eq!((events.buffer, events.windows), (64, vec![512, 4096]));
    assert_eq!(
        (told.tokens_per_block, told.blocks, told.ranks()),
        (16, 100, 2)
    );
    assert_eq!(told.transceiver, Some(Transceiver::Python));
    assert_eq!(
        told.patience.transfer,
        Some(std::time::Duration::from_millis(250))
    );
    assert_eq!(told.auth, Auth::Key("k".to_owned()));
}

#[test]
fn options_are_yaml() {
    let options = "kv_cache_config:\n  event_buffer_max_size: 8 # few\n  tokens_per_block:\n";
    let told = with_options(options, &[]).unwrap();
    assert_eq!(
        (told.events.unwrap().buffer, told.tokens_per_block),
        (8, 32)
    );
}

#[test]
fn what_cannot_work_is_refused_in_a_sentence() {
    let refused = [
        config(&["--host", "0.0.0.0"]),
        config(&["--backend", "tensorrt"]),
        config(&["one", "two"]),
        with_options(
            "{\"cache_transceiver_config\": {\"backend\": \"MPI\"}}",
            &[],
        ),
        with_options("kv_cache_config: [", &[]),
    ];
    for refused in refused {
        let said = refused.unwrap_err().to_string();
        assert!(!said.is_empty() && !said.contains('\n'), "{said}");
    }
}
