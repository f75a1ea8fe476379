//! The emulated scheduler, cache and links, in virtual time and without a socket.

use std::time::Duration;

use baton_integration::emulated::core::{
    CacheUse, CoreConfig, Finish, Handoff, HeldKv, Measured, Output, Remote, Request, Sampling,
    Submitted,
};
use baton_integration::emulated::in_process::{Rank, Ranks};
use baton_integration::emulated::pool::{CacheKeys, Change};
use baton_integration::emulated::speed::Speed;
use baton_integration::emulated::vllm::Config;
use tokio::time::Instant;

/// Milliseconds are easy to follow: 10 per step, 1 per prompt token, 1 per sequence.
const SPEED: Speed = Speed {
    step: 10.0e6,
    prefill_token: 1.0e6,
    attention_pair: 0.0,
    decode_sequence: 1.0e6,
    decode_context: 0.0,
    jitter: 0.0,
};

fn config() -> CoreConfig {
    CoreConfig {
        block_size: 4,
        row_bytes: 16,
        speed: SPEED,
        ..Config::new(None).core(0)
    }
}

fn request(id: &str, prompt: &[u32], limit: usize) -> Request {
    Request {
        id: id.to_owned(),
        prompt: prompt.to_vec(),
        keys: CacheKeys::default(),
        sampling: Sampling {
            limit,
            ..Sampling::default()
        },
        handoff: Handoff::None,
        report_hits: false,
        cache: CacheUse::Whole,
    }
}

fn held(id: &str, prompt: &[u32]) -> Request {
    Request {
        handoff: Handoff::Hold,
        ..request(id, prompt, 1)
    }
}

fn fetching(id: &str, prompt: &[u32], limit: usize, held: &HeldKv) -> Request {
    Request {
        handoff: Handoff::Fetch(remote(held)),
        ..request(id, prompt, limit)
    }
}

fn remote(held: &HeldKv) -> Remote {
    Remote {
        engine_id: "prefill".to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 0,
        request_id: held.request_id.clone(),
        blocks: held.blocks.clone(),
        keep_alive: true,
        cached: 0,
        first_token: None,
    }
}

fn prompt(first: u32, length: u32) -> Vec<u32> {
    (first..first + length).collect()
}

/// All tokens of a sequence, and its end.
async fn outcome(mut submitted: Submitted) -> (Vec<u32>, Option<Finish>) {
    let mut tokens = Vec::new();
    while let Some(output) = submitted.next().await {
        let Output::Token { id, finish, .. } = output else {
            return (tokens, None);
        };
        tokens.push(id);
        if let Some(finish) = finish {
            return (tokens, Some(*finish));
        }
    }
    (tokens, None)
}

async fn tokens(rank: &Rank, request: Request) -> Vec<u32> {
    outcome(rank.submit(request)).await.0
}

async fn prefilled(rank: &Rank, id: &str, prompt: &[u32]) -> HeldKv {
    let (_, finish) = outcome(rank.submit(held(id, prompt))).await;
    finish.expect("a finished prefill").held.expect("held KV")
}

fn milliseconds(since: Instant) -> u128 {
    since.elapsed().as_millis()
}

#[tokio::test(start_paused = true)]
async fn a_step_takes_what_is_in_it() {
    let rank = Ranks::default().start("a", config());
    let started = Instant::now();
    tokens(&rank, request("r", &prompt(0, 30), 3)).await;
    // 10 + 30 for the prompt, then two steps of one sequence.
    assert_eq!(milliseconds(started), 40 + 2 * 11);
}

#[tokio::test(start_paused = true)]
async fn decode_gets_slower_with_the_batch_and_prefill_shares_its_steps() {
    let rank = Ranks::default().start(
        "a",
        CoreConfig {
            max_batched_tokens: 20,
            ..config()
        },
    );
    let mut first = rank.submit(request("first", &prompt(0, 4), 40));
    first.next().await;
    let alone = Instant::now();
    first.next().await;
    assert_eq!(milliseconds(alone), 11);
    let second = rank.submit(request("second", &prompt(100, 57), 1));
    // Three chunks of 19 tokens beside the one that decodes. The step that was under way comes first.
    first.next().await;
    for _ in 0..3 {
        let step = Instant::now();
        first.next().await;
        assert_eq!(milliseconds(step), 10 + 1 + 19);
    }
    let (tokens, _) = outcome(second).await;
    assert_eq!(tokens.len(), 1);
    let measured = rank.take_measured();
    let steps = measured.iter().filter_map(|measured| match measured {
        Measured::Step { computed, .. } => Some(*computed),
        _ => None,
    });
    assert_eq!(steps.max(), Some(20), "no step exceeds its budget");
}

#[tokio::test(start_paused = true)]
async fn attention_over_a_long_context_costs_more() {
    let speed = Speed {
        attention_pair: 1.0e5,
        ..SPEED
    };
    let rank = Ranks::default().start("a", CoreConfig { speed, ..config() });
    let mut took = Vec::new();
    for length in [50, 100] {
        let started = Instant::now();
        tokens(&rank, request("r", &prompt(1000 * length, length), 1)).await;
        took.push(milliseconds(started));
    }
    // 10 + n + n²/2 · 0.1
    assert_eq!(took, [185, 610]);
}

#[tokio::test(start_paused = true)]
async fn moved_kv_gives_the_same_tokens_as_computed_kv() {
    let ranks = Ranks::default();
    let (prefill, decode) = (
        ranks.start("prefill", config()),
        ranks.start("decode", config()),
    );
    for length in [1, 3, 4, 5, 8, 31] {
        let prompt = prompt(length * 100, length);
        let alone = Ranks::default().start("alone", config());
        let expected = tokens(&alone, request("r", &prompt, 9)).await;
        let held = prefilled(&prefill, &format!("r{length}"), &prompt).await;
        assert_eq!(held.tokens, prompt.len());
        let moved = tokens(&decode, fetching("r", &prompt, 9, &held)).await;
        assert_eq!(moved, expected, "{length} tokens");
        assert_eq!(prefill.core().holds(), 0);
    }
    assert_eq!(decode.core().stats().computed_tokens, 0);
    assert_eq!(
        decode.core().stats().external_tokens,
        1 + 3 + 4 + 5 + 8 + 31
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_missing_tail_moves() {
    let ranks = Ranks::default();
    let (prefill, decode) = (
        ranks.start("prefill", config()),
        ranks.start("decode", config()),
    );
    let (short, long) = (prompt(0, 8), prompt(0, 14));
    let expected = tokens(&decode, request("r", &long, 5)).await;
    decode.core().reset_prefix_cache();
    tokens(&decode, request("r", &short, 1)).await;
    let held = prefilled(&prefill, "r", &long).await;
    assert_eq!(
        tokens(&decode, fetching("r", &long, 5, &held)).await,
        expected
    );
    let bytes = decode
        .take_measured()
        .iter()
        .find_map(|measured| match measured {
            Measured::Transfer { bytes, blocks, .. } => Some((*bytes, *blocks)),
            _ => None,
        });
    assert_eq!(bytes, Some((2 * 4 * 16, 2)), "two of four blocks");
}

#[tokio::test(start_paused = true)]
async fn overwritten_kv_changes_the_text_and_poisons_the_cache() {
    let ranks = Ranks::default();
    let (prefill, decode) = (
        ranks.start("prefill", config()),
        ranks.start("decode", config()),
    );
    let prompt = prompt(0, 12);
    let right = tokens(&prefill, request("r", &prompt, 4)).await;
    let held = prefilled(&prefill, "r", &prompt).await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(prefill.core().holds(), 0, "the lease is over");
    prefill.core().overwrite_free();
    let wrong = tokens(&decode, fetching("r", &prompt, 4, &held)).await;
    assert_ne!(wrong, right);
    assert_ne!(
        tokens(&decode, request("r", &prompt, 4)).await,
        right,
        "its cache is poisoned"
    );
    let salted = Request {
        keys: CacheKeys {
            salt: Some("fresh".to_owned()),
            ..CacheKeys::default()
        },
        ..request("r", &prompt, 4)
    };
    assert_eq!(
        tokens(&decode, salted).await,
        right,
        "under another salt it is not"
    );
}

#[tokio::test(start_paused = true)]
async fn transfers_share_the_holders_link() {
    let ranks = Ranks::default();
    // A block of 64 bytes takes a second.
    let slow = CoreConfig {
        kv_bandwidth: Some(64.0),
        ..config()
    };
    let (prefill, decode) = (
        ranks.start("prefill", slow),
        ranks.start("decode", config()),
    );
    let (one, two) = (prompt(0, 8), prompt(100, 8));
    let held = [
        prefilled(&prefill, "1", &one).await,
        prefilled(&prefill, "2", &two).await,
    ];
    let started = Instant::now();
    tokio::join!(
        tokens(&decode, fetching("1", &one, 1, &held[0])),
        tokens(&decode, fetching("2", &two, 1, &held[1])),
    );
    assert!(
        (4000..4100).contains(&milliseconds(started)),
        "{}",
        milliseconds(started)
    );
}

#[tokio::test(start_paused = true)]
async fn kv_is_held_for_the_lease_and_longer_while_decode_says_that_it_waits() {
    let ranks = Ranks::default();
    let prefill = ranks.start("prefill", config());
    // One sequence at a time, and a long one has the place.
    let decode = ranks.start(
        "decode",
        CoreConfig {
            max_sequences: 1,
            blocks: 8192,
            ..config()
        },
    );
    let waited_for = prompt(0, 8);
    let long = decode.submit(request("long", &prompt(100, 4), 20_000));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let forgotten = prefilled(&prefill, "forgotten", &prompt(200, 8)).await;
    let held = prefilled(&prefill, "waiting", &waited_for).await;
    let mut queued = decode.submit(fetching("r", &waited_for, 1, &held));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        prefill.core().holds(),
        1,
        "{forgotten:?} is gone, the other is kept alive"
    );
    assert_eq!(prefill.core().stats().expired, 1);
    drop(long);
    assert!(matches!(queued.next().await, Some(Output::Token { .. })));
    assert_eq!(prefill.core().holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_decode_leg_that_is_given_up_gives_the_kv_back() {
    let ranks = Ranks::default();
    let prefill = ranks.start("prefill", config());
    let decode = ranks.start(
        "decode",
        CoreConfig {
            max_sequences: 1,
            ..config()
        },
    );
    let _long = decode.submit(request("long", &prompt(100, 4), 900));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = prefilled(&prefill, "r", &prompt(0, 8)).await;
    drop(decode.submit(fetching("r", &prompt(0, 8), 1, &held)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(prefill.core().holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_real_engine_does_not_survive() {
    let held = HeldKv {
        request_id: "r".to_owned(),
        blocks: vec![1],
        tokens: 4,
    };
    let without_blocks = Remote {
        blocks: Vec::new(),
        ..remote(&held)
    };
    let mortal = [
        fetching("r", &prompt(0, 5), 1, &held),
        Request {
            handoff: Handoff::Fetch(without_blocks),
            ..request("r", &prompt(0, 5), 1)
        },
    ];
    for request in mortal {
        let rank = Ranks::default().start("decode", config());
        let _request = rank.submit(request.clone());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(rank.died_of().is_some(), "{request:?}");
    }
    for message in [&b"held:x"[..], b"no colon", b"\xff:1"] {
        let rank = Ranks::default().start("prefill", config());
        prefilled(&rank, "held", &prompt(0, 5)).await;
        rank.core().notified(message);
        assert!(rank.died_of().is_some(), "{message:?}");
    }
    for harmless in [
        &b"unknown:x"[..],
        b"HB:",
        b"HB:unknown",
        b"held:0",
        b"held:2",
    ] {
        let rank = Ranks::default().start("prefill", config());
        prefilled(&rank, "held", &prompt(0, 5)).await;
        rank.core().notified(harmless);
        assert_eq!(
            (rank.died_of(), rank.core().holds()),
            (None, 1),
            "{harmless:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_of_nothing_waits_for_ever_and_kills_when_it_is_given_up() {
    let rank = Ranks::default().start("decode", config());
    let stuck = rank.submit(Request {
        handoff: Handoff::FetchOfNothing,
        ..request("stuck", &prompt(0, 5), 1)
    });
    // Others are served meanwhile.
    assert_eq!(
        tokens(&rank, request("r", &prompt(100, 5), 2)).await.len(),
        2
    );
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(rank.died_of(), None);
    drop(stuck);
    assert!(rank.died_of().is_some());
}

#[tokio::test(start_paused = true)]
async fn full_blocks_are_announced_and_evicted_tail_first() {
    let rank = Ranks::default().start(
        "a",
        CoreConfig {
            blocks: 5,
            ..config()
        },
    );
    // Four of prompt and four of answer are two blocks; the last token's KV is never computed.
    let said = tokens(&rank, request("r", &prompt(0, 6), 3)).await;
    let changes = rank.take_changes();
    let [
        Change::Stored {
            parent: None,
            hashes: first,
            tokens: full,
            ..
        },
        Change::Stored {
            parent,
            tokens: generated,
            ..
        },
    ] = &changes[..]
    else {
        panic!("{changes:?}");
    };
    assert_eq!(full, &prompt(0, 4));
    assert_eq!(generated[..], [4, 5, said[0], said[1]]);
    assert_eq!(parent.as_ref(), first.last());
    tokens(&rank, request("r", &prompt(100, 16), 1)).await;
    let changes = rank.take_changes();
    let removed = changes
        .iter()
        .filter(|change| matches!(change, Change::Removed(_)));
    assert_eq!(removed.count(), 2);
    let position = |wanted: &Change| changes.iter().position(|change| change == wanted);
    assert!(
        position(&Change::Removed(first[0])) > Some(0),
        "the tail went before it: {changes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn hits_are_silent_unless_asked_for() {
    let rank = Ranks::default().start("a", config());
    let long = prompt(0, 9);
    tokens(&rank, request("r", &long, 1)).await;
    rank.take_changes();
    tokens(&rank, request("r", &long, 1)).await;
    assert_eq!(rank.take_changes(), []);
    assert_eq!(rank.core().stats().cache_hits, 8);
    let told = Request {
        report_hits: true,
        ..request("r", &long, 1)
    };
    tokens(&rank, told).await;
    assert!(
        matches!(&rank.take_changes()[..], [Change::Stored { hashes, .. }] if hashes.len() == 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_cleared_cache_is_told_of_late() {
    let rank = Ranks::default().start("a", config());
    tokens(&rank, request("r", &prompt(0, 9), 1)).await;
    rank.take_changes();
    rank.core().reset_prefix_cache();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rank.take_changes(), []);
    tokens(&rank, request("r", &prompt(0, 9), 1)).await;
    let changes = rank.take_changes();
    assert!(
        matches!(&changes[..], [Change::Cleared, Change::Stored { .. }]),
        "{changes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_is_preempted_and_says_the_same_in_the_end() {
    let small = CoreConfig {
        blocks: 8,
        ..config()
    };
    let expected: Vec<_> = [0, 100]
        .map(|first| async move {
            let alone = Ranks::default().start("alone", config());
            tokens(&alone, request("r", &prompt(first, 8), 12)).await
        })
        .into_iter()
        .collect::<Vec<_>>();
    let rank = Ranks::default().start("a", small);
    let (first, second) = tokio::join!(
        tokens(&rank, request("1", &prompt(0, 8), 12)),
        tokens(&rank, request("2", &prompt(100, 8), 12)),
    );
    let mut alone = Vec::new();
    for tokens in expected {
        alone.push(tokens.await);
    }
    assert_eq!([first, second][..], alone[..]);
    assert!(rank.core().stats().preemptions > 0);
    assert_eq!(rank.core().stats().blocks_used, 0);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_engine_makes_no_progress_and_forgets_nothing() {
    let rank = Ranks::default().start("a", config());
    let mut submitted = rank.submit(request("r", &prompt(0, 8), 5));
    submitted.next().await;
    rank.core().freeze(true);
    // The step that was under way comes to its end.
    submitted.next().await;
    let stuck = tokio::time::timeout(Duration::from_secs(3600), submitted.next()).await;
    assert!(stuck.is_err());
    rank.core().freeze(false);
    assert_eq!(outcome(submitted).await.0.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_abort_from_outside_is_an_answer() {
    let rank = Ranks::default().start("a", config());
    let mut submitted = rank.submit(request("cmpl-x-0-1234abcd", &prompt(0, 8), 500));
    submitted.next().await;
    rank.core().abort_by_id("cmpl-x");
    assert!(matches!(submitted.next().await, Some(Output::Token { .. })));
    rank.core().abort_by_id("cmpl-x-0");
    let mut last = submitted.next().await;
    while matches!(last, Some(Output::Token { .. })) {
        last = submitted.next().await;
    }
    assert_eq!(last, Some(Output::Aborted));
    assert_eq!(rank.core().stats().blocks_used, 0);
}

#[tokio::test(start_paused = true)]
async fn failed_loads_fail_or_are_computed_as_told() {
    let held = HeldKv {
        request_id: "r".to_owned(),
        blocks: vec![1, 2],
        tokens: 8,
    };
    let prompt = prompt(0, 8);
    let nowhere = || fetching("r", &prompt, 4, &held);
    let failing = Ranks::default().start("decode", config());
    assert_eq!(
        failing.submit(nowhere()).next().await,
        Some(Output::LoadFailed)
    );
    let recompute = CoreConfig {
        recompute_failed_loads: true,
        ..config()
    };
    let computing = Ranks::default().start("decode", recompute);
    let right = tokens(&failing, request("r", &prompt, 4)).await;
    assert_eq!(tokens(&computing, nowhere()).await, right);
    for rank in [&failing, &computing] {
        assert_eq!(rank.core().stats().failed_transfers, 1);
    }
}
