//! What routers know of engines' KV caches while everything comes and goes: engines, sidecars, routers, and the events.
//!
//! At every quiet point each router knows what each sidecar does, which is what the engine holds, or less where it is
//! said to be uncertain. `BATON_VIEW_ROUNDS` asks for more rounds than the few that every run of the tests makes.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::emulated::vllm::publisher::{EventFault, Mangled};
use baton_integration::emulated::vllm::{Config, EngineId, EventsConfig, MODEL};
use baton_integration::fleet::{self, Fleet, Setup};
use baton_integration::ports;
use baton_integration::wait::{PATIENCE, until};
use baton_integration::{client, kv_scene};
use baton_proto::digest::BlockSetDigest;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const BLOCK: u32 = 16;
const WORKERS: [&str; 2] = ["a", "b"];
const ROUTERS: usize = 2;

fn engine() -> Config {
    Config {
        events: Some(EventsConfig {
            endpoint: format!("tcp://*:{}", ports::free().port()),
            replay_endpoint: Some(format!("tcp://{}", ports::free())),
            topic: "kv@tiny".to_owned(),
            buffer_steps: 300,
            hash_form: HashForm::Int,
        }),
        block_size: BLOCK,
        blocks: 40,
        ..Config::new(None)
    }
}

fn prompt(random: &mut StdRng) -> Value {
    let (shared, beginning) = (random.random_range(0..4_u32), random.random_range(1..150));
    let mut prompt: Vec<u32> = (0..beginning)
        .map(|at| 40 + (at * (shared + 3)) % 80)
        .collect();
    prompt.extend((0..40).map(|_| random.random_range(40..120_u32)));
    json!({"model": MODEL, "prompt": prompt, "max_tokens": random.random_range(1..24)})
}

/// What an engine holds: how many blocks, and their digest.
fn held(fleet: &Fleet, name: &str) -> (u64, u64) {
    let blocks = kv_scene::held(fleet.engine(name), 0);
    let digest: BlockSetDigest = blocks.iter().copied().collect();
    (blocks.len() as u64, digest.value())
}

/// What one router knows of one engine.
#[derive(Debug, PartialEq)]
struct Known {
    certain: bool,
    blocks: u64,
    digest: u64,
}

async fn known(fleet: &Fleet, router: usize, name: &str) -> Option<Known> {
    let view = fleet::view(fleet.router_address(router)).await;
    let mut workers = view["workers"].as_array()?.iter();
    let worker = workers.find(|worker| worker["id"] == name)?;
    let rank = worker["view"]["ranks"].get(0)?;
    let digest = rank["digest"]["device"].as_str().unwrap_or("0");
    Some(Known {
        certain: rank["certain"].as_bool()?,
        blocks: rank["blocks"]["device"].as_u64().unwrap_or_default(),
        digest: u64::from_str_radix(digest, 16).ok()?,
    })
}

struct Story {
    fleet: Fleet,
    random: StdRng,
}

impl Story {
    async fn new(seed: u64) -> Self {
        let setup = WORKERS
            .iter()
            .fold(Setup::new().routers(ROUTERS), |setup, name| {
                setup.worker(name, engine())
            });
        Self {
            fleet: setup.start().await,
            random: StdRng::seed_from_u64(seed),
        }
    }

    fn worker(&mut self) -> &'static str {
        WORKERS[self.random.random_range(0..WORKERS.len())]
    }

    /// Straight to an engine, so that no router has a say in what is cached where.
    async fn ask(&mut self, name: &str) {
        let body = prompt(&mut self.random).to_string();
        let address = self.fleet.engine(name).address();
        let headers = [("content-type", "application/json")];
        let answer = client::call(
            address,
            "POST",
            "/v1/completions",
            &headers,
            body.as_bytes(),
        );
        answer.await.served();
    }

    async fn ask_some(&mut self) {
        for _ in 0..self.random.random_range(1..6) {
            let name = self.worker();
            self.ask(name).await;
        }
    }

    /// Sooner or later every router knows exactly what every engine holds.
    async fn is_exact(&self, what: &str) {
        for router in 0..ROUTERS {
            for name in WORKERS {
                let exact = || async {
                    let (blocks, digest) = held(&self.fleet, name);
                    let certain = Known {
                        certain: true,
                        blocks,
                        digest,
                    };
                    known(&self.fleet, router, name).await == Some(certain)
                };
                let wait = tokio::time::timeout(PATIENCE * 3 / 4, until("it", exact)).await;
                if wait.is_err() {
                    let known = known(&self.fleet, router, name).await;
                    let held = held(&self.fleet, name);
                    panic!(
                        "{what}: router {router} knows {known:?} of {name}, which holds {held:?}"
                    );
                }
            }
        }
    }

    /// All routers know the same of an engine, which is not more than it holds, and say that it is uncertain.
    async fn is_uncertain(&self, name: &str, what: &str) {
        for router in 0..ROUTERS {
            let uncertain = || async {
                known(&self.fleet, router, name)
                    .await
                    .is_some_and(|known| !known.certain)
            };
            until(&format!("{what}: {name} to be uncertain"), uncertain).await;
        }
        let same = || async {
            let page = self.fleet.sidecar_page(name).await;
            let told = page.sum("baton_sidecar_view_blocks", &[("tier", "device")]);
            let one = known(&self.fleet, 0, name).await;
            let other = known(&self.fleet, 1, name).await;
            let blocks = one.as_ref().map(|known| known.blocks);
            one == other && blocks == u64::try_from(told).ok()
        };
        until(&format!("{what}: routers to agree"), same).await;
        let known = known(&self.fleet, 0, name).await.unwrap();
        assert!(
            known.blocks <= held(&self.fleet, name).0,
            "{what}: {known:?}"
        );
    }

    fn raise(&self, name: &str, fault: EventFault) {
        self.fleet
            .engine(name)
            .event_faults(0)
            .unwrap()
            .raise(fault);
    }

    /// Something happens that leaves nothing unknown.
    async fn happen(&mut self) -> String {
        let name = self.worker();
        match self.random.random_range(0..8) {
            0 => {
                let id = [EngineId::Same, EngineId::New][self.random.random_range(0..2)];
                self.fleet.engine(name).restart(id).await;
                format!("{name}'s engine begins anew")
            }
            1 => {
                self.fleet.take_sidecar(name).kill();
                self.ask_some().await;
                self.fleet.start_sidecar(name).await;
                format!("{name}'s sidecar begins anew")
            }
            2 => {
                let router = self.random.random_range(0..ROUTERS);
                self.fleet.take_router(router).kill();
                self.ask_some().await;
                self.fleet.start_router(router).await;
                format!("router {router} begins anew")
            }
            3 => {
                self.fleet.engine(name).reset_prefix_cache();
                self.ask(name).await;
                format!("{name}'s cache is reset")
            }
            4 => {
                self.raise(name, EventFault::Hold);
                self.ask_some().await;
                self.fleet.engine(name).event_faults(0).unwrap().clear();
                format!("{name}'s events are held up")
            }
            5 => {
                self.raise(name, EventFault::SwapNextTwo);
                format!("{name}'s events overtake each other")
            }
            6 => {
                self.raise(name, EventFault::Mangle(Mangled::ShortSequence));
                format!("one of {name}'s messages is damaged")
            }
            _ => {
                let batches = self.random.random_range(1..4);
                let replayable = true;
                self.raise(
                    name,
                    EventFault::Lose {
                        batches,
                        replayable,
                    },
                );
                format!("{batches} of {name}'s messages are lost")
            }
        }
    }

    /// Something is lost for good, and the cache is reset.
    async fn lose(&mut self) {
        let name = self.worker();
        let replayable = false;
        self.raise(
            name,
            EventFault::Lose {
                batches: 1,
                replayable,
            },
        );
        self.ask(name).await;
        self.fleet.engine(name).event_faults(0).unwrap().clear();
        self.ask(name).await;
        self.is_uncertain(name, "a message was lost for good").await;
        self.fleet.engine(name).reset_prefix_cache();
        self.ask(name).await;
        self.is_exact("the cache was reset").await;
    }
}

async fn story(seed: u64, rounds: u64) {
    let mut story = Story::new(seed).await;
    for round in 0..rounds {
        story.ask_some().await;
        let mut what = story.happen().await;
        story.ask_some().await;
        if story.random.random_bool(0.5) {
            what = format!("{what}, and {}", story.happen().await);
            story.ask_some().await;
        }
        for name in WORKERS {
            story.fleet.engine(name).event_faults(0).unwrap().clear();
        }
        story
            .is_exact(&format!("seed {seed}, round {round}: {what}"))
            .await;
        if round % 3 == 2 {
            story.lose().await;
        }
    }
    for router in 0..ROUTERS {
        let page = fleet::page(story.fleet.router_address(router)).await;
        assert_eq!(page.sum("baton_router_view_resyncs_total", &[]), 0);
    }
    story.fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_router_knows_what_every_engine_holds() {
    let asked = std::env::var("BATON_VIEW_ROUNDS").ok();
    let rounds = asked.map_or(6, |rounds| rounds.parse().unwrap());
    let stories: Vec<_> = (0..2)
        .map(|seed| tokio::spawn(story(seed, rounds)))
        .collect();
    for story in stories {
        story.await.unwrap();
    }
}

/// Requests go through the router here, so that the sidecar has a say in what is asked of the engine.
async fn complete(fleet: &Fleet, random: &mut StdRng) {
    fleet.complete(prompt(random).to_string()).await.served();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_engine_of_which_not_all_is_known_is_made_to_forget() {
    let setup = Setup::new()
        .worker("a", engine())
        .sidecars(&["--reset-uncertain-cache"]);
    let fleet = setup.start().await;
    let mut random = StdRng::seed_from_u64(3);
    let resets = || async {
        let page = fleet.sidecar_page("a").await;
        page.sum("baton_sidecar_view_resets_total", &[])
    };
    let certain = || async {
        known(&fleet, 0, "a")
            .await
            .is_some_and(|known| known.certain)
    };
    complete(&fleet, &mut random).await;
    until("what is held to be known", certain).await;
    let fault = EventFault::Lose {
        batches: 1,
        replayable: false,
    };
    fleet.engine("a").event_faults(0).unwrap().raise(fault);
    complete(&fleet, &mut random).await;
    complete(&fleet, &mut random).await;
    until("the loss to be known", || async { !certain().await }).await;
    // The first reset is told amid the reports of the next request; the second one is believed.
    for expected in 1..=2 {
        until("a reset", || async { resets().await == expected }).await;
        complete(&fleet, &mut random).await;
    }
    until("what is held to be known again", certain).await;
    let (blocks, digest) = held(&fleet, "a");
    let all = Known {
        certain: true,
        blocks,
        digest,
    };
    assert_eq!(known(&fleet, 0, "a").await, Some(all));
    fleet.finish().await;
}
