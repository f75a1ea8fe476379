//! What an ordinary client gets, and what the engines see of it.

use baton_integration::fake_vllm::model;
use baton_integration::fake_vllm::script::Leg;
use baton_integration::fleet::Setup;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_prefilled_here_and_decoded_there() {
    let fleet = Setup::split().start().await;
    let answer = fleet
        .complete(r#"{"model":"tiny","prompt":"Where is the baton?","max_tokens":5}"#)
        .await;
    assert_eq!(
        answer.served().generated(),
        model::text("Where is the baton?", 5)
    );
    let prefill = fleet.engine("p0").only(Leg::Prefill).json();
    assert_eq!(prefill["max_tokens"], json!(1));
    fleet.engine("d0").only(Leg::Decode);
    assert_eq!(fleet.engine("d0").transferred_tokens(), 19);
    fleet.finish().await;
}
