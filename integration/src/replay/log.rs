//! Published KV events: one message a line, and in a sidecar's recording between them what befell their stream.

use std::io::Write;

use baton_sidecar_vllm::events::message::Message;
use clap::ValueEnum as _;
use serde::Deserialize;
use serde_json::Value;

use super::feed::{Befallen, Feed};
use super::input::Input;
use super::report::EventReport;
use super::{Args, Damaged, EngineName, Failure};

/// A line of a log. Whatever else is in it, what a recorder decoded above all, is not looked at.
#[derive(Deserialize)]
struct Recorded {
    frames_hex: Option<Vec<String>>,
    /// A sidecar's recording also says what befell the stream of a rank: connections showed it, and no number does.
    event: Option<String>,
    rank: Option<u32>,
    /// And what the engine is, at the beginning of each of its lives.
    attached: Option<Value>,
    /// What the recorder took for the sequence number.
    seq: Option<u64>,
}

pub(super) fn read<W: Write>(
    args: &Args,
    input: &mut Input,
    damaged: &mut Damaged<'_, W>,
) -> Result<EventReport, Failure> {
    let mut feed = Feed::new(args);
    while let Some(line) = input.next_line()? {
        let told = match told(&line.text) {
            Ok(Told::Message(frames, seq)) => message(&mut feed, &frames, seq),
            Ok(Told::Befell(rank, what)) => {
                feed.befell(rank, what);
                Ok(())
            }
            Ok(Told::Attached(engine)) => {
                feed.attached(engine);
                Ok(())
            }
            Ok(Told::Else) => Ok(()),
            Err(what) => Err(what),
        };
        if let Err(what) = told {
            damaged.note(line.number, what)?;
        }
    }
    Ok(feed.finish())
}

/// What a line says.
enum Told {
    /// Frames, and what was taken for their number.
    Message(Vec<Vec<u8>>, Option<u64>),
    /// Something befell the stream of a rank.
    Befell(u32, Befallen),
    /// The engine began a life.
    Attached(Option<EngineName>),
    /// Something that changes no view.
    Else,
}

fn told(line: &[u8]) -> Result<Told, String> {
    let recorded: Recorded =
        serde_json::from_slice(line).map_err(|error| format!("no line of KV events: {error}"))?;
    if let Some(frames) = recorded.frames_hex {
        return Ok(Told::Message(unhex_all(&frames)?, recorded.seq));
    }
    if let Some(attached) = recorded.attached {
        let engine = attached["info"]["engine"].as_str();
        let engine = engine.and_then(|name| EngineName::from_str(name, true).ok());
        return Ok(Told::Attached(engine));
    }
    let event = recorded.event.as_deref();
    let event = event.ok_or_else(|| "no line of KV events: it has no frames_hex".to_owned())?;
    let befallen = match event {
        "lost" => Befallen::Lost,
        "restart" => Befallen::Restart,
        _ => return Ok(Told::Else),
    };
    Ok(Told::Befell(recorded.rank.unwrap_or_default(), befallen))
}

fn message(feed: &mut Feed, frames: &[Vec<u8>], seq: Option<u64>) -> Result<(), String> {
    let message = Message::published(frames).map_err(|bad| {
        feed.bad_frames();
        bad.to_string()
    })?;
    if seq.is_some_and(|seq| seq != message.seq) {
        return Err(format!(
            "the line says sequence number {}, its frame {}",
            seq.unwrap_or_default(),
            message.seq
        ));
    }
    feed.message(&message)
}

pub(super) fn unhex_all(frames: &[String]) -> Result<Vec<Vec<u8>>, String> {
    let each = frames.iter().enumerate();
    each.map(|(number, hex)| unhex(hex).map_err(|what| format!("frame {number}: {what}")))
        .collect()
}

pub(super) fn unhex(hex: &str) -> Result<Vec<u8>, String> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(format!("an odd number of hex digits ({})", hex.len()));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |(at, [high, low]): (usize, &[u8; 2])| {
        let value = digit(*high).zip(digit(*low));
        let value = value.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        value.ok_or_else(|| format!("no hex digits at {}", 2 * at))
    };
    pairs.iter().enumerate().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits() {
        assert_eq!(unhex("00fFa1"), Ok(vec![0, 255, 0xa1]));
        assert_eq!(
            unhex("001"),
            Err("an odd number of hex digits (3)".to_owned())
        );
        assert_eq!(unhex("00+1"), Err("no hex digits at 2".to_owned()));
        assert_eq!(unhex("é"), Err("no hex digits at 0".to_owned()));
    }
}
