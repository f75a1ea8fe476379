//! Exchanges with an engine's replay socket.

use std::io::Write;

use baton_sidecar_vllm::events::message::Replayed;
use serde::Deserialize;
use serde_json::Value;

use super::feed::Feed;
use super::log::{unhex, unhex_all};
use super::report::{Exchange, ReplaySocket};
use super::{Args, Damaged, Failure};

#[derive(Deserialize)]
struct Recorded {
    #[serde(default)]
    label: String,
    #[serde(default)]
    sent_frames_hex: Vec<String>,
    received_frames_hex: Vec<Vec<String>>,
}

pub(super) fn read<W: Write>(
    args: &Args,
    all: &[Value],
    damaged: &mut Damaged<'_, W>,
) -> Result<ReplaySocket, Failure> {
    let mut exchanges = Vec::new();
    for (number, recorded) in (1..).zip(all) {
        match Recorded::deserialize(recorded) {
            Ok(recorded) => exchanges.push(exchange(args, number, &recorded, damaged)?),
            Err(error) => damaged.note(number, format!("no exchange: {error}"))?,
        }
    }
    Ok(ReplaySocket { exchanges })
}

/// Each exchange has a view of its own: what a sidecar would know that heard nothing else.
fn exchange<W: Write>(
    args: &Args,
    number: u64,
    recorded: &Recorded,
    damaged: &mut Damaged<'_, W>,
) -> Result<Exchange, Failure> {
    let mut feed = Feed::new(args);
    let (mut ended, mut strange) = (false, 0);
    for answer in &recorded.received_frames_hex {
        let frames = match unhex_all(answer) {
            Ok(frames) => frames,
            Err(what) => {
                damaged.note(number, what)?;
                continue;
            }
        };
        match Replayed::read(&frames) {
            Ok(Replayed::End) => ended = true,
            Ok(Replayed::Message(message)) => {
                if let Err(what) = feed.message(&message) {
                    damaged.note(number, what)?;
                }
            }
            // A recorder writes down that nothing came, too.
            Err(_) => strange += 1,
        }
    }
    let question = recorded.sent_frames_hex.last();
    let question = question.and_then(|hex| unhex(hex).ok()?.try_into().ok());
    Ok(Exchange {
        label: recorded.label.clone(),
        asked_from: question.map(u64::from_be_bytes),
        ended,
        strange,
        events: feed.finish(),
    })
}
