//! What streams and whole answers of an engine mean.

#![no_main]

use baton_daemon::http::sse;
use baton_sidecar_core::engine::Verdict;
use baton_sidecar_vllm::dialect::{judge_answer, judge_event};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole: Vec<&[u8]> = sse::events(data).collect();
    assert_eq!(whole.concat(), data, "cutting loses nothing");
    for content in whole.into_iter().filter_map(sse::data) {
        assert_eq!(judge_event(&content) == Verdict::Done, *content == *b"[DONE]");
    }
    if judge_answer(data).is_ok() {
        let answer: serde_json::Value = serde_json::from_slice(data).unwrap_or_default();
        assert!(answer.is_null() || answer["choices"].as_array().is_some_and(|choices| !choices.is_empty()));
    }
});
