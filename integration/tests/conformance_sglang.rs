//! Recorded sessions with a real SGLang, sent again to emulated ones that were started alike.
//!
//! Where the two disagree, the emulated engine is wrong.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use baton_integration::client;
use baton_integration::conformance::answer::Answer;
use baton_integration::conformance::sglang::{
    self as recorded, Exchange, LEFT_OUT, Role, Session, laws,
};
use baton_integration::conformance::shape::Difference;
use baton_integration::conformance::socket;
use baton_integration::emulated::sglang::events::{Form, Format};
use baton_integration::emulated::sglang::{Config, EmulatedSglang, EventsConfig, Mode, Patience};
use baton_integration::emulated::speed::Speed;
use baton_integration::{ports, wait};
use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/sglang/model");

/// Of the recorded waits, with both time-outs at 20 s: short, and far beyond what a handoff takes on a busy machine.
const SCALE: f64 = 0.1;

/// The engines of a session.
struct Stage {
    engines: BTreeMap<Role, EmulatedSglang>,
    /// Where nobody listens.
    nobody: u16,
    differences: Vec<Difference>,
    compared: BTreeSet<String>,
}

fn config(mode: Mode) -> Config {
    Config {
        model: MODEL.to_owned(),
        patience: Patience {
            bootstrap: Duration::from_secs(20).mul_f64(SCALE),
            waiting: Duration::from_secs(20).mul_f64(SCALE),
            ..Patience::REAL.scaled(SCALE)
        },
        ..Config::new(mode)
    }
}

fn events() -> EventsConfig {
    EventsConfig {
        endpoint: format!("tcp://*:{}", ports::free().port()),
        replay_endpoint: Some(format!("tcp://*:{}", ports::free().port())),
        topic: "kv-events".to_owned(),
        buffer_steps: 10_000,
        format: Format::Default,
        form: Form::Maps,
    }
}

impl Stage {
    async fn start(session: Session) -> Self {
        let mut engines = BTreeMap::new();
        if session == Session::Aggregated {
            let config = Config {
                events: Some(events()),
                ..config(Mode::Null)
            };
            engines.insert(Role::Aggregated, EmulatedSglang::new(config));
        } else {
            let prefill = EmulatedSglang::new(config(Mode::Prefill));
            let decode = Config {
                bootstrap_port: prefill.bootstrap().port(),
                decode_radix_cache: session == Session::Radix,
                // What is in flight when its prefill dies must take longer than that.
                speed: Speed {
                    step: 0.5e6,
                    ..Speed::INSTANT
                },
                ..config(Mode::Decode)
            };
            let decode = EmulatedSglang::at(decode, ports::free()).unwrap();
            engines.insert(Role::Prefill, prefill);
            engines.insert(Role::Decode, decode);
        }
        for engine in engines.values() {
            engine.start().await;
        }
        Self {
            engines,
            nobody: ports::free().port(),
            differences: Vec::new(),
            compared: BTreeSet::new(),
        }
    }

    fn engine(&self, role: Role) -> &EmulatedSglang {
        &self.engines[&role]
    }

    /// Ports are another run's.
    fn body(&self, exchange: &Exchange) -> Value {
        let mut body = exchange.request.clone();
        let bootstrap = self.engines.get(&Role::Prefill);
        let bootstrap = bootstrap.map_or(0, |prefill| prefill.bootstrap().port());
        let rename = |port: &mut Value| {
            *port = match port.as_u64() {
                Some(8998) => bootstrap.into(),
                _ => self.nobody.into(),
            };
        };
        match &mut body["bootstrap_port"] {
            Value::Null => {
                if let Some(object) = body.as_object_mut() {
                    object.remove("bootstrap_port");
                }
            }
            Value::Array(ports) => ports.iter_mut().for_each(rename),
            port => rename(port),
        }
        body
    }

    async fn send(&self, exchange: &Exchange) -> Answer {
        let address = match exchange.role {
            Role::Bootstrap => self.engine(Role::Prefill).bootstrap(),
            role => self.engine(role).address(),
        };
        let body = match &exchange.request {
            Value::Null => String::new(),
            _ => self.body(exchange).to_string(),
        };
        let answer = client::call(address, &exchange.method, &exchange.path, &[], body).await;
        let content_type = answer.header("content-type").map(str::to_owned);
        Answer::read(answer.status, content_type, answer.text())
    }

    fn compare(&mut self, exchange: &Exchange, seen: &Answer) {
        if is_left_out(exchange) {
            return;
        }
        self.compared.insert(exchange.name.clone());
        self.differences.extend(recorded::compare(exchange, seen));
    }

    async fn ask(&mut self, exchange: &Exchange) {
        if !is_left_out(exchange) {
            let seen = self.send(exchange).await;
            self.compare(exchange, &seen);
        }
    }

    /// Both legs at once. A decode leg that was never answered must not be answered here, either.
    async fn both(&mut self, one: &Exchange, other: &Exchange) {
        if other.answer.is_some() {
            let (first, second) = tokio::join!(self.send(one), self.send(other));
            self.compare(one, &first);
            self.compare(other, &second);
            return;
        }
        let served = self.unanswered(one, other).await;
        self.compare(one, &served);
        self.compared.insert(other.name.clone());
    }

    async fn unanswered(&self, one: &Exchange, never: &Exchange) -> Answer {
        let waits = async {
            self.send(never).await;
            panic!("{} was answered", never.name);
        };
        let far_beyond = self.engine(Role::Decode).config().patience.waiting * 3 / 2;
        let served = async {
            let served = self.send(one).await;
            let since = Instant::now();
            wait::until("time to pass", || async { since.elapsed() > far_beyond }).await;
            served
        };
        tokio::select! {
            served = served => served,
            () = waits => unreachable!(),
        }
    }

    /// A leg that is aborted while it waits; the abort was recorded before the leg ended.
    async fn aborted(&mut self, abort: &Exchange, leg: &Exchange) {
        let later = async {
            let engine = self.engine(leg.role);
            wait::until("the leg to be there", || async { engine.working_on() == 1 }).await;
            self.send(abort).await
        };
        let (ended, told) = tokio::join!(self.send(leg), later);
        self.compare(leg, &ended);
        self.compare(abort, &told);
    }

    /// Exchanges that say by themselves how they go together.
    async fn replay(&mut self, exchanges: &[Exchange]) {
        let mut rest = exchanges;
        while let [first, behind @ ..] = rest {
            rest = behind;
            match behind.first() {
                Some(next)
                    if first.path == "/abort_request" && first.note.starts_with("abort ab") =>
                {
                    self.aborted(first, next).await;
                    rest = &behind[1..];
                }
                Some(next) if first.room().is_some() && first.room() == next.room() => {
                    self.both(first, next).await;
                    rest = &behind[1..];
                }
                _ => self.ask(first).await,
            }
        }
    }

    fn judge(self, exchanges: &[Exchange]) {
        let shown: Vec<String> = self.differences.iter().map(ToString::to_string).collect();
        assert!(shown.is_empty(), "\n{}", shown.join("\n"));
        let left = exchanges.iter().filter(|exchange| is_left_out(exchange));
        let left: BTreeSet<String> = left.map(|exchange| exchange.name.clone()).collect();
        let known = exchanges.iter().map(|exchange| exchange.name.clone());
        let accounted: BTreeSet<String> = self.compared.union(&left).cloned().collect();
        assert_eq!(accounted, known.collect());
    }
}

fn is_left_out(exchange: &Exchange) -> bool {
    LEFT_OUT.iter().any(|(name, _)| *name == exchange.name)
}

async fn replayed(session: Session) {
    let exchanges = session.exchanges();
    let mut stage = Stage::start(session).await;
    stage.replay(&exchanges).await;
    stage.judge(&exchanges);
}

/// Its metrics, its configuration and its events are judged as well.
#[tokio::test]
async fn one_server_answers_and_tells_as_recorded() {
    let exchanges = Session::Aggregated.exchanges();
    let mut stage = Stage::start(Session::Aggregated).await;
    stage.replay(&exchanges).await;
    let engine = stage.engine(Role::Aggregated).clone();

    let replay = engine
        .config()
        .events
        .clone()
        .unwrap()
        .replay_endpoint
        .unwrap();
    let replay = replay.replace('*', "127.0.0.1");
    let log = tokio::task::spawn_blocking(move || socket::replay(&replay, 0).unwrap());
    let log = log.await.unwrap();
    assert_eq!(log[0].events[0]["type"], "AllBlocksCleared", "of the start");
    match laws::compare_logs(&laws::log(), &log[1..]) {
        // All that are made of recorded tokens alone.
        Ok(pages) => assert_eq!(pages, 31 - 4),
        Err(difference) => panic!("{difference}"),
    }

    let get = async |path| client::call(engine.address(), "GET", path, &[], "").await;
    let (known, page) = (laws::families(), get("/metrics").await);
    let told = laws::types(page.served().text());
    assert!(told.len() > 10);
    for (name, kind) in told {
        assert_eq!(known.get(&name), Some(&kind), "{name}");
    }
    let info = get("/server_info").await.served().json();
    let keys = laws::server_info_keys;
    assert_eq!(keys(&info), keys(&laws::server_info()));
    stage.judge(&exchanges);
}

#[tokio::test]
async fn a_pair_answers_and_fails_as_recorded() {
    replayed(Session::Pair).await;
}

#[tokio::test]
async fn a_pair_that_evicts_answers_as_recorded() {
    replayed(Session::Evict).await;
}

#[tokio::test]
async fn a_pair_whose_decode_has_a_cache_answers_as_recorded() {
    replayed(Session::Radix).await;
}

impl Stage {
    async fn begin(&self, exchange: &Exchange) -> client::Exchange {
        let (engine, body) = (self.engine(exchange.role), self.body(exchange));
        client::start(
            engine.address(),
            "POST",
            &exchange.path,
            &[],
            body.to_string(),
        )
        .await
    }

    /// A decode client leaves; its leg is still there when prefill comes.
    async fn decode_client_leaves(&mut self, prefill: &Exchange) {
        let decode_leg = Exchange {
            role: Role::Decode,
            ..prefill.clone()
        };
        let leg = self.begin(&decode_leg).await;
        let decode = self.engine(Role::Decode);
        wait::until("the leg to be there", || async { decode.working_on() == 1 }).await;
        leg.vanish();
        self.ask(prefill).await;
    }

    /// Prefill is killed when all legs are there: whether the one on it was cut, and what the one that waits for it hears.
    async fn kill_prefill(&self, in_flight: &Exchange, waiting: &Exchange) -> (bool, Answer) {
        let (prefill, decode) = (self.engine(Role::Prefill), self.engine(Role::Decode));
        let cut = async { self.begin(in_flight).await.closed_silently().await };
        let kill = async {
            let room = self.body(waiting)["bootstrap_room"].as_u64();
            let room = room.expect("it waits in a room");
            let legs =
                || prefill.working_on() == 1 && decode.working_on() == 2 && prefill.has_open(room);
            wait::until("all legs to be there", || async { legs() }).await;
            prefill.kill().await;
        };
        let (cut, lost, ()) = tokio::join!(cut, self.send(waiting), kill);
        (cut, lost)
    }
}

/// What is recorded of a prefill that is killed, in the order in which it must have happened.
#[tokio::test]
async fn a_pair_loses_its_prefill_as_recorded() {
    let exchanges = Session::Kill.exchanges();
    let mut stage = Stage::start(Session::Kill).await;
    let [
        left,
        refused,
        told,
        long_prefill,
        in_flight,
        long_decode,
        waiting,
        dead,
        health,
    ] = &exchanges[..]
    else {
        panic!("{} exchanges", exchanges.len());
    };
    stage.decode_client_leaves(left).await;
    stage.both(refused, told).await;
    let killed = async {
        let served = stage.send(long_prefill).await;
        (served, stage.kill_prefill(in_flight, waiting).await)
    };
    let ((served, (cut, lost)), unhurt) = tokio::join!(killed, stage.send(long_decode));
    assert!(cut, "{} was answered", in_flight.name);
    stage.compared.insert(in_flight.name.clone());
    stage.compare(long_prefill, &served);
    stage.compare(waiting, &lost);
    stage.compare(long_decode, &unhurt);
    stage.ask(dead).await;
    stage.ask(health).await;
    stage.judge(&exchanges);
}

#[test]
fn nothing_is_left_out_without_a_reason() {
    let all = Session::ALL.iter().flat_map(|session| session.exchanges());
    let names: BTreeSet<String> = all.map(|exchange| exchange.name).collect();
    for (name, why) in LEFT_OUT {
        assert!(names.contains(*name), "{name}");
        assert!(why.split(' ').count() > 3, "{name}: {why}");
    }
}
