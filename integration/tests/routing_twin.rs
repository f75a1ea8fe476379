//! The engines of the routing benchmark decide what the emulated ones decide: the same requests, on both, in virtual time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use baton_integration::emulated::core::{
    CacheUse, CoreConfig, Finish, Handoff, HeldKv, Output, Remote, Request, Sampling, Submitted,
};
use baton_integration::emulated::in_process::{Rank, Ranks};
use baton_integration::emulated::pool::CacheKeys;
use baton_integration::emulated::speed::Speed;
use baton_integration::emulated::vllm::Config;
use baton_integration::routing::engine::{EngineConfig, Stats};
use baton_integration::routing::policy::{Arrival, Choice, News, Policy, Seen};
use baton_integration::routing::setting::{Delays, Worker};
use baton_integration::routing::simulation;
use baton_integration::routing::trace::{self, Trace, chained};
use baton_proto::worker::Role;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

const BLOCK: u32 = 4;
const ROW: u8 = 16;

/// Bytes per second: a block takes 700 ms.
const LINK: f64 = 4.0 * 16.0 / 0.7;

/// Tokio's timers know whole milliseconds, so everything here takes some of them. Two engines of different speeds: what
/// happens in the same millisecond has no order that both could have.
const SPEEDS: [Speed; 2] = [speed(1009.0), speed(1201.0)];

const fn speed(milliseconds: f64) -> Speed {
    Speed {
        step: milliseconds * 1e6,
        prefill_token: 103.0e6,
        attention_pair: 2.0e6,
        decode_sequence: 31.0e6,
        decode_context: 1.0e6,
        jitter: 0.0,
    }
}

/// What both are asked.
#[derive(Debug, Clone)]
struct Asked {
    at: Duration,
    prompt: Vec<u32>,
    answer: u32,
    choice: Choice,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answered {
    first_token_ms: u128,
    end_ms: u128,
    cached: usize,
}

/// What came of all.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    answered: Vec<Answered>,
    /// Steps and preemptions of each engine.
    counts: Vec<(u64, u64)>,
}

/// How large both engines are.
#[derive(Debug, Clone, Copy)]
struct Size {
    blocks: u32,
    max_batched_tokens: usize,
    max_sequences: usize,
    link: Option<f64>,
}

#[tokio::test(start_paused = true)]
async fn a_cold_and_a_warm_prompt() {
    let asked = [
        local(0, 1, &[1; 30], 5),
        local(0, 90_002, &[1; 30], 5),
        local(1, 180_003, &[2; 8], 1),
    ];
    let outcome = both(&asked, ROOMY).await;
    let cached: Vec<usize> = outcome.answered.iter().map(|of| of.cached).collect();
    assert_eq!(cached, [0, 28, 0]);
    // A prompt of 30 in two steps of at most 24 tokens, then four of one token.
    assert_eq!(outcome.counts[0].0, 2 + 4 + 1 + 4);
}

#[tokio::test(start_paused = true)]
async fn moved_kv_arrives_when_it_arrives() {
    let asked = [
        split(1, &[1; 13], 6),
        split(60_002, &[1; 13], 3),
        local(1, 120_003, &[1; 13], 2),
    ];
    for link in [None, Some(LINK)] {
        let outcome = both(&asked, Size { link, ..ROOMY }).await;
        let cached: Vec<usize> = outcome.answered.iter().map(|of| of.cached).collect();
        assert_eq!(cached, [0, 12, 12]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_youngest_lose_their_place() {
    let asked: Vec<Asked> = (1..=6)
        .map(|of| local(0, u64::from(of), &[of; 11], 18))
        .collect();
    let outcome = both(
        &asked,
        Size {
            blocks: 20,
            ..ROOMY
        },
    )
    .await;
    assert!(outcome.counts[0].1 > 0, "nobody was preempted");
}

#[tokio::test(start_paused = true)]
async fn any_load_is_served_alike() {
    let (mut preempted, mut cached) = (0, 0);
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let splits = seed % 2 == 0;
        let size = Size {
            // Not both: the emulated engine miscounts what a fetched sequence computed that lost its place.
            blocks: if splits {
                170
            } else {
                random.random_range(18..60)
            },
            ..some_size(&mut random)
        };
        let outcome = both(&some_load(splits, &mut random), size).await;
        let counts = outcome.counts.iter();
        preempted += counts.map(|(_, preempted)| preempted).sum::<u64>();
        cached += outcome.answered.iter().map(|of| of.cached).sum::<usize>();
    }
    assert!(
        preempted > 0 && cached > 0,
        "{preempted} preemptions and {cached} cached tokens are too easy"
    );
}

/// A preempted sequence stands before fetched ones that hold the blocks it needs: those go first, and all are served.
#[test]
fn a_tight_cache_serves_every_request() {
    let mut preempted = 0;
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let size = Size {
            blocks: random.random_range(18..40),
            ..some_size(&mut random)
        };
        let asked = some_load(true, &mut random);
        let outcome = twin(&asked, size);
        preempted += outcome.counts[1].1;
    }
    assert!(preempted > 0);
}

fn some_size(random: &mut StdRng) -> Size {
    Size {
        max_batched_tokens: random.random_range(8..40),
        max_sequences: random.random_range(1..8),
        // Transfers at the same time are where the two differ: by block in turns there, in fair shares here.
        ..ROOMY
    }
}

const ROOMY: Size = Size {
    blocks: 100,
    max_batched_tokens: 24,
    max_sequences: 8,
    link: None,
};

fn local(worker: usize, at_ms: u64, prompt: &[u32], answer: u32) -> Asked {
    Asked {
        at: Duration::from_millis(at_ms),
        prompt: prompt.to_vec(),
        answer,
        choice: Choice::Local { worker },
    }
}

fn split(at_ms: u64, prompt: &[u32], answer: u32) -> Asked {
    Asked {
        choice: Choice::Split {
            prefill: 0,
            decode: 1,
        },
        ..local(0, at_ms, prompt, answer)
    }
}

/// Prompts of which many begin alike, in no particular rhythm.
fn some_load(splits: bool, random: &mut StdRng) -> Vec<Asked> {
    let mut at = 0;
    (0..14)
        .map(|_| {
            at += random.random_range(1..9_000);
            let beginning = random.random_range(0..3);
            let shared = random.random_range(0..30);
            let own = random.random_range(1..14);
            let mut prompt = vec![beginning; shared];
            prompt.extend((0..own).map(|_| random.random_range(100..200_u32)));
            let answer = random.random_range(1..20);
            match random.random_range(0..4) {
                0 => local(0, at, &prompt, answer),
                1 => local(1, at, &prompt, answer),
                _ if splits => split(at, &prompt, answer),
                _ => local(0, at, &prompt, answer),
            }
        })
        .collect()
}

/// Asks both and compares.
async fn both(asked: &[Asked], size: Size) -> Outcome {
    let emulated = emulated(asked, size).await;
    let twin = twin(asked, size);
    assert_eq!(twin, emulated, "{size:?} {asked:?}");
    twin
}

/// Does what it is told, and notes when what happened.
struct Script<'a> {
    asked: &'a [Asked],
    first_token: HashMap<u32, f64>,
    end: HashMap<u32, (f64, usize)>,
}

impl Policy for Script<'_> {
    fn name(&self) -> &'static str {
        "script"
    }

    fn choose(&mut self, _now: f64, request: &Arrival, _fleet: &Seen<'_>) -> Choice {
        self.asked[request.request as usize].choice
    }

    fn told(&mut self, now: f64, news: &News<'_>) {
        match *news {
            News::FirstToken { request, .. } => {
                self.first_token.insert(request, now);
            }
            News::Finished {
                request, cached, ..
            } => {
                self.end.insert(request, (now, cached as usize));
            }
            _ => {}
        }
    }
}

fn twin(asked: &[Asked], size: Size) -> Outcome {
    let trace = Trace {
        name: "script",
        requests: asked.iter().map(traced).collect(),
    };
    let workers: Vec<Worker> = SPEEDS.map(|speed| worker(speed, size)).to_vec();
    let delays = Delays {
        hop: 0.0,
        event: 0.0,
        report_interval: 1.0,
        report: 0.0,
        transfer: 0.0,
        lease: 1e6,
    };
    let mut script = Script {
        asked,
        first_token: HashMap::new(),
        end: HashMap::new(),
    };
    let outcome = simulation::run(&trace, 1.0, &workers, delays, &mut script);
    let outcome = outcome.expect("every request ends");
    let answered = (0..).zip(asked).map(|(request, _)| {
        let (end, cached) = script.end[&request];
        Answered {
            first_token_ms: milliseconds(script.first_token[&request]),
            end_ms: milliseconds(end),
            cached,
        }
    });
    let counts = |stats: &Stats| (stats.steps, stats.preemptions);
    Outcome {
        answered: answered.collect(),
        counts: outcome.engines.iter().map(counts).collect(),
    }
}

fn milliseconds(seconds: f64) -> u128 {
    let nanoseconds = Duration::from_secs_f64(seconds).as_nanos();
    assert_eq!(
        (nanoseconds + 2) % 1_000_000 / 5,
        0,
        "{seconds} s is no whole millisecond"
    );
    (nanoseconds + 2) / 1_000_000
}

fn worker(speed: Speed, size: Size) -> Worker {
    Worker {
        role: Role::Any,
        engine: EngineConfig {
            block_size: BLOCK,
            blocks: size.blocks,
            max_batched_tokens: size.max_batched_tokens,
            max_sequences: size.max_sequences,
            speed,
            seed: 0,
        },
        card: size.link.unwrap_or(f64::MAX),
        kv_bytes_per_token: ROW.into(),
        tells: true,
    }
}

fn traced(asked: &Asked) -> trace::Request {
    let blocks = asked
        .prompt
        .chunks_exact(BLOCK as usize)
        .scan(0, |parent, tokens| {
            *parent = tokens
                .iter()
                .fold(*parent, |hash, token| chained(hash, u64::from(*token)));
            Some(*parent)
        });
    trace::Request {
        at: asked.at.as_secs_f64(),
        prompt: u32::try_from(asked.prompt.len()).expect("a short prompt"),
        answer: asked.answer,
        blocks: blocks.collect(),
    }
}

async fn emulated(asked: &[Asked], size: Size) -> Outcome {
    let ranks = Ranks::default();
    let mut number = 0;
    let engines = SPEEDS.map(|speed| {
        number += 1;
        Arc::new(ranks.start(&format!("{}", number - 1), core(speed, size)))
    });
    let started = Instant::now();
    let tasks: Vec<_> = (0..)
        .zip(asked)
        .map(|(number, asked)| {
            let (asked, engines) = (asked.clone(), engines.clone());
            tokio::spawn(async move {
                tokio::time::sleep_until(started + asked.at).await;
                answer(number, &asked, &engines, started).await
            })
        })
        .collect();
    let mut answered = Vec::new();
    for task in tasks {
        answered.push(task.await.expect("an answer"));
    }
    let counts = engines.iter().map(|rank| {
        let stats = rank.core().stats();
        assert_eq!((stats.blocks_used, stats.expired), (0, 0));
        (stats.steps, stats.preemptions)
    });
    Outcome {
        answered,
        counts: counts.collect(),
    }
}

fn core(speed: Speed, size: Size) -> CoreConfig {
    CoreConfig {
        block_size: BLOCK,
        // With the null block.
        blocks: size.blocks + 1,
        row_bytes: ROW.into(),
        max_batched_tokens: size.max_batched_tokens,
        max_sequences: size.max_sequences,
        speed,
        kv_bandwidth: size.link,
        lease: Duration::from_secs(1_000_000),
        ..Config::new(None).core(0)
    }
}

async fn answer(
    number: u32,
    asked: &Asked,
    engines: &[Arc<Rank>; 2],
    started: Instant,
) -> Answered {
    let request = |limit, handoff| Request {
        id: number.to_string(),
        prompt: asked.prompt.clone(),
        keys: CacheKeys::default(),
        sampling: Sampling {
            limit,
            ignore_end: true,
            // Nobody else's, so that what is generated is cached for nobody.
            always: Some(1_000 + number),
            ..Sampling::default()
        },
        handoff,
        report_hits: false,
        cache: CacheUse::Whole,
    };
    let limit = asked.answer as usize;
    match asked.choice {
        Choice::Split { prefill, decode } => {
            let held = engines[prefill].submit(request(1, Handoff::Hold));
            let (_, _, finish) = followed(held, started).await;
            let remote = remote(prefill, finish.held.expect("held KV"));
            let fetching = request(limit, Handoff::Fetch(remote));
            let (first, end, _) = followed(engines[decode].submit(fetching), started).await;
            Answered {
                first_token_ms: first,
                end_ms: end,
                cached: finish.cached,
            }
        }
        Choice::Local { worker } => {
            let whole = engines[worker].submit(request(limit, Handoff::None));
            let (first, end, finish) = followed(whole, started).await;
            Answered {
                first_token_ms: first,
                end_ms: end,
                cached: finish.cached,
            }
        }
        Choice::Refuse => unreachable!("the script refuses nothing"),
    }
}

fn remote(engine: usize, held: HeldKv) -> Remote {
    Remote {
        engine_id: engine.to_string(),
        host: "127.0.0.1".to_owned(),
        port: 0,
        request_id: held.request_id,
        blocks: held.blocks,
        keep_alive: false,
        cached: 0,
        first_token: None,
    }
}

/// When the first and the last token came, and how it ended.
async fn followed(mut submitted: Submitted, started: Instant) -> (u128, u128, Finish) {
    let mut first = None;
    loop {
        let output = submitted.next().await.expect("it ends by itself");
        let Output::Token { finish, .. } = output else {
            panic!("{output:?}");
        };
        let now = started.elapsed().as_millis();
        let first = *first.get_or_insert(now);
        if let Some(finish) = finish {
            return (first, now, *finish);
        }
    }
}
