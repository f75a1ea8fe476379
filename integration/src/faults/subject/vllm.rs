//! vLLM: what prefill leaves is fetched by decode, and given back by a notification.

use std::time::Duration;

use baton_sidecar_core::relay::vigil::BOOT;
use serde_json::Value;

use super::super::liar::Lie;
use super::super::schedule;
use super::super::stand::Sabotage;
use super::{BLOCKS, LONGEST, Place, SPEED, Side, Subject};
use crate::emulated::vllm::events::HashForm;
use crate::emulated::vllm::{Config, EventsConfig};
use crate::fleet::{Emulated, EngineConfig};
use crate::ports;

/// What a leg that brings KV has in it.
const BRINGS_KV: &str = r#""do_remote_prefill":true"#;

pub(super) struct Vllm;

impl Subject for Vllm {
    fn config(&self, side: Side, _: Option<Sabotage>) -> EngineConfig {
        let role = match side {
            Side::Prefill => "kv_producer",
            Side::Decode => "kv_consumer",
        };
        let config = Config {
            events: Some(EventsConfig {
                endpoint: format!("tcp://*:{}", ports::free().port()),
                replay_endpoint: Some(format!("tcp://{}", ports::free())),
                topic: String::new(),
                buffer_steps: 1000,
                hash_form: HashForm::Int,
            }),
            blocks: BLOCKS,
            max_model_len: LONGEST,
            speed: SPEED,
            // As a sidecar launches it.
            plain_ids: true,
            ..Config::new(Some(role))
        };
        config.into()
    }

    /// As long as the fastest of real engines at least.
    fn boot(&self) -> Duration {
        BOOT + Duration::from_millis(500)
    }

    fn handoff(&self, body: &Value) -> String {
        let params = &body["kv_transfer_params"];
        format!(
            "{}/{}",
            params["remote_engine_id"], params["remote_request_id"]
        )
    }

    fn mark(&self, engine: &Emulated) -> Option<String> {
        let Emulated::Vllm(engine) = engine else {
            return None;
        };
        let id = engine.running_engine_id()?;
        Some(format!("\"{id}\""))
    }

    fn lie(&self, side: Side, without: Option<Sabotage>) -> Option<(Place, Lie)> {
        match (side, without) {
            (Side::Prefill, Some(Sabotage::Settle)) => {
                Some((Place::BeforeSidecar, Lie::SettlesUnasked))
            }
            (Side::Decode, Some(Sabotage::Fence)) => {
                Some((Place::BeforeEngine, Lie::RepeatsLegsWith(BRINGS_KV)))
            }
            (Side::Decode, _) => Some((Place::BeforeSidecar, Lie::RepeatsDecodeCalls)),
            (Side::Prefill, _) => None,
        }
    }

    fn is_deaf(&self, without: Option<Sabotage>) -> bool {
        without == Some(Sabotage::Release)
    }

    /// It is given back.
    fn holds_for(&self) -> Duration {
        Duration::ZERO
    }

    fn tells_again(&self) -> bool {
        true
    }

    fn rare(&self) -> &'static [schedule::Kind] {
        &[schedule::Kind::Swap]
    }

    fn protections(&self) -> &'static [Sabotage] {
        &[
            Sabotage::Fence,
            Sabotage::Settle,
            Sabotage::Release,
            Sabotage::Gap,
        ]
    }
}
