use clap::Parser;
use serde_json::Value;

use super::*;

fn args(line: &[&str]) -> SglangArgs {
    SglangArgs::try_parse_from(["baton-sidecar-sglang"].iter().chain(line)).unwrap()
}

fn refusal(line: &[&str]) -> String {
    plan(&args(line)).unwrap_err().to_string()
}

const COMMAND: [&str; 6] = [
    "--",
    "python",
    "-m",
    "sglang.launch_server",
    "--model-path",
    "tiny",
];

fn launched(more: &[&str]) -> (EngineConfig, Vec<String>) {
    let line = [&COMMAND[..], more].concat();
    let (config, launch) = plan(&args(&line)).unwrap();
    (config, launch.unwrap().command)
}

#[test]
fn beside_an_engine_it_needs_to_be_known_where_it_is() {
    let (config, launch) = plan(&args(&["--engine", "http://127.0.0.1:30000/"])).unwrap();
    assert_eq!(
        (config.base_url.as_str(), launch),
        ("http://127.0.0.1:30000", None)
    );
    assert_eq!((config.events, config.events_folder), (None, None));
}

#[test]
fn decode_engines_reach_it_where_routers_reach_its_sidecar() {
    for (line, host) in [
        (&["--engine", "http://127.0.0.1:30000"][..], "127.0.0.1"),
        (
            &[
                "--engine",
                "http://localhost:30000",
                "--listen",
                "10.0.0.5:9100",
            ],
            "10.0.0.5",
        ),
        (
            &[
                "--engine",
                "http://127.0.0.1:1",
                "--listen",
                "0.0.0.0:9100",
                "--advertise",
                "http://10.0.0.6:9100",
            ],
            "10.0.0.6",
        ),
        (
            &[
                "--engine",
                "http://10.0.0.7:30000",
                "--listen",
                "10.0.0.5:9100",
            ],
            "10.0.0.7",
        ),
        (
            &[
                "--engine",
                "http://10.0.0.7:30000",
                "--bootstrap-host",
                "10.0.0.8",
            ],
            "10.0.0.8",
        ),
    ] {
        assert_eq!(
            plan(&args(line)).unwrap().0.bootstrap_host,
            host,
            "{line:?}"
        );
    }
}

#[test]
fn a_launched_engine_tells_its_kv_events_where_only_its_sidecar_hears_them() {
    let (config, command) = launched(&["--port=30007", "--host", "0.0.0.0", "--api-key", "k"]);
    assert_eq!(config.base_url, "http://127.0.0.1:30007");
    assert_eq!(config.api_key.as_deref(), Some("k"));
    let [.., flag, json] = &command[..] else {
        panic!("{command:?}");
    };
    assert_eq!(flag, "--kv-events-config");
    let given: Value = serde_json::from_str(json).unwrap();
    let folder = config.events_folder.unwrap();
    let sockets = config.events.unwrap();
    assert_eq!(
        sockets.events,
        format!("ipc://{}", folder.join("events").display())
    );
    assert_eq!(given["endpoint"], sockets.events);
    assert_eq!(given["replay_endpoint"], sockets.replay);
    assert_eq!(
        (given["publisher"].as_str(), given["format"].as_str()),
        (Some("zmq"), Some("dynamo"))
    );
}

#[test]
fn several_ranks_get_ports_in_a_row() {
    let (config, command) = launched(&["--dp-size", "3"]);
    assert_eq!(config.events, None);
    let given: Value = serde_json::from_str(command.last().unwrap()).unwrap();
    assert_eq!(given["bind"], true);
    let port = |key: &str| {
        let port = given[key]
            .as_str()
            .unwrap()
            .strip_prefix("tcp://127.0.0.1:");
        port.unwrap().parse::<u16>().unwrap()
    };
    assert_eq!(port("replay_endpoint"), port("endpoint") + 3);
}

#[test]
fn what_its_command_says_stays_and_an_engine_without_prefixes_gets_nothing() {
    for more in [
        &["--kv_events_config", "{}"][..],
        &["--disable-radix-cache"],
        &["--disaggregation-mode", "decode"],
    ] {
        let (config, command) = launched(more);
        assert_eq!(command[COMMAND.len() - 1..], *more);
        assert_eq!(config.events, None);
    }
    let keeps = [
        "--disaggregation-mode=decode",
        "--disaggregation-decode-enable-radix-cache",
    ];
    assert!(launched(&keeps).0.events.is_some());
}

#[test]
fn what_cannot_work_is_refused_in_one_sentence() {
    assert!(refusal(&["--engine", "https://h:1"]).contains("must look like"));
    assert!(refusal(&[]).contains("which engine"));
    assert!(refusal(&["--engine", "http://h:1", "--", "python"]).contains("not both"));
    assert!(refusal(&["--", "python", "--dp-size", "many"]).contains("--dp-size many"));
}
