//! What real engines of 0.5.23 answered and published (`integration/recordings/sglang`).

use std::time::{Duration, Instant};

use baton_kv_events::message::Message;
use baton_proto::load::Origin;
use serde_json::{Value, json};
use zmq::{Context, PUB, Socket};

use super::*;

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[test]
fn what_was_published_is_read() {
    let recorded = include_str!("../../../integration/recordings/sglang/zmq_load.jsonl");
    let mut busy = 0;
    for line in recorded.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let frames = line["frames_hex"].as_array().unwrap().iter();
        let frames: Vec<Vec<u8>> = frames.map(|hex| unhex(hex.as_str().unwrap())).collect();
        let stat = LoadStat::read(Message::published(&frames).unwrap().payload).unwrap();
        let told = |at: usize| line["decoded"][at].as_u64().unwrap();
        assert_eq!(
            [
                stat.running,
                stat.waiting,
                stat.used_tokens,
                stat.all_tokens,
                u64::from(stat.rank),
                stat.waiting_tokens
            ],
            [1, 2, 3, 4, 5, 6].map(told)
        );
        busy += stat.running + stat.waiting;
    }
    assert!(busy > 0);
}

#[test]
fn shorter_longer_and_strange_ones() {
    let mut short = vec![0x95, 0xa8];
    short.extend(b"LoadStat");
    short.extend([1, 2, 3, 4]);
    let stat = LoadStat::read(&short).unwrap();
    assert_eq!((stat.running, stat.all_tokens, stat.rank), (1, 4, 0));
    let mut long = short.clone();
    long[0] = 0x9c;
    long.extend([0xc0, 6, 7, 8, 9, 10, 11]);
    assert_eq!(LoadStat::read(&long).unwrap().waiting_tokens, 6);
    for cut in 0..short.len() {
        assert_eq!(LoadStat::read(&short[..cut]), None);
    }
    let mut other = short.clone();
    other[2] = b'X';
    assert_eq!(LoadStat::read(&other), None);
}

fn answered() -> Loads {
    serde_json::from_value(json!({"version": "0.5.23", "loads": [
        {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "num_waiting_uncached_tokens": 30,
         "num_used_tokens": 1000, "max_total_num_tokens": 4096, "total_prefill_uncached_tokens": 44,
         "decode_moments": [145.0, 145.0, 2_634_055.0, 145.0, 2_634_055.0, 150.0], "queues": {"waiting": 1}},
        {"dp_rank": 1, "num_running_reqs": 1, "num_used_tokens": 96, "max_total_num_tokens": 4096,
         "total_prefill_uncached_tokens": 6, "decode_moments": null},
    ]}))
    .unwrap()
}

#[test]
fn ranks_are_summed_and_the_fullest_one_decides() {
    let load = told(Some(&answered()), None, 4);
    let report = load.report;
    assert_eq!(load.work, Some(200));
    let running = report.running.unwrap();
    assert_eq!((running.value, running.from), (3, Origin::EngineMetric));
    assert_eq!(report.waiting.unwrap().value, 1);
    assert_eq!(report.queued_prefill_tokens.unwrap().value, 30);
    assert_eq!(report.free.unwrap().value[0].blocks, 774);
}

#[test]
fn a_stream_goes_before_and_is_enough() {
    let stat = LoadStat {
        running: 7,
        all_tokens: 4096,
        used_tokens: 4000,
        ..LoadStat::default()
    };
    for (answered, work) in [(Some(answered()), Some(200)), (None, None)] {
        let load = told(answered.as_ref(), Some(vec![stat]), 16);
        let running = load.report.running.unwrap();
        assert_eq!((running.value, running.from), (7, Origin::EngineStream));
        assert_eq!(
            (load.report.free.unwrap().value[0].blocks, load.work),
            (6, work)
        );
    }
    assert_eq!(told(None, None, 16), EngineLoad::default());
}

fn publisher(context: &Context) -> (Socket, String) {
    let socket = context.socket(PUB).unwrap();
    socket.set_linger(0).unwrap();
    socket.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = socket.get_last_endpoint().unwrap().unwrap();
    (socket, endpoint)
}

/// Publishes again and again, for nobody knows when a subscription has arrived, until the stream has something to say.
fn until_heard(stream: &LoadStream, publish: impl Fn()) -> Vec<LoadStat> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        publish();
        if let Some(stats) = stream.latest() {
            return stats;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("nothing was heard");
}

#[test]
fn all_ranks_must_have_spoken() {
    let context = Context::new();
    let [(first, one), (second, two)] = [publisher(&context), publisher(&context)];
    let source = LoadSource {
        endpoints: vec![one, two],
        topic: "load".to_owned(),
    };
    let stat = |running: u8, rank: u8| {
        let mut payload = vec![0x96, 0xa8];
        payload.extend(b"LoadStat");
        payload.extend([running, 0, 0, 9, rank]);
        [b"load".to_vec(), vec![0; 8], payload]
    };
    let stream = LoadStream::start(source);
    assert_eq!(stream.latest(), None);
    let stats = until_heard(&stream, || {
        // What is no load, and a rank that there is not.
        first.send_multipart([&b"load"[..], b"strange"], 0).unwrap();
        first.send_multipart(stat(7, 5), 0).unwrap();
        first.send_multipart(stat(3, 0), 0).unwrap();
        second.send_multipart(stat(4, 1), 0).unwrap();
    });
    let running: Vec<(u32, u64)> = stats.iter().map(|stat| (stat.rank, stat.running)).collect();
    assert_eq!(running, [(0, 3), (1, 4)]);
}
