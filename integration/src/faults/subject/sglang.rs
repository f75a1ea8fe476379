//! SGLang: the two legs of a handoff meet in a room, and a leg that is not wanted any more is ended by its name.

use std::time::Duration;

use serde_json::Value;

use super::super::liar::Lie;
use super::super::schedule;
use super::super::stand::Sabotage;
use super::{BLOCKS, LONGEST, Place, SPEED, Side, Subject};
use crate::emulated::sglang::events::{Form, Format};
use crate::emulated::sglang::{Config, EventsConfig, Mode, Patience};
use crate::fleet::{Emulated, EngineConfig};
use crate::ports;

/// Tokens of a page.
const PAGE: u32 = 32;

/// So many requests at a time, as the emulated vLLM takes.
const AT_A_TIME: usize = 128;

/// What a leg that brings KV has in it.
const BRINGS_KV: &str = r#""bootstrap_room":"#;

/// How long a start takes, and the time between heartbeats, which tell in two of them that an engine is gone.
const BOOT: Duration = Duration::from_millis(2500);
const HEARTBEAT: Duration = Duration::from_millis(300);

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(1 << 20);

pub(super) struct Sglang;

impl Subject for Sglang {
    /// An engine that notices nothing by itself but that a prefill engine is gone: whatever else ends in time was ended by Baton.
    fn config(&self, side: Side, without: Option<Sabotage>) -> EngineConfig {
        let mode = match side {
            Side::Prefill => Mode::Prefill,
            Side::Decode => Mode::Decode,
        };
        let config = Config {
            events: Some(EventsConfig {
                endpoint: format!("tcp://*:{}", ports::free().port()),
                replay_endpoint: Some(format!("tcp://*:{}", ports::free().port())),
                topic: String::new(),
                buffer_steps: 1000,
                format: Format::Dynamo,
                form: Form::Maps,
            }),
            page_size: PAGE,
            pages: BLOCKS,
            context_length: LONGEST,
            max_running_requests: AT_A_TIME,
            decode_radix_cache: true,
            patience: Patience {
                bootstrap: NEVER,
                waiting: NEVER,
                heartbeat: HEARTBEAT,
                disconnect_poll: NEVER,
                ..Patience::REAL
            },
            // Where rooms come twice on purpose, the engine lives to show what else comes of it.
            dies_of_used_rooms: without != Some(Sabotage::Rooms),
            speed: SPEED,
            ..Config::new(mode)
        };
        config.into()
    }

    /// Long enough for decode engines to miss it, as real ones take longer than two heartbeats, 10 s. Nobody else could be harmed
    /// by a quicker one: rooms are of one life.
    fn boot(&self) -> Duration {
        BOOT
    }

    fn handoff(&self, body: &Value) -> String {
        format!("room {}", body["bootstrap_room"])
    }

    fn mark(&self, engine: &Emulated) -> Option<String> {
        let Emulated::Sglang(engine) = engine else {
            return None;
        };
        let port = engine.bootstrap().port();
        engine
            .is_alive()
            .then(|| format!(r#""bootstrap_port":{port},"#))
    }

    fn lie(&self, side: Side, without: Option<Sabotage>) -> Option<(Place, Lie)> {
        match (side, without) {
            (_, Some(Sabotage::Release)) => Some((Place::BeforeEngine, Lie::KeepsAborts)),
            (_, Some(Sabotage::Rooms)) => Some((Place::BeforeEngine, Lie::ReusesRooms)),
            (Side::Decode, Some(Sabotage::Verdict)) => {
                Some((Place::BeforeEngine, Lie::HidesAborts))
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

    /// It is given back.
    fn holds_for(&self) -> Duration {
        Duration::ZERO
    }

    fn tells_again(&self) -> bool {
        true
    }

    fn rare(&self) -> &'static [schedule::Kind] {
        &[schedule::Kind::Swap, schedule::Kind::AbortAll]
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
