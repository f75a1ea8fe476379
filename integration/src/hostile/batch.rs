//! Runs many cases at once against one daemon, judges each by its own outcome, and all by what the engines saw.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::case::{Behind, Case, Meant};
use super::plain::MARK;
use super::reply::Reply;
use crate::fleet::Fleet;
use crate::wait::PATIENCE;

/// Cases at a time.
const WIDTH: usize = 24;

/// The good request behind a bad one. Its answer shows where the daemon thinks that a request begins.
const LIVE: &[u8] = b"GET /livez HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";

/// Runs cases against the daemon at this address; names all that went wrong.
pub async fn run(address: SocketAddr, cases: &[Case]) {
    let cases = cases.iter().cloned();
    let runs = cases.map(|case| async move {
        let reply = tokio::time::timeout(PATIENCE, exchange(address, &case)).await;
        let reply = reply.map_err(|_| "no end of it".to_owned());
        let judged = reply.and_then(|reply| case.judge(&reply));
        judged.map_err(|why| format!("{}: {why}", case.name))
    });
    at_once(WIDTH, runs).await;
}

/// Runs all, so many at a time; names all that went wrong.
pub(super) async fn at_once<Run>(width: usize, runs: impl Iterator<Item = Run>)
where
    Run: Future<Output = Result<(), String>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(width));
    let mut running = JoinSet::new();
    for run in runs {
        let places = Arc::clone(&places);
        running.spawn(async move {
            let _place = places.acquire_owned().await;
            run.await
        });
    }
    let count = running.len();
    let mut wrong = Vec::new();
    while let Some(ended) = running.join_next().await {
        let judged = ended.unwrap_or_else(|error| Err(error.to_string()));
        wrong.extend(judged.err());
    }
    wrong.sort();
    assert!(
        wrong.is_empty(),
        "{} of {count} cases went wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Sends a case's bytes and returns all that comes back until the daemon closes.
async fn exchange(address: SocketAddr, case: &Case) -> Reply {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let bytes = case.bytes.clone();
    let shuts = case.behind == Behind::Shuts;
    // The daemon may answer before it has read everything, and close.
    let sent = tokio::spawn(async move {
        let _ = writing.write_all(&bytes).await;
        if shuts {
            let _ = writing.shutdown().await;
        }
        writing
    });
    let mut received = BytesMut::new();
    let mut sent = Some(sent);
    // Held to the end: dropping it would close the sending side.
    let mut _held = None;
    loop {
        let whole: Bytes = received.clone().freeze();
        let answered = Reply::cut(&whole, false).answers.len() >= case.expect.len();
        if answered
            && !shuts
            && let Some(sent) = sent.take()
        {
            let mut writing = sent.await.unwrap();
            let _ = writing.write_all(LIVE).await;
            _held = Some(writing);
        }
        match reading.read_buf(&mut received).await {
            Ok(0) | Err(_) => return Reply::cut(&received.freeze(), true),
            Ok(_) => {}
        }
    }
}

/// Headers with which a sidecar asks an engine. No client's header is among them, but for its trace.
const OURS: &[&str] = &[
    "content-length",
    "content-type",
    "host",
    "traceparent",
    "tracestate",
    "x-request-id",
];

/// Judges what these workers' engines saw: each request that was meant, once and byte for byte, and nothing else.
#[track_caller]
pub fn seen_as_meant(fleet: &Fleet, workers: &[&str], cases: &[Case]) {
    let meant = cases.iter().flat_map(|case| &case.meant);
    let meant: HashMap<&str, &Meant> = meant.map(|meant| (meant.mark.as_str(), meant)).collect();
    let mut times: HashMap<&str, usize> = HashMap::new();
    for seen in workers
        .iter()
        .flat_map(|worker| fleet.engine(worker).seen())
    {
        let known = marks_in(&seen.body).find_map(|mark| meant.get(mark));
        let known = known.unwrap_or_else(|| panic!("an engine saw {seen:?}"));
        *times.entry(known.mark.as_str()).or_default() += 1;
        if let Some(body) = &known.body {
            assert_eq!(seen.body.as_bytes(), body, "not byte for byte");
        }
        let foreign = seen
            .headers
            .iter()
            .find(|(name, _)| !OURS.contains(&name.as_str()));
        assert!(foreign.is_none(), "an engine saw the header {foreign:?}");
        let id = seen.header("x-request-id").unwrap_or_default();
        assert_ne!(id, "mine", "a client's id reached an engine");
    }
    for (mark, meant) in meant {
        let times = times.get(mark).copied().unwrap_or_default();
        let least = usize::from(meant.body.is_some());
        assert!(
            (least..=1).contains(&times),
            "{mark} was seen {times} times"
        );
    }
}

/// The marks in a body.
fn marks_in(body: &str) -> impl Iterator<Item = &str> {
    let places = body.match_indices("case-").map(|(at, _)| at);
    places.filter_map(|at| body.get(at..at + MARK))
}
