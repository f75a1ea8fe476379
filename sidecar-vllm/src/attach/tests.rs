use clap::Parser;

use super::*;

fn args(line: &[&str]) -> VllmArgs {
    VllmArgs::try_parse_from(["baton-sidecar-vllm"].iter().chain(line)).unwrap()
}

fn refusal(line: &[&str]) -> String {
    plan(&args(line)).unwrap_err().to_string()
}

const PRODUCER: &str = r#"{"kv_connector":"NixlConnector","kv_role":"kv_producer","engine_id":"old","kv_connector_extra_config":{"kv_lease_duration":10}}"#;

#[test]
fn beside_an_engine_its_json_is_given_again() {
    let (config, launch) = plan(&args(&[
        "--engine",
        "http://127.0.0.1:8201/",
        "--kv-transfer-config",
        PRODUCER,
        "--side-channel",
        "h:5601",
    ]))
    .unwrap();
    let transfer = config.transfer.unwrap();
    assert_eq!(
        (config.base_url.as_str(), launch),
        ("http://127.0.0.1:8201", None)
    );
    assert_eq!(
        (transfer.role, transfer.lease.as_secs()),
        (Role::Prefill, 10)
    );
    assert_eq!(
        (
            transfer.engine_id.as_deref(),
            transfer.side_channel.as_str()
        ),
        (Some("old"), "h:5601")
    );
    let (local, _) = plan(&args(&["--engine", "http://127.0.0.1:8100"])).unwrap();
    assert_eq!(local.transfer, None);
}

#[test]
fn a_launched_engine_gets_a_fresh_id_and_keeps_the_rest_of_its_command() {
    let line = [
        "--side-channel",
        "127.0.0.1:5601",
        "--",
        "python",
        "-m",
        "vllm",
        "--port=8201",
        "--host",
        "0.0.0.0",
    ];
    let joined = format!("--kv_transfer_config={PRODUCER}");
    let mut with_config = line.to_vec();
    with_config.extend([joined.as_str(), "--seed", "1"]);
    let (config, launch) = plan(&args(&with_config)).unwrap();
    let (command, transfer) = (launch.clone().unwrap().command, config.transfer.unwrap());
    assert_eq!(config.base_url, "http://127.0.0.1:8201");
    assert_eq!(
        command[..6],
        ["python", "-m", "vllm", "--port=8201", "--host", "0.0.0.0"]
    );
    assert_eq!(command[6..9], ["--seed", "1", "--kv-transfer-config"]);
    let id = transfer.engine_id.unwrap();
    assert!(
        id.len() == 32 && command[9].contains(&id) && !command[9].contains("\"old\""),
        "{command:?}"
    );
    let environment = launch.unwrap().environment;
    assert_eq!(environment[PORT_VARIABLE], "5601");
    assert_eq!(environment[PLAIN_IDS], "1");
}

#[test]
fn what_cannot_work_is_refused_in_one_sentence() {
    for line in [
        &["--engine", "http://h:1", "--kv-events-config", "{"][..],
        &["--kv-events-config", "{}", "--", "vllm"],
    ] {
        assert!(refusal(line).contains("--kv-events-config"), "{line:?}");
    }
    let with =
        |config: &'static str| refusal(&["--engine", "http://h:1", "--kv-transfer-config", config]);
    assert!(with("{").contains("not what vLLM takes"));
    assert!(
        with(r#"{"kv_connector":"MooncakeConnector"}"#)
            .contains("MooncakeConnector is not supported")
    );
    assert!(with(r#"{"kv_connector":"NixlPushConnector"}"#).contains("use NixlConnector"));
    assert!(with(r#"{"kv_role":"kv_both"}"#).contains("no kv_connector"));
    assert!(with(r#"{"kv_connector":"NixlConnector","kv_role":"x"}"#).contains("kv_role"));
    assert!(with(r#"{"kv_connector":"NixlConnector","kv_connector_extra_config":{"kv_lease_duration":-1}}"#).contains("lease"));
    assert!(with(r#"{"kv_connector":"NixlConnector","kv_connector_extra_config":{"bidirectional_kv_xfer":true}}"#).contains("bidirectional"));
    assert!(refusal(&["--engine", "https://h:1"]).contains("must look like"));
    assert!(refusal(&[]).contains("which engine"));
    assert!(refusal(&["--engine", "http://h:1", "--", "vllm"]).contains("not both"));
    assert!(refusal(&["--", "vllm", "--data-parallel-size", "2"]).contains("not supported yet"));
    assert!(
        refusal(&["--", "vllm", "--kv-transfer-config.kv_role", "kv_both"])
            .contains("one JSON text")
    );
}

#[test]
fn a_launched_engine_tells_its_kv_events_where_only_its_sidecar_hears_them() {
    let line = ["--", "vllm", "serve", "tiny"];
    let (config, launch) = plan(&args(&line)).unwrap();
    let command = launch.unwrap().command;
    assert_eq!(command[3], "--kv-events-config");
    let given: EventsConfig = serde_json::from_str(&command[4]).unwrap();
    let folder = config.events_folder.unwrap();
    assert_eq!(
        given.endpoint,
        format!("ipc://{}", folder.join("events").display())
    );
    assert!(given.replay_endpoint.as_ref().unwrap().starts_with("ipc:"));
    assert!(given.tells());
    assert_eq!(config.events, Some(given));
}

#[test]
fn what_an_engines_command_says_of_kv_events_stays() {
    let own = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://*:7000"}"#;
    let line = ["--", "vllm", "--kv_events_config", own];
    let (config, launch) = plan(&args(&line)).unwrap();
    assert_eq!(launch.unwrap().command, line[1..]);
    assert_eq!(config.events.unwrap().endpoint, "tcp://*:7000");
    assert_eq!(config.events_folder, None);
    for flag in ["--kv-events-config.topic=x", "--no_enable_prefix_caching"] {
        let line = ["--", "vllm", flag];
        let (config, launch) = plan(&args(&line)).unwrap();
        assert_eq!(launch.unwrap().command, line[1..]);
        assert_eq!(config.events, None);
    }
    let (config, _) = plan(&args(&[
        "--engine",
        "http://h:1",
        "--kv-events-config",
        own,
    ]))
    .unwrap();
    assert!(config.events.unwrap().tells());
}

#[test]
fn how_many_sequences_the_engine_runs_is_in_its_command_or_given_again() {
    let of = |line: &[&str]| plan(&args(line)).unwrap().0.max_sequences;
    let beside = ["--engine", "http://127.0.0.1:8201"];
    assert_eq!(of(&beside), None);
    assert_eq!(
        of(&[&beside[..], &["--max-num-seqs", "64"]].concat()),
        Some(64)
    );
    let launched = ["--", "vllm", "serve", "m", "--max_num_seqs=32"];
    assert_eq!(of(&launched), Some(32));
    assert_eq!(of(&launched[..4]), None);
}
