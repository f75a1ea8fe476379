//! Writes a first corpus: the golden vectors for the readers of MessagePack, a few bodies for the readers of JSON, recorded
//! KV events.

use std::fs;
use std::io;
use std::path::Path;

/// Targets that read one message, and those that read a stream or an envelope.
const MESSAGES: &[&str] = &["watch_frame", "prefill_frame", "registration", "ticket"];
const FRAMES: &[&str] = &["envelope", "frame_reader"];
const BODIES: &[&str] = &["raw_object", "client_request", "chat_body"];

const JSON: &[&str] = &[
    "{}",
    r#"{"model":"tiny","prompt":[1,2,3],"max_tokens":16,"stream":true,"temperature":1.50}"#,
    r#" { "messages" : [{"role":"user","content":"\ud83d\ude00 \u0000"}] , "vllm_xargs":{"kv_cache_report_mode":"full"} } "#,
    r#"{"kv_transfer\u005fparams":null}"#,
    r#"{"vllm_xargs":{"a":1,"bootstrap_room":2}}"#,
    r#"{"a":1,"\u0061":2}"#,
    r#"{"x":-0.0,"y":1e-400,"seed":18446744073709551617}"#,
];

const ERRORS: &[&str] = &[
    "no_worker; source=router; stage=plan; retry=safe\n{\"error\":{\"message\":\"no worker\",\"code\":\"no_worker\"}}",
    "solar_flare; source=sun; retry=maybe; x\nnot json",
];

fn main() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(here.join("../proto/vectors"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "hex") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = bytes_of(&fs::read_to_string(&path)?);
        for target in MESSAGES {
            save(target, &name, &bytes)?;
        }
        let frame = [&u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes()[..], &bytes].concat();
        for target in FRAMES {
            save(target, &name, &bytes)?;
            save(target, &format!("{name}_framed"), &frame)?;
            save(target, &format!("{name}_steered"), &[b"\x05", &frame[..], &frame[..]].concat())?;
        }
    }
    for (number, text) in JSON.iter().enumerate() {
        for target in BODIES {
            save(target, &number.to_string(), format!("a{text}").as_bytes())?;
        }
    }
    for (number, text) in ERRORS.iter().enumerate() {
        save("error_wire", &number.to_string(), text.as_bytes())?;
    }
    agents()?;
    chats(here)?;
    kv_events(here)?;
    sglang_events(here)?;
    trtllm(here)
}

/// The beginnings of what agents tell of themselves, one of each fabric.
fn agents() -> io::Result<()> {
    let name = b"123e4567-e89b-12d3-a456-426614174000";
    let begin = [&b"nixlSerDes|Agent"[..], &(name.len() as u64).to_le_bytes(), name].concat();
    let connections = |count: u64| [&b"|Conns"[..], &8u64.to_le_bytes(), &count.to_le_bytes()].concat();
    save("agent_metadata", "nixl", &[&begin[..], &connections(1), b"|t\x03\0\0\0\0\0\0\0UCX"].concat())?;
    save("agent_metadata", "loopback", &[&begin[..], &connections(0), b"|Loopback\x67\x12"].concat())
}

/// The chats of which vectors are made: each template renders the same ones.
fn chats(here: &Path) -> io::Result<()> {
    let vectors = fs::read_to_string(here.join("../tokens/vectors/chats.json"))?;
    let vectors: Vec<serde_json::Value> = serde_json::from_str(&vectors)?;
    for (number, vector) in vectors.iter().filter(|vector| vector["template"] == "chatml").enumerate() {
        for template in ["a", "b", "c"] {
            save("chat_body", &format!("vector_{number}_{template}"), format!("{template}{}", vector["body"]).as_bytes())?;
        }
    }
    Ok(())
}

/// The first messages of each recording, each after its length and the step of its sequence number.
fn kv_events(here: &Path) -> io::Result<()> {
    for entry in fs::read_dir(here.join("../integration/recordings/vllm/kv_events"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut input = Vec::new();
        for (number, line) in fs::read_to_string(&path)?.lines().take(12).enumerate() {
            let line: serde_json::Value = serde_json::from_str(line)?;
            let payload = bytes_of(line["frames_hex"][2].as_str().unwrap_or_default());
            input.extend(u16::try_from(payload.len()).unwrap_or(0).to_be_bytes());
            input.push(u8::from(number > 0));
            input.extend(payload);
            if number < 6 {
                save("kv_events", &format!("{name}_{number}"), &input)?;
            }
        }
        save("kv_events", &name, &input)?;
    }
    Ok(())
}

/// The first payloads of each recording.
fn sglang_events(here: &Path) -> io::Result<()> {
    for name in ["zmq_prefill", "zmq_agg_gpu", "zmq_encoder_all_variants", "zmq_load"] {
        let recording = fs::read_to_string(here.join(format!("../integration/recordings/sglang/{name}.jsonl")))?;
        for (number, line) in recording.lines().take(12).enumerate() {
            let line: serde_json::Value = serde_json::from_str(line)?;
            let payload = bytes_of(line["frames_hex"][2].as_str().unwrap_or_default());
            save("sglang_events", &format!("{name}_{number}"), &payload)?;
        }
    }
    Ok(())
}

/// Shapes of answers to polls, and to context legs.
fn trtllm(here: &Path) -> io::Result<()> {
    for entry in fs::read_dir(here.join("../integration/recordings/trtllm"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("ctx_") {
            save("trtllm_prefill", &name, &fs::read(&path)?)?;
        }
        if name.starts_with("kv_events_") || name.starts_with("metrics_") {
            let recorded: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
            let body = recorded.get("body").unwrap_or(&recorded);
            save("trtllm_events", &name, body.to_string().as_bytes())?;
        }
    }
    Ok(())
}

fn save(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("seed_{name}")), bytes)
}

fn bytes_of(vector: &str) -> Vec<u8> {
    let digits: String = vector.lines().filter(|line| !line.starts_with('#')).collect();
    let pairs = digits.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}
