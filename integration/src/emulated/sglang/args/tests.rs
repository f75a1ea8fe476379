//! The recorded command lines, and those that are refused.

use serde_json::Value;

use super::super::info;
use super::*;

#[test]
fn the_recorded_command_lines_start_what_was_recorded() {
    let recorded = [
        include_str!("../../../../recordings/sglang/server_info_prefill.json"),
        include_str!("../../../../recordings/sglang/server_info_decode.json"),
    ];
    for recorded in recorded {
        let recorded: Value = serde_json::from_str(recorded).unwrap();
        let words = recorded["launch_command"].as_str().unwrap();
        let words = std::iter::once("sglang").chain(words.split_whitespace());
        let config = Args::try_parse_from(words).unwrap().config().unwrap();
        assert_eq!(recorded["disaggregation_mode"], config.mode.name());
        assert_eq!(
            recorded["max_total_num_tokens"],
            config.pages * config.page_size
        );
        assert_eq!(recorded["kv_events"], info::kv_events(&config));
    }
}

#[test]
fn what_cannot_work_is_refused() {
    for words in [
        "--host 192.0.2.1",
        "--page-size 0",
        "--disaggregation-transfer-backend mooncake",
        "--kv-events-config {",
        "--emulate-patience 0",
    ] {
        let words = std::iter::once("sglang").chain(words.split_whitespace());
        assert!(Args::try_parse_from(words).unwrap().config().is_err());
    }
}
