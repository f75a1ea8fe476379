//! An engine's ZMQ sockets: the event stream, its replay, the handshake's side channel.

use serde::Deserialize;
use serde_json::Value;

use super::events::Batch;
use super::shape::Difference;
use super::wire;

/// Replies come within this. A publisher looks at its replay socket every 100 ms.
const REPLY_BOUND_MS: i32 = 5_000;

/// A request without an empty delimiter is ignored: this long is waited in vain.
const IGNORED_MS: i32 = 500;

/// How long a subscriber listens after each request.
const LISTEN_MS: i32 = 200;

/// The side channel's only question: MessagePack of ("get_meta_msg", 0, 0).
const QUESTION: &[u8] = b"\x93\xc4\x0cget_meta_msg\x00\x00";

fn text(error: zmq::Error) -> String {
    error.to_string()
}

fn connected(
    kind: zmq::SocketType,
    endpoint: &str,
    patience_ms: i32,
) -> Result<zmq::Socket, String> {
    let socket = zmq::Context::new().socket(kind).map_err(text)?;
    socket.set_linger(0).map_err(text)?;
    socket.set_rcvtimeo(patience_ms).map_err(text)?;
    socket
        .connect(endpoint)
        .map_err(|error| format!("{endpoint}: {error}"))?;
    Ok(socket)
}

/// The batches that an engine replays from a sequence number on.
pub fn replay(endpoint: &str, from: u64) -> Result<Vec<Batch>, String> {
    let socket = connected(zmq::DEALER, endpoint, REPLY_BOUND_MS)?;
    let start = from.to_be_bytes();
    socket
        .send_multipart([&b""[..], &start[..]], 0)
        .map_err(text)?;
    let mut log = Vec::new();
    loop {
        let frames = socket
            .recv_multipart(0)
            .map_err(|error| format!("no replay: {error}"))?;
        match frames.as_slice() {
            [_, _, seq, payload] if seq[..] == [0xff; 8] && payload.is_empty() => return Ok(log),
            [_, topic, seq, payload] => log.push(read(topic, seq, payload)?),
            other => return Err(format!("a replay of {} frames", other.len())),
        }
    }
}

fn read(topic: &[u8], seq: &[u8], payload: &[u8]) -> Result<Batch, String> {
    let seq = seq
        .try_into()
        .map_err(|_| format!("a sequence number of {} bytes", seq.len()))?;
    Batch::read(
        &String::from_utf8_lossy(topic),
        u64::from_be_bytes(seq),
        payload,
    )
}

/// A subscriber to everything.
pub struct Subscription {
    socket: zmq::Socket,
}

impl Subscription {
    /// Subscribes; it is in force some time later.
    pub fn new(endpoint: &str) -> Result<Self, String> {
        let socket = connected(zmq::SUB, endpoint, LISTEN_MS)?;
        socket.set_subscribe(b"").map_err(text)?;
        Ok(Self { socket })
    }

    /// What is heard next, if anything is within a short time.
    pub fn next(&self) -> Result<Option<Batch>, String> {
        match self.socket.recv_multipart(0) {
            Err(zmq::Error::EAGAIN) => Ok(None),
            Err(error) => Err(text(error)),
            Ok(frames) => match frames.as_slice() {
                [topic, seq, payload] => read(topic, seq, payload).map(Some),
                other => Err(format!("an event message of {} frames", other.len())),
            },
        }
    }
}

/// A recorded conversation with a replay socket.
#[derive(Debug, Deserialize)]
pub struct RecordedReplay {
    /// What it shows.
    pub label: String,
    client_socket: String,
    sent_frames_hex: Vec<String>,
    received_frames_hex: Vec<Vec<String>>,
}

/// The recorded conversations, with an engine that had published 13 batches.
pub fn recorded_replays() -> Vec<RecordedReplay> {
    let text = include_str!("../../recordings/vllm/kv_events/replay_exchange.json");
    serde_json::from_str(text).expect("recorded replays")
}

/// `TIMEOUT`, which stands for no reply.
const NO_REPLY: &str = "54494d454f5554";

/// Has a recorded conversation again and compares how many frames come, and that they are those of the log.
pub fn compare_replay(
    endpoint: &str,
    recorded: &RecordedReplay,
    log: &[Batch],
) -> Result<Vec<Difference>, String> {
    let dealer = recorded.client_socket == "DEALER";
    let kind = if dealer { zmq::DEALER } else { zmq::REQ };
    let ignored = recorded.received_frames_hex == [[NO_REPLY]];
    let socket = connected(
        kind,
        endpoint,
        if ignored { IGNORED_MS } else { REPLY_BOUND_MS },
    )?;
    let sent = recorded
        .sent_frames_hex
        .iter()
        .filter_map(|frame| wire::unhex(frame));
    socket.send_multipart(sent, 0).map_err(text)?;
    if ignored {
        let reply = socket.recv_multipart(0);
        let what = format!("a reply where none is due: {reply:?}");
        return Ok(reply
            .is_ok()
            .then(|| Difference::new("reply", what))
            .into_iter()
            .collect());
    }
    let mut found = Vec::new();
    for (number, expected) in recorded.received_frames_hex.iter().enumerate() {
        let reply = socket
            .recv_multipart(0)
            .map_err(|error| format!("reply {number}: {error}"))?;
        found.extend(
            compare_reply(expected, &reply, log)
                .map(|what| Difference::new(format!("reply {number}"), what)),
        );
    }
    Ok(found)
}

fn compare_reply(expected: &[String], reply: &[Vec<u8>], log: &[Batch]) -> Option<String> {
    let (hex, payloads): (Vec<String>, _) = (
        reply.iter().map(|frame| wire::hex(frame)).collect(),
        reply.last()?,
    );
    // All but the payload: delimiters, topic and sequence number.
    if hex.len() != expected.len() || hex[..hex.len() - 1] != expected[..expected.len() - 1] {
        return Some(format!("{hex:?} instead of {expected:?}"));
    }
    let [.., topic, seq, payload] = reply else {
        return Some(format!("{} frames", reply.len()));
    };
    if payloads.is_empty() {
        return (!expected.last()?.is_empty()).then(|| "an empty payload".to_owned());
    }
    match read(topic, seq, payload) {
        Ok(batch) if log.contains(&batch) => None,
        Ok(batch) => Some(format!("not in the log: {batch:?}")),
        Err(error) => Some(error),
    }
}

/// Asks for an engine's handshake. Anything else than this very question ends a real engine's listener for good.
pub fn handshake(address: &str) -> Result<Value, String> {
    let socket = connected(zmq::REQ, &format!("tcp://{address}"), REPLY_BOUND_MS)?;
    socket.send(QUESTION, 0).map_err(text)?;
    let frames = socket
        .recv_multipart(0)
        .map_err(|error| format!("no handshake: {error}"))?;
    match frames.as_slice() {
        [payload, clock] => {
            let clock = wire::unpacked(clock)?;
            clock.as_f64().ok_or_else(|| format!("no clock: {clock}"))?;
            unpack_handshake(payload)
        }
        other => Err(format!("a handshake of {} frames", other.len())),
    }
}

/// The recorded handshake of an engine.
pub fn recorded_handshake(role: &str) -> Value {
    let text = include_str!("../../recordings/vllm/handshakes.json");
    let all: Value = serde_json::from_str(text).expect("recorded handshakes");
    let payload = all[role]
        .as_str()
        .and_then(wire::unhex)
        .expect("a recorded payload");
    unpack_handshake(&payload).expect("a handshake")
}

/// A payload with the metadata inside it unpacked, too.
fn unpack_handshake(payload: &[u8]) -> Result<Value, String> {
    let mut payload = wire::unpacked(payload)?;
    let metadata = payload["agent_metadata_bytes"].as_str().unwrap_or_default();
    let bytes = metadata
        .strip_prefix("hex:")
        .and_then(wire::unhex)
        .unwrap_or_default();
    let metadata = wire::unpacked(&bytes)?;
    payload
        .as_object_mut()
        .and_then(|payload| payload.remove("agent_metadata_bytes"));
    payload["metadata"] = metadata;
    Ok(payload)
}
