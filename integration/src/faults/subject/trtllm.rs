//! TensorRT-LLM: what prefill leaves is fetched by decode under an id, and nothing gives it back but that, or its own timeout.

use std::time::Duration;

use baton_sidecar_core::relay::vigil::BOOT;
use serde_json::Value;

use super::super::liar::Lie;
use super::super::schedule;
use super::super::stand::Sabotage;
use super::{BLOCKS, LONGEST, Place, SPEED, Side, Subject};
use crate::emulated::trtllm::{Config, Era, Patience, ServerRole};
use crate::fleet::{Emulated, EngineConfig};

/// So many requests at a time, as the emulated vLLM takes.
const AT_A_TIME: usize = 128;

/// What a leg that brings KV has in it.
const BRINGS_KV: &str = r#""request_type":"generation_only""#;

/// `kv_transfer_timeout_ms`: shorter than what a request may take, so that it runs out on some that are still wanted.
const TIMEOUT: Duration = Duration::from_secs(4);

pub(super) struct Trtllm;

impl Subject for Trtllm {
    /// An engine of what becomes 1.3, for 1.2 has no timeout. It looks for closed connections as often as the real one does.
    fn config(&self, side: Side, without: Option<Sabotage>) -> EngineConfig {
        let role = match side {
            Side::Prefill => ServerRole::Context,
            Side::Decode => ServerRole::Generation,
        };
        let config = Config {
            role,
            blocks: BLOCKS,
            max_seq_len: LONGEST,
            max_batch_size: AT_A_TIME,
            patience: Patience {
                transfer: (without != Some(Sabotage::Release)).then_some(TIMEOUT),
                ..Patience::real(Era::Main)
            },
            speed: SPEED,
            ..Config::new(Era::Main)
        };
        config.into()
    }

    /// As long as the fastest of real engines at least.
    fn boot(&self) -> Duration {
        BOOT + Duration::from_millis(500)
    }

    fn handoff(&self, body: &Value) -> String {
        format!("id {}", body["disaggregated_params"]["disagg_request_id"])
    }

    fn mark(&self, engine: &Emulated) -> Option<String> {
        let Emulated::Trtllm(engine) = engine else {
            return None;
        };
        engine.opaque_state()
    }

    fn lie(&self, side: Side, without: Option<Sabotage>) -> Option<(Place, Lie)> {
        match (side, without) {
            (_, Some(Sabotage::Rooms)) => Some((Place::BeforeEngine, Lie::ReusesIds)),
            (Side::Decode, Some(Sabotage::Verdict)) => {
                Some((Place::BeforeEngine, Lie::HidesFailures))
            }
            (Side::Decode, Some(Sabotage::Fence)) => {
                Some((Place::BeforeEngine, Lie::RepeatsLegsWith(BRINGS_KV)))
            }
            (Side::Decode, _) => Some((Place::BeforeSidecar, Lie::RepeatsDecodeCalls)),
            (Side::Prefill, _) => None,
        }
    }

    fn is_deaf(&self, _: Option<Sabotage>) -> bool {
        false
    }

    fn holds_for(&self) -> Duration {
        TIMEOUT
    }

    fn tells_again(&self) -> bool {
        false
    }

    fn rare(&self) -> &'static [schedule::Kind] {
        &[schedule::Kind::Swap]
    }

    fn protections(&self) -> &'static [Sabotage] {
        &[
            Sabotage::Fence,
            Sabotage::Release,
            Sabotage::Gap,
            Sabotage::Rooms,
            Sabotage::Verdict,
        ]
    }
}
