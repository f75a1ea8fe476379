//! A fleet of emulated TensorRT-LLM engines: requests are split between two of them, and say what one engine says.

use baton_integration::emulated::model;
use baton_integration::emulated::script::Leg;
use baton_integration::emulated::trtllm::Era;
use baton_integration::fleet::Setup;
use serde_json::json;

const PROMPT: &str =
    "Prefill computes this prompt, and generation goes on from what prefill has left behind.";

#[tokio::test]
async fn both_eras_are_split_and_say_what_one_engine_says() {
    for era in [Era::V12, Era::Main] {
        let fleet = Setup::split_trtllm(era).start().await;
        for stream in [false, true] {
            let body =
                json!({"model": "tiny", "prompt": PROMPT, "max_tokens": 5, "stream": stream});
            let said = fleet.complete(body.to_string()).await;
            assert_eq!(said.served().generated(), model::text(PROMPT, 5));
        }
        let messages = json!([{"role": "user", "content": PROMPT}]);
        let body = json!({"model": "tiny", "messages": messages, "max_tokens": 5});
        let said = fleet.chat(body.to_string()).await;
        assert_eq!(said.served().generated(), model::chat_text(&messages, 5));

        let (prefill, decode) = (fleet.trtllm("p0"), fleet.trtllm("d0"));
        assert_eq!(prefill.seen_of(Leg::Prefill).len(), 3);
        let legs = decode.seen_of(Leg::Decode);
        assert_eq!(legs.len(), 3);
        assert!(legs.iter().all(|leg| {
            let id = leg.json()["disaggregated_params"]["disagg_request_id"].as_u64();
            id.unwrap() >= 1 << 40
        }));
        fleet.gave_back("p0").await;
        fleet.finish().await;
    }
}
