//! What operators and sidecars see: probes, the fleet, models, dry runs, registration.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{self as daemon_http, Body, read_limited};
use baton_proto::frame;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::watch::Registration;
use baton_proto::{Error, ErrorKind, Source, Stage};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use crate::args::Force;
use crate::fleet::{Knowledge, Snapshot, WorkerView};
use crate::planner::{self, Lessons, Question, Wish};
use crate::state::Router;

/// Largest registration.
const MAX_REGISTRATION: usize = 64 << 10;

/// The process is alive.
pub fn live() -> Response<Body> {
    daemon_http::json(StatusCode::OK, &json!({"alive": true}))
}

/// Whether a request should be sent here now: some worker is ready, under `--force split` some pair, and the router was not
/// asked to stop.
pub fn ready(router: &Router) -> Response<Body> {
    let snapshot = router.fleet.snapshot();
    let ready = ready_workers(&snapshot);
    let pairs = planner::pairs(&snapshot).count();
    let serves = if router.args.force == Force::Split {
        pairs > 0
    } else {
        !ready.is_empty()
    };
    let draining = router.draining.is_cancelled();
    let serves = serves && !draining;
    let status = if serves {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    daemon_http::json(
        status,
        &json!({
            "ready": serves,
            "draining": draining,
            "workers_ready": ready.len(),
            "pairs": pairs,
            "suspicions": suspicions(&snapshot),
        }),
    )
}

/// Workers of which predictions do not come true, and the likely causes.
fn suspicions(snapshot: &Snapshot) -> Vec<Value> {
    let workers = snapshot.workers.iter();
    let all = workers.flat_map(|view| {
        let causes = view.worker.trust().causes().into_iter();
        causes.map(
            |cause| json!({"worker": view.id(), "cause": cause.word(), "why": cause.to_string()}),
        )
    });
    all.collect()
}

fn ready_workers(snapshot: &Snapshot) -> Vec<&WorkerView> {
    snapshot
        .workers
        .iter()
        .filter(|worker| worker.is_well())
        .collect()
}

/// All workers, and which pairs can hand over or why not.
pub fn fleet(router: &Router) -> Response<Body> {
    let snapshot = router.fleet.snapshot();
    let now = router.planning.clock.now();
    let workers = snapshot.workers.iter().map(|view| worker(view, now));
    let workers: Vec<Value> = workers.collect();
    let mut pairs = Vec::new();
    for prefill in snapshot
        .workers
        .iter()
        .filter(|worker| worker.role().prefills())
    {
        for decode in snapshot
            .workers
            .iter()
            .filter(|worker| worker.role().decodes() && worker.id() != prefill.id())
        {
            pairs.push(pair(router, &snapshot, prefill, decode));
        }
    }
    let planned = router.metrics.prompts_planned();
    let planned = planned.map(|(known, count)| (known.word().to_owned(), count.into()));
    daemon_http::json(
        StatusCode::OK,
        &json!({
            "workers": workers,
            "pairs": pairs,
            "tokenizers": router.fleet.tokenizers().shown(),
            "queued": router.queue.waiting(),
            "prompts_planned": planned.collect::<Map<_, _>>(),
            "tokens_asked": router.fleet.tokenizers().asking_shown(),
        }),
    )
}

fn pair(router: &Router, snapshot: &Snapshot, prefill: &WorkerView, decode: &WorkerView) -> Value {
    let planner = &router.planning.planner;
    let forbidden = planner.topology.forbids(prefill.place(), decode.place());
    let obstacle = snapshot.obstacle(prefill, decode);
    let link = planner.link(
        (prefill.worker.books(), prefill.place()),
        (decode.worker.books(), decode.place()),
    );
    json!({
        "prefill": prefill.id(),
        "decode": decode.id(),
        "knowledge": Knowledge::word(snapshot.knowledge(prefill, decode)),
        "obstacle": obstacle.or_else(|| forbidden.map(|why| why.to_string())),
        "link": {
            "level": link.level,
            "bytes_per_second": link.bandwidth,
            "latency_seconds": link.latency,
            "measured": link.measured,
        },
    })
}

fn worker(view: &WorkerView, now: f64) -> Value {
    let figures = view.worker.books().figures(now);
    json!({
        "id": view.id(),
        "address": view.worker.url(""),
        "state": view.state(),
        "quarantined": view.worker.is_quarantined(),
        "reason": view.reason(),
        "breaker": view.worker.breaker().shown(),
        "role": view.info().map(|info| info.role),
        "incarnation": view.incarnation(),
        "reserved": {
            "requests": figures.own_sequences,
            "prompt_tokens": figures.own_queued_tokens,
        },
        "planned": {
            "waiting_seconds": figures.waiting,
            "sequences": figures.sequences,
            "kv_tokens": figures.kv_tokens,
            "step_seconds": figures.step,
            "prefill_tokens_per_second": figures.tokens_per_second(),
            "prefills_learnt_from": figures.learnt_from(),
            "bytes_out": figures.bytes_out,
            "bytes_in": figures.bytes_in,
        },
        "load": view.load(),
        "info": view.info(),
        "view": view.worker.view().shown(),
    })
}

/// Models that ready workers serve, in OpenAI's form.
pub fn models(router: &Router) -> Response<Body> {
    let snapshot = router.fleet.snapshot();
    let list: Vec<Value> = model_names(&snapshot)
        .into_iter()
        .map(|(name, length)| shown_model(&name, length))
        .collect();
    daemon_http::json(StatusCode::OK, &json!({"object": "list", "data": list}))
}

/// One model in OpenAI's form.
pub fn model(router: &Router, name: &str) -> Result<Response<Body>, Error> {
    let snapshot = router.fleet.snapshot();
    let found = model_names(&snapshot)
        .into_iter()
        .find(|(known, _)| known == name);
    match found {
        Some((name, length)) => Ok(daemon_http::json(
            StatusCode::OK,
            &shown_model(&name, length),
        )),
        None => {
            let shown: String = name.chars().take(100).collect();
            let message = format!("the model {shown:?} does not exist here");
            Err(Error::new(
                ErrorKind::NotFound,
                Source::Client,
                Stage::Request,
                message,
            ))
        }
    }
}

fn model_names(snapshot: &Snapshot) -> std::collections::BTreeMap<String, Option<u32>> {
    let infos = snapshot
        .workers
        .iter()
        .filter(|worker| worker.takes_work())
        .filter_map(WorkerView::info);
    let names = infos.flat_map(|info| {
        let all = info.models.iter().chain(&info.lora_adapters);
        all.map(|name| (name.clone(), info.context_length))
    });
    names.collect()
}

fn shown_model(name: &str, length: Option<u32>) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "baton", "max_model_len": length})
}

/// A dry run: how a request would be served now. Nothing is reserved. The body is that of a chat or a completion.
pub async fn plan(router: &Router, body: Bytes) -> Result<Response<Body>, Error> {
    let chat = ClientRequest::new(Route::ChatCompletions, body.clone())?;
    let request = match chat.object().get("messages") {
        Some(_) => chat,
        None => ClientRequest::new(Route::Completions, body)?,
    };
    let facts = router.facts(&request).await;
    let snapshot = router.fleet.snapshot();
    let prediction = router.predict(&snapshot, &facts);
    let ahead = router.queue.ahead(None);
    let question = Question {
        ahead: &ahead,
        snapshot: &snapshot,
        facts: &facts,
        prediction: &prediction,
        lessons: &Lessons::default(),
        wish: &Wish::default(),
    };
    let explained = planner::explain(&router.planning, &question);
    Ok(daemon_http::json(StatusCode::OK, &explained))
}

/// The last decisions, the latest first.
pub fn decisions(router: &Router) -> Response<Body> {
    let now = router.planning.clock.now();
    let decisions = router.planning.decisions.shown(now);
    daemon_http::json(StatusCode::OK, &json!({"decisions": decisions}))
}

/// A sidecar registers, renews, or says goodbye.
pub async fn register(
    router: &Arc<Router>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let read = read_limited(
        request.into_body(),
        MAX_REGISTRATION,
        Duration::from_secs(5),
    )
    .await;
    let body = read.map_err(daemon_http::BadBody::into_request_error)?;
    let registration: Registration = frame::from_bytes(&body).map_err(|bad| {
        let message = format!("the registration cannot be read: {bad}");
        Error::new(
            ErrorKind::BadRequest,
            Source::Sidecar,
            Stage::Fleet,
            message,
        )
    })?;
    let registered = router.fleet.register(registration)?;
    Ok(Response::new(daemon_http::full(frame::to_bytes(
        &registered,
    ))))
}
