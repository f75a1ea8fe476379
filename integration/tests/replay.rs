//! `baton-replay` as a user runs it.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/vllm")
}

fn events(name: &str) -> PathBuf {
    recordings().join("kv_events").join(name)
}

fn replay(args: &[&str], files: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton-replay"));
    command.args(args).args(files).stdin(Stdio::null());
    command.output().unwrap()
}

fn replay_stdin(args: &[&str], text: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_baton-replay"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let text = text.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&text));
    let output = child.wait_with_output().unwrap();
    // One that stops early does not read to the end.
    let _ = writer.join().unwrap();
    output
}

fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn reports(output: &Output) -> Vec<Value> {
    let text = stdout(output);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn report(args: &[&str], file: &Path) -> Value {
    let args = [&["--json"], args].concat();
    let output = replay(&args, &[file.to_owned()]);
    assert_eq!(stderr(&output), "");
    let [report] = &reports(&output)[..] else {
        panic!("not one report");
    };
    report.clone()
}

fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn shows_what_a_log_contains_and_the_view_after_it() {
    let text = stdout(&replay(&[], &[events("agg.jsonl")]));
    for expected in [
        "messages     13, 0.462 s from 1796006013.964",
        "topics       \"kv@agg@tiny\" 13",
        "rank 0       13 messages, sequence 0 to 12, no gap",
        "events       AllBlocksCleared 1, BlockRemoved 41, BlockStored 13",
        "blocks       105 stored with 3360 tokens, 41 removed",
        "hashes       numbers 13",
        "sequences    base 11, salt \"tenant-a\" 1",
        "view of a sidecar, model \"tiny\"",
        "rank 0       certain",
        "    device     2 blocks, digest 8e6db21443de97df",
        "    longest    2 blocks, 64 tokens, base: 300 301 302 303 304 305 306 307 …",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
}

#[test]
fn one_report_for_each_file_for_programs() {
    let files = ["prefill.jsonl", "lora_salt_session_bytes_hash.jsonl"].map(events);
    let output = replay(&["--json", "--model", "tiny", "--chains", "1"], &files);
    let [prefill, lora] = &reports(&output)[..] else {
        panic!("not two reports");
    };
    assert_eq!(prefill["kind"], "kv_events");
    assert_eq!(prefill["damaged"], 0);
    assert_eq!(
        prefill["summary"]["events"],
        json!({"BlockStored": 40, "BlockRemoved": 220})
    );
    let rank = &prefill["view"]["ranks"][0];
    assert_eq!(
        (&rank["certain"], &rank["block_size"], &rank["last_seq"]),
        (&json!(true), &json!(32), &json!(39))
    );
    assert_eq!(rank["tiers"][0]["tier"], "device");
    assert_eq!(rank["tiers"][0]["blocks"], 255);
    assert_eq!(rank["longest_chains"].as_array().unwrap().len(), 1);
    assert_eq!(rank["longest_chains"][0]["blocks"], 31);

    assert_eq!(lora["summary"]["hash_forms"], json!({"digests": 6}));
    let namespaces = json!([
        {"lora": "", "salt": "", "sequences": 3},
        {"lora": "", "salt": "tenant-a", "sequences": 1},
        {"lora": "ada", "salt": "", "sequences": 1},
        {"lora": "ada", "salt": "tenant-a", "sequences": 1},
    ]);
    assert_eq!(lora["summary"]["namespaces"], namespaces);
    assert_eq!(
        lora["view"]["ranks"][0]["counted"],
        json!({"second_copy": 3})
    );
}

/// The same blocks have other hashes under another model's name, and the same under the same.
#[test]
fn the_model_s_name_makes_the_digest() {
    let digest = |args: &[&str]| {
        report(args, &events("agg.jsonl"))["view"]["ranks"][0]["tiers"][0]["digest"].clone()
    };
    assert_eq!(
        digest(&[]),
        digest(&["--model", "tiny"]),
        "the topic names it"
    );
    assert_ne!(digest(&[]), digest(&["--model", "large"]));
}

#[test]
fn stops_where_it_is_told_to() {
    let log = events("agg.jsonl");
    let report = report(&["--until", "5"], &log);
    assert_eq!(report["summary"]["messages"], 13);
    assert_eq!(report["summary"]["after_until"], 7);
    assert_eq!(report["view"]["ranks"][0]["last_seq"], 5);
    let head = lines(&log)[..6].join("\n");
    let by_hand = &reports(&replay_stdin(&["--json", "-"], head.as_bytes()))[0];
    assert_eq!(by_hand["file"], "standard input");
    assert_eq!(by_hand["view"], report["view"]);
}

#[test]
fn a_missing_line_is_a_gap() {
    let mut log = lines(&events("prefill.jsonl"));
    log.remove(10);
    let output = replay_stdin(&["--json", "-"], log.join("\n").as_bytes());
    let report = &reports(&output)[0];
    assert_eq!(
        report["summary"]["ranks"][0]["gaps"],
        json!([{"after": 9, "missing": 1}])
    );
    let rank = &report["view"]["ranks"][0];
    assert_eq!(
        (&rank["certain"], &rank["doubts"]),
        (&json!(false), &json!(["gap"]))
    );
    let text = stdout(&replay_stdin(&["-"], log.join("\n").as_bytes()));
    assert!(
        text.contains("39 messages, sequence 0 to 39, 1 missing (1 after 9)"),
        "{text}"
    );
    assert!(text.contains("rank 0       uncertain: gap"), "{text}");
    let mut log = lines(&events("prefill.jsonl"));
    log.remove(38);
    let text = stdout(&replay_stdin(&["-"], log.join("\n").as_bytes()));
    assert!(
        text.contains("blocks from before something was lost"),
        "{text}"
    );
}

/// A line with one event of one rank.
fn line(rank: u32, seq: u64, event: &Value) -> String {
    let payload = rmp_serde::to_vec(&json!([1000 + seq, [event], rank])).unwrap();
    let hex = |bytes: &[u8]| {
        let mut text = String::new();
        for byte in bytes {
            write!(text, "{byte:02x}").unwrap();
        }
        text
    };
    json!({"frames_hex": [hex(b"kv@pod@tiny"), hex(&seq.to_be_bytes()), hex(&payload)]}).to_string()
}

#[test]
fn ranks_holes_and_what_comes_twice() {
    let stored = json!({"type": "BlockStored", "block_hashes": [1, 2, 3], "parent_block_hash": null,
        "token_ids": [7, 7, 8, 8, 9, 9], "block_size": 2, "extra_keys": [null, null, null], "medium": "GPU"});
    let removed = json!({"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"});
    let strange = json!({"type": "BlockPinned", "block_hashes": [2]});
    let log = [
        line(0, 0, &stored),
        line(1, 0, &stored),
        line(1, 1, &removed),
        line(0, 1, &strange),
        line(1, 1, &removed),
    ];
    let output = replay_stdin(&["--json", "-"], log.join("\n").as_bytes());
    let report = &reports(&output)[0];
    assert_eq!(report["summary"]["counted"], json!({"unknown_event": 1}));
    let [zero, one] = &report["view"]["ranks"].as_array().unwrap()[..] else {
        panic!("{report}");
    };
    assert_eq!(
        (&zero["tiers"][0]["blocks"], &one["tiers"][0]["blocks"]),
        (&json!(3), &json!(2))
    );
    assert_eq!(
        (&zero["unreachable"], &one["unreachable"]),
        (&json!(0), &json!(1))
    );
    let chain = |blocks, tokens| json!([{"blocks": blocks, "tokens": tokens, "lora": "", "salt": "", "first_tokens": [7, 7, 8, 8, 9, 9]}]);
    assert_eq!(zero["longest_chains"], chain(3, 6));
    assert_eq!(one["longest_chains"], chain(1, 2));
    assert_eq!(one["counted"], json!({"older": 1}));
    assert_eq!(report["summary"]["ranks"][1]["older"], 1);
    let text = stdout(&replay_stdin(
        &["--until", "0", "-"],
        log.join("\n").as_bytes(),
    ));
    assert!(text.contains("3 later messages"), "{text}");
}

/// A sidecar writes down what its connections showed and no number does.
#[test]
fn what_befell_the_stream_is_heeded() {
    let stored = |hash: u64| {
        json!({"type": "BlockStored", "block_hashes": [hash], "parent_block_hash": null,
            "token_ids": [hash, hash], "block_size": 2, "extra_keys": [null], "medium": "GPU"})
    };
    let (first, next) = (line(0, 0, &stored(1)), line(0, 1, &stored(2)));
    for (between, certain, doubts, blocks) in [
        (json!({"rank": 0, "event": "lost"}), false, vec!["gap"], 1),
        (
            json!({"rank": 0, "event": "restart"}),
            false,
            vec!["joined_late"],
            1,
        ),
        (json!({"attached": {}}), false, vec!["joined_late"], 1),
        (json!({"rank": 0, "event": "silent"}), true, vec![], 2),
        (json!({"rank": 1, "event": "lost"}), true, vec![], 2),
        (
            json!({"rank": 0, "event": "of a later release"}),
            true,
            vec![],
            2,
        ),
    ] {
        let log = [first.clone(), between.to_string(), next.clone()].join("\n");
        let output = replay_stdin(&["--json", "-"], log.as_bytes());
        let rank = &reports(&output)[0]["view"]["ranks"][0];
        let seen = (
            &rank["certain"],
            &rank["doubts"],
            &rank["tiers"][0]["blocks"],
        );
        let expected = (&json!(certain), &json!(doubts), &json!(blocks));
        assert_eq!(seen, expected, "{between}");
        let output = replay_stdin(&["--json", "--until", "0", "-"], log.as_bytes());
        let rank = &reports(&output)[0]["view"]["ranks"][0];
        assert_eq!(rank["last_seq"], 0, "{between}");
    }
}

/// Damage done to one line of a good log, and what is said of it.
type Harm = (&'static str, fn(&mut Value), &'static str);

const HARMS: &[Harm] = &[
    (
        "no frames",
        |line| line["frames_hex"] = json!(null),
        "no line of KV events: it has no frames_hex",
    ),
    (
        "half a digit",
        |line| cut(line, 0, 1),
        "frame 0: an odd number of hex digits",
    ),
    (
        "no digit",
        |line| line["frames_hex"][2] = json!("zz"),
        "frame 2: no hex digits at 0",
    ),
    (
        "two frames",
        |line| drop(line["frames_hex"].as_array_mut().unwrap().pop()),
        "a message of 2 frames instead of",
    ),
    (
        "short number",
        |line| line["frames_hex"][1] = json!("00"),
        "a sequence number of 1 bytes instead of 8",
    ),
    (
        "other number",
        |line| line["seq"] = json!(77),
        "the line says sequence number 77, its frame 3",
    ),
    (
        "cut off",
        |line| cut(line, 2, 2),
        "message 3: a value is cut off at byte ",
    ),
    (
        "no batch",
        |line| line["frames_hex"][2] = json!("c0"),
        "message 3: neither an array nor a map at byte 0 of the payload",
    ),
];

fn cut(line: &mut Value, frame: usize, digits: usize) {
    let hex = line["frames_hex"][frame].as_str().unwrap();
    line["frames_hex"][frame] = json!(hex[..hex.len() - digits]);
}

#[test]
fn damage_is_told_and_counted_and_not_fatal_unless_asked() {
    let good = lines(&events("agg.jsonl"));
    for (name, harm, told) in HARMS {
        let mut log = good.clone();
        let mut line: Value = serde_json::from_str(&log[3]).unwrap();
        harm(&mut line);
        log[3] = line.to_string();
        let output = replay_stdin(&["--json", "-"], log.join("\n").as_bytes());
        let report = &reports(&output)[0];
        assert_eq!(report["damaged"], 1, "{name}");
        let said = format!("standard input: 4: {told}");
        assert!(
            stderr(&output).starts_with(&said),
            "{name}: {}",
            stderr(&output)
        );
        assert_eq!(report["damage"][0]["at"], 4);
        // What follows is read: the log ends with a cleared cache and two blocks, and all is certain again.
        let rank = &report["view"]["ranks"][0];
        assert_eq!(
            (&rank["certain"], &rank["tiers"][0]["blocks"]),
            (&json!(true), &json!(2)),
            "{name}"
        );
        let lost = rank["counted"]
            .get("gap")
            .or(rank["counted"].get("undecoded"));
        assert_eq!(lost, Some(&json!(1)), "{name}");

        let strict = replay_stdin(&["--strict", "-"], log.join("\n").as_bytes());
        assert_eq!(strict.status.code(), Some(1), "{name}");
        assert!(
            stderr(&strict).starts_with(&format!("error: {said}")),
            "{name}: {}",
            stderr(&strict)
        );
        assert_eq!(stderr(&strict).lines().count(), 1, "{name}");
    }
}

#[test]
fn a_log_may_begin_with_rubbish_and_have_empty_lines() {
    let good = lines(&events("agg.jsonl")).join("\n\n");
    let output = replay_stdin(
        &["--json", "-"],
        format!("\n{{\"recorder\": 1}}\nhello\n{good}").as_bytes(),
    );
    let report = &reports(&output)[0];
    assert_eq!(
        (&report["damaged"], &report["summary"]["messages"]),
        (&json!(2), &json!(13))
    );
    let places: Vec<&Value> = report["damage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|damage| &damage["at"])
        .collect();
    assert_eq!(places, [&json!(2), &json!(3)]);
}

#[test]
fn many_damages_are_counted_but_not_all_told() {
    let good = lines(&events("agg.jsonl")).join("\n");
    let log = format!("{good}\n{}", "rubbish\n".repeat(500));
    let output = replay_stdin(&["--json", "-"], log.as_bytes());
    assert_eq!(reports(&output)[0]["damaged"], 500);
    assert_eq!(stderr(&output).lines().count(), 21, "{}", stderr(&output));
}

#[test]
fn exchanges_with_a_replay_socket() {
    let report = report(&[], &events("replay_exchange.json"));
    assert_eq!(report["kind"], "replay_socket");
    let seen: Vec<Value> = report["exchanges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|exchange| {
            json!([
                exchange["asked_from"],
                exchange["summary"]["messages"],
                exchange["ended"],
                exchange["strange"]
            ])
        })
        .collect();
    let expected = [
        json!([11, 2, true, 0]),
        json!([9999, 0, true, 0]),
        json!([11, 0, false, 1]),
        json!([0, 1, false, 0]),
    ];
    assert_eq!(seen, expected);
    // What was published live and what was replayed are one: so are the views, though this one began in the middle.
    let live = replay(&["--json"], &[events("agg.jsonl")]);
    let live = &reports(&live)[0]["view"]["ranks"][0];
    let replayed = &report["exchanges"][0]["view"]["ranks"][0];
    assert_eq!(replayed["tiers"], live["tiers"]);
    assert_eq!(replayed["counted"]["joined_late"], 1);
    stdout(&replay(&[], &[events("replay_exchange.json")]));
}

#[test]
fn requests_and_answers() {
    let legs = report(&[], &recordings().join("split_legs.jsonl"));
    assert_eq!(
        (&legs["kind"], &legs["exchanges"]),
        (&json!("http"), &json!(129))
    );
    let routes: Vec<Value> = legs["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| {
            json!([
                route["path"],
                route["status"],
                route["with_transfer_params"],
                route["without_transfer_params"],
                route["errors"]
            ])
        })
        .collect();
    let (chat, completions) = ("/v1/chat/completions", "/v1/completions");
    assert_eq!(
        routes,
        [
            json!([chat, 200, 12, 20, 0]),
            json!([chat, 400, 0, 4, 4]),
            json!([completions, 200, 28, 58, 0]),
            json!([completions, 400, 0, 7, 7])
        ]
    );
    assert_eq!(legs["finish_reasons"], json!({"length": 103, "stop": 22}));

    let streams = report(&[], &recordings().join("streams.jsonl"));
    let errors: Vec<&Value> = streams["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| &route["errors"])
        .collect();
    assert_eq!(
        errors,
        [&json!(1), &json!(1)],
        "inside streams whose status is 200"
    );
    assert_eq!(streams["finish_reasons"], json!({"length": 3}));

    // One exchange over many lines, of which only the request and the status were kept.
    let refused = report(&[], &recordings().join("refused/lease_expired.json"));
    assert_eq!(refused["routes"][0]["asked_with_transfer_params"], 1);
    let whole = json!({"request": {"method": "POST", "path": "/v1/completions", "body": {"prompt": "a"}},
        "response": {"status": 200, "body": {"choices": [{"finish_reason": "stop"}], "kv_transfer_params": {}}}});
    let whole = replay_stdin(&["--json", "-"], whole.to_string().as_bytes());
    assert_eq!(reports(&whole)[0]["routes"][0]["with_transfer_params"], 1);
    let hostile = json!({"path": "/\u{1b}[2J", "status": 200, "answer": {}});
    let shown = stdout(&replay_stdin(&["-"], hostile.to_string().as_bytes()));
    assert!(shown.contains("/\u{fffd}[2J"), "{shown}");
    let text = stdout(&replay(&[], &[recordings().join("split_legs.jsonl")]));
    assert!(
        text.contains("86 /v1/completions: 28 with kv_transfer_params, 58 without"),
        "{text}"
    );
}

#[test]
fn handshakes() {
    let report = report(&[], &recordings().join("handshakes.json"));
    let engines = report["engines"].as_array().unwrap();
    let shape: Vec<Value> = engines
        .iter()
        .map(|engine| json!([engine["name"], engine["block_size"], engine["blocks"]]))
        .collect();
    assert_eq!(
        shape,
        [json!(["decode", 32, 256]), json!(["prefill", 32, 256])]
    );
    assert!(
        engines[0]["engine_id"]
            .as_str()
            .unwrap()
            .starts_with("decode-")
    );
    assert_eq!(report["pairs"].as_array().unwrap().len(), 2);
    assert_eq!(report["pairs"][0]["mismatch"], Value::Null);
    let text = stdout(&replay(&[], &[recordings().join("handshakes.json")]));
    assert!(text.contains("prefill to decode can hand over"), "{text}");
}

#[test]
fn what_cannot_be_read_at_all_is_one_sentence() {
    for (text, told) in [
        ("", "there is nothing in it"),
        ("\n\n", "there is nothing in it"),
        (
            "hello",
            "it is no JSON (expected value at line 1 column 1), and none of its first lines is",
        ),
        (
            "{}",
            "neither KV events, nor a replay exchange, nor requests and answers, nor handshakes",
        ),
        ("[1, 2]", "neither KV events"),
    ] {
        let output = replay_stdin(&["-"], text.as_bytes());
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).starts_with(&format!("error: standard input: {told}")),
            "{}",
            stderr(&output)
        );
        assert_eq!(stderr(&output).lines().count(), 1);
    }
    let absent = replay(&[], &["/nowhere/at/all".into()]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(
        stderr(&absent).starts_with("error: /nowhere/at/all: No such file"),
        "{}",
        stderr(&absent)
    );
}

#[test]
fn help_teaches_and_a_wrong_command_line_is_64() {
    let help = stdout(&replay(&["--help"], &[]));
    for expected in [
        "Examples:",
        "--until <SEQ>",
        "--strict",
        "--json",
        "`-` is standard input",
    ] {
        assert!(help.contains(expected), "{expected:?} is not in\n{help}");
    }
    for args in [&[][..], &["--untl", "3", "x"], &["--engine", "trtllm", "x"]] {
        let output = replay(args, &[]);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(
            stderr(&output).starts_with("error: "),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn whoever_has_seen_enough_may_go() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_baton-replay"))
        .args(std::iter::repeat_n(events("prefill.jsonl"), 50))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
}

/// What SGLang published under eviction; an oracle that shares no code with the sidecar finds the same blocks.
#[test]
fn another_engines_events_are_read_if_it_is_said_or_told() {
    let recorded =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/sglang/zmq_prefill.jsonl");
    let device = json!([{"tier": "device", "blocks": 910, "digest": "f25eb895fddbf3eb"}]);
    let said = ["--json", "--model", "tiny", "--engine", "sglang"];
    let said = replay(&said, std::slice::from_ref(&recorded));
    let messages = std::fs::read_to_string(recorded).unwrap();
    let attached = json!({"attached": {"info": {"engine": "sglang"}}});
    let told = format!("{attached}\n{messages}");
    let told = replay_stdin(&["--json", "--model", "tiny", "-"], told.as_bytes());
    for output in [said, told] {
        let [report] = &reports(&output)[..] else {
            panic!("not one report");
        };
        let rank = &report["view"]["ranks"][0];
        assert_eq!((&rank["certain"], &rank["tiers"]), (&json!(true), &device));
        assert_eq!(rank["counted"], json!({"unknown_namespace": 10}));
    }
}
