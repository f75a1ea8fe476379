//! Who is chosen, why, and who may choose: through a whole fleet of emulated engines.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use baton_integration::client::{self, Answer};
use baton_integration::emulated::vllm::Config;
use baton_integration::emulated::vllm::EventsConfig;
use baton_integration::emulated::vllm::events::HashForm;
use baton_integration::fleet::{Fleet, Setup, TOKEN};
use baton_integration::wait::until;
use serde_json::{Value, json};

fn body() -> String {
    json!({"model": "tiny", "prompt": (40..140).collect::<Vec<u32>>(), "max_tokens": 4}).to_string()
}

async fn complete_with(fleet: &Fleet, headers: &[(&str, &str)]) -> Answer {
    let json = ("content-type", "application/json");
    let headers: Vec<(&str, &str)> = [json].into_iter().chain(headers.iter().copied()).collect();
    let exchange = client::start(fleet.address(), "POST", "/v1/completions", &headers, body());
    exchange.await.finish().await
}

async fn get(fleet: &Fleet, path: &str) -> Value {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    let exchange = client::start(fleet.address(), "GET", path, &headers, "");
    exchange.await.finish().await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_of_the_fleet_may_choose_and_nobody_else() {
    let fleet = Setup::new()
        .plain("a")
        .plain("b")
        .prefill("p")
        .decode("d")
        .start()
        .await;
    let bearer = format!("Bearer {TOKEN}");
    let token = ("authorization", bearer.as_str());
    let explain = ("baton-explain", "1");
    for (route, part) in [
        ("local=a", "local worker=a"),
        ("local=b", "local worker=b"),
        ("split=p,d", "split prefill=p decode=d"),
    ] {
        let answer = complete_with(&fleet, &[token, explain, ("baton-route", route)]).await;
        let plan = answer.served().header("baton-plan").unwrap();
        assert!(plan.starts_with(part), "{plan}");
    }
    for untrusted in [vec![], vec![("authorization", "Bearer guess")]] {
        let mut headers = untrusted;
        headers.push(("baton-route", "local=a"));
        let answer = complete_with(&fleet, &headers).await;
        assert_eq!(answer.status, 401);
    }
    let answer = complete_with(&fleet, &[token, ("baton-route", "a")]).await;
    assert_eq!(answer.status, 400);
    for impossible in ["local=nobody", "split=a,b", "split=d,p"] {
        let answer = complete_with(&fleet, &[token, ("baton-route", impossible)]).await;
        assert_eq!(answer.status, 503, "{impossible}");
        assert!(
            answer.text().contains("cannot be taken"),
            "{}",
            answer.text()
        );
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_say_who_was_chosen_and_what_came_of_it() {
    let fleet = Setup::new().plain("a").plain("b").start().await;
    fleet.complete(body()).await.served();
    let decisions = get(&fleet, "/debug/decisions").await;
    let decision = &decisions["decisions"][0];
    assert_eq!(decision["request"]["prompt_tokens_estimated"], 100);
    assert_eq!(decision["chosen"]["plan"], "local");
    let worker = decision["chosen"]["worker"].as_str().unwrap();
    let other = decision["others"][0]["worker"].as_str().unwrap();
    assert_ne!(worker, other);
    assert!(decision["predicted"]["first_token"].as_f64().unwrap() > 0.0);
    assert!(decision["first_token"].as_f64().unwrap() > 0.0);
    let anybody = client::start(fleet.address(), "GET", "/debug/decisions", &[], "").await;
    assert_eq!(anybody.finish().await.status, 401);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_not_move_does_not_and_says_why() {
    let fleet = Setup::split()
        .router(&["--topology-require", "zone"])
        .start()
        .await;
    let answer = fleet.complete(body()).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    let view = fleet.view().await;
    let obstacle = view["pairs"][0]["obstacle"].as_str().unwrap();
    assert!(obstacle.contains("--topology zone="), "{obstacle}");
    let plan = fleet.post("/v1/plan", body()).await.json();
    assert_eq!(plan["forbidden"][0]["prefill"], "p0");
    fleet.finish().await;
    let fleet = Setup::split()
        .router(&["--topology-require", "zone"])
        .sidecars(&["--topology", "zone=a"])
        .start()
        .await;
    fleet.complete(body()).await.served();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_learnt_from_transfers() {
    let fleet = Setup::split().start().await;
    // Of an answer that comes whole nothing can be told of its transfer.
    fleet.complete(body()).await.served();
    for _ in 0..3 {
        let mut streamed: Value = serde_json::from_str(&body()).unwrap();
        streamed["stream"] = json!(true);
        fleet.complete(streamed.to_string()).await.served();
    }
    let pair = fleet.view().await["pairs"][0].clone();
    assert_eq!(pair["link"]["level"], "far");
    assert_eq!(pair["link"]["measured"], 3);
    let prefill = fleet.worker_view("p0").await;
    assert!(prefill["planned"]["prefills_learnt_from"].as_u64().unwrap() >= 2);
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stays_with_its_worker() {
    let fleet = Setup::new()
        .plain("a")
        .plain("b")
        .plain("c")
        .router(&["--session-header", "x-session", "--session-worth-s", "5"])
        .start()
        .await;
    let mut chosen = Vec::new();
    for _ in 0..8 {
        let headers = [("x-session", "s-1"), ("baton-explain", "1")];
        let answer = complete_with(&fleet, &headers).await;
        chosen.push(answer.served().header("baton-plan").unwrap().to_owned());
    }
    let workers: Vec<&str> = chosen
        .iter()
        .map(|plan| plan.split_whitespace().nth(1).unwrap())
        .collect();
    assert!(
        workers.iter().all(|worker| *worker == workers[0]),
        "{chosen:?}"
    );
    fleet.finish().await;
}

/// Its engine tells of hits, and no event ever comes.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_tells_of_no_events_is_suspected() {
    let silent = Config {
        prompt_tokens_details: true,
        ..Config::new(None)
    };
    let fleet = Setup::new().worker("a", silent).start().await;
    for _ in 0..12 {
        fleet.complete(body()).await.served();
    }
    let suspicions = get(&fleet, "/readyz").await["suspicions"].clone();
    assert_eq!(suspicions[0]["cause"], "events_off", "{suspicions}");
    until("the alarm to be counted", || async {
        let page = fleet.router_page().await;
        page.sum("baton_router_suspicions", &[("cause", "events_off")]) == 1
    })
    .await;
    fleet.finish().await;
}

/// One that tells of events and hits is not.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_tells_the_truth_is_trusted() {
    let honest = Config {
        prompt_tokens_details: true,
        events: Some(EventsConfig {
            endpoint: "tcp://*:0".to_owned(),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: String::new(),
            buffer_steps: 1000,
            hash_form: HashForm::Int,
        }),
        ..Config::new(None)
    };
    let fleet = Setup::new().worker("a", honest).start().await;
    for _ in 0..20 {
        fleet.complete(body()).await.served();
    }
    let ready = get(&fleet, "/readyz").await;
    assert_eq!(ready["suspicions"], json!([]));
    fleet.finish().await;
}
