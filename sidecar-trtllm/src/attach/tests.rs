use clap::Parser;

use super::*;

fn args(line: &[&str]) -> TrtllmArgs {
    TrtllmArgs::try_parse_from(["baton-sidecar-trtllm"].iter().chain(line)).unwrap()
}

fn refusal(line: &[&str]) -> String {
    plan(&args(line)).unwrap_err().to_string()
}

/// What is known of an engine beside the sidecar from these flags.
pub(crate) fn beside(flags: &[&str]) -> EngineConfig {
    let line = [&["--engine", "http://127.0.0.1:8000/"][..], flags].concat();
    let (config, launch) = plan(&args(&line)).unwrap();
    assert_eq!(launch, None);
    config
}

/// A launch with these options, and the command it came to.
fn launched(
    flags: &[&str],
    options: &str,
    command: &[&str],
) -> Result<(EngineConfig, Vec<String>), Exit> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("options.yaml");
    std::fs::write(&file, options).unwrap();
    let file = file.to_string_lossy();
    let engine = ["--", "trtllm-serve", "m", "--extra_llm_api_options", &file];
    let line = [flags, &engine[..], command].concat();
    let (config, launch) = plan(&args(&line))?;
    Ok((config, launch.unwrap().command))
}

#[test]
fn one_engine_is_named() {
    assert!(refusal(&[]).contains("say which engine"));
    assert!(refusal(&["--engine", "http://a:1", "--", "trtllm-serve"]).contains("not both"));
    assert!(refusal(&["--engine", "nonsense"]).contains("must look like"));
}

#[test]
fn kv_that_may_be_held_for_ever_is_refused_unless_that_is_wanted() {
    let engine = ["--engine", "http://127.0.0.1:8000"];
    for role in ["prefill", "decode", "any"] {
        let why = refusal(&[&engine[..], &["--role", role]].concat());
        assert!(why.contains("--kv-transfer-timeout-ms"), "{why}");
        let bounded = beside(&["--role", role, "--kv-transfer-timeout-ms", "5000"]);
        assert_eq!(bounded.lease, Some(Duration::from_secs(5)));
        let unbounded = beside(&["--role", role, "--allow-unbounded-transfer"]);
        assert_eq!(unbounded.lease, None);
    }
    assert_eq!(beside(&[]).role, Role::Local);
}

#[test]
fn a_launched_engine_is_known_by_its_options_and_its_command_goes_first() {
    let options = "
kv_cache_config: {tokens_per_block: 64, event_buffer_max_size: 100}
cache_transceiver_config: {backend: NIXL, kv_transfer_timeout_ms: 7000}
enable_iter_perf_stats: true
enable_attention_dp: true
tensor_parallel_size: 2
max_batch_size: 8
internal_request_auth_key: secret
";
    let command = ["--tp_size", "4", "--port=8123", "--max_seq_len", "4096"];
    let (config, command) = launched(&["--role", "prefill"], options, &command).unwrap();
    assert_eq!(config.base_url, "http://127.0.0.1:8123");
    assert_eq!(
        (config.tokens_per_block, config.event_buffer, config.ranks),
        (Some(64), Some(100), 4)
    );
    assert_eq!(
        (config.max_sequences, config.context_length),
        (Some(8), Some(4096))
    );
    assert_eq!(config.lease, Some(Duration::from_secs(7)));
    assert_eq!(config.auth_key, AuthKey::new("secret"));
    assert_eq!(config.options, None, "nothing was missing");
    assert!(
        command[3].ends_with("options.yaml") && !command[3].contains("baton-"),
        "{command:?}"
    );
}

#[test]
fn a_launched_engine_is_made_to_tell() {
    let (config, command) = launched(&[], "{}", &[]).unwrap();
    let made = config.options.unwrap();
    assert_eq!(config.event_buffer, Some(65_536));
    assert_eq!(command.last().unwrap(), &made.file().to_string_lossy());
    assert!(
        !format!("{made:?}").contains("event_buffer"),
        "options are not shown"
    );
    std::fs::create_dir(&made.folder).unwrap();
    made.write().unwrap();
    let written = OptionsFile::open(&made.file()).unwrap();
    assert_eq!(written.read.enable_iter_perf_stats, Some(true));
    std::fs::remove_dir_all(&made.folder).unwrap();
}

#[test]
fn an_engine_that_cannot_hand_over_has_no_such_role() {
    let why = launched(
        &["--role", "prefill", "--kv-transfer-timeout-ms", "1"],
        "{}",
        &[],
    );
    assert!(
        why.unwrap_err()
            .to_string()
            .contains("cache_transceiver_config")
    );
    let why = launched(&[], "{}", &["--tp_size", "two"])
        .unwrap_err()
        .to_string();
    assert!(why.contains("--tp-size two is no number"), "{why}");
    let why = refusal(&["--", "trtllm-serve", "m", "--config", "/no/such/file"]);
    assert!(why.contains("/no/such/file"), "{why}");
}

#[test]
fn a_key_may_be_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "secret\n").unwrap();
    let config = beside(&["--internal-request-auth-key-file", &file.to_string_lossy()]);
    assert_eq!(config.auth_key, AuthKey::new("secret"));
    assert!(!format!("{config:?}").contains("secret"));
}
