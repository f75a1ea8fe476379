//! Sessions with a scripted sidecar: what is asked of it, and what becomes of its worker.

use std::sync::Mutex;

use baton_daemon::http::{Body, BoxError, Handler, Limits, serve};
use baton_daemon::metrics::Registry;
use baton_index::{Found, Index};
use baton_proto::event::{Blocks, KvEvent, ViewState};
use baton_proto::frame;
use baton_proto::hash::SequenceHash;
use baton_proto::token::FleetToken;
use baton_proto::watch::{Registration, SidecarState};
use baton_proto::worker::Tier;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::*;
use crate::fleet::testing::TTL;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::view::tests::info;

const PATIENCE: Duration = Duration::from_secs(20);

/// A watch stream that the router opened.
struct Stream {
    query: Option<String>,
    frames: mpsc::Sender<Bytes>,
}

/// Hands every watch stream to the test.
struct Scripted(mpsc::Sender<Stream>);

impl Handler for Scripted {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let (router, rest) = query.split_once('&').unwrap_or((query, ""));
        assert!(router.starts_with("router="), "it says who it is: {query}");
        let query = (!rest.is_empty()).then(|| rest.to_owned());
        let (frames, said) = mpsc::channel(16);
        self.0.send(Stream { query, frames }).await.unwrap();
        let said = futures_util::stream::unfold(said, |mut said| async {
            let bytes = said.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(bytes)), said))
        });
        Response::new(StreamBody::new(said).boxed_unsync())
    }
}

struct Bench {
    fleet: Arc<Fleet>,
    registry: Registry,
    address: String,
    streams: Mutex<mpsc::Receiver<Stream>>,
    _sidecar: DropGuard,
}

async fn bench() -> Bench {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (opened, streams) = mpsc::channel(16);
    let stop = CancellationToken::new();
    let handler = Arc::new(Scripted(opened));
    tokio::spawn(serve(listener, Limits::default(), handler, stop.clone()));
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register(&mut registry);
    let token = FleetToken::new("a-token-for-tests").unwrap();
    Bench {
        fleet: Fleet::new(
            Calls::new(&token),
            metrics.clone(),
            Arc::default(),
            Queue::new(0, metrics),
            TTL,
            TTL,
        ),
        registry,
        address,
        streams: Mutex::new(streams),
        _sidecar: stop.drop_guard(),
    }
}

impl Bench {
    fn register(&self, epoch: u64, leave: bool) {
        let registration = Registration {
            protocol: PROTOCOL_VERSION,
            worker: "w".parse().unwrap(),
            epoch: Epoch(epoch),
            address: self.address.clone(),
            leave,
        };
        self.fleet.register(registration).unwrap();
    }

    /// The next watch stream that is opened, after its first words.
    async fn opened(&self, epoch: u64) -> Stream {
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match self.streams.lock().unwrap().try_recv() {
                Ok(stream) => break stream,
                Err(_) => assert!(Instant::now() < deadline, "no stream was opened"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            worker: "w".parse().unwrap(),
            incarnation: None,
            epoch: Epoch(epoch),
            info: Some(Box::new(info(16))),
        };
        let state = SidecarState::Ready;
        stream.say(WatchFrame::Hello(hello)).await;
        stream.say(WatchFrame::State { state }).await;
        stream
    }

    /// Waits until the fleet says this of the worker's rank: whether it is certain, and how many of the blocks 1, 2, 3 it
    /// has.
    async fn until(&self, wanted: (bool, u32)) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let got = self.seen();
            if got == Some(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{got:?} instead of {wanted:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn seen(&self) -> Option<(bool, u32)> {
        let snapshot = self.fleet.snapshot();
        let rank = snapshot.workers.first()?.known_ranks().first()?;
        let mut found = Found::new();
        self.index().find(&[1, 2, 3], &mut found);
        let mut matches = found.matches().iter();
        let held = matches.find(|held| held.target == rank.target.target());
        Some((rank.certain, held.map_or(0, baton_index::Match::blocks)))
    }

    fn index(&self) -> &Index {
        self.fleet.index()
    }

    fn holds_anything(&self) -> bool {
        let mut found = Found::new();
        self.index().find(&[1], &mut found);
        !found.matches().is_empty()
    }

    async fn until_nothing_is_held(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.holds_anything() {
            assert!(Instant::now() < deadline, "places were not given back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Stream {
    async fn say(&self, frame: WatchFrame) {
        // A stream that the router has given up takes nothing more.
        let _ = self.frames.send(frame::encode(&frame)).await;
    }

    async fn snapshot(&self, seq: u64, held: &[u64]) {
        let frame = WatchFrame::Snapshot {
            seq,
            rank: 0,
            state: ViewState::default(),
            tier: Tier::Device,
            blocks: blocks(held),
            last: true,
        };
        self.say(frame).await;
    }

    async fn stored(&self, seq: u64, held: &[u64]) {
        let (blocks, tier) = (blocks(held), Tier::Device);
        let event = KvEvent::Stored { blocks, tier };
        self.say(WatchFrame::Event {
            seq,
            rank: 0,
            event,
        })
        .await;
    }
}

fn blocks(held: &[u64]) -> Blocks {
    Blocks(held.iter().copied().map(SequenceHash).collect())
}

#[tokio::test]
async fn a_stream_that_broke_off_goes_on_where_it_ended() {
    let bench = bench().await;
    bench.register(7, false);
    let stream = bench.opened(7).await;
    assert_eq!(stream.query, None);
    stream.snapshot(4, &[1]).await;
    stream.stored(5, &[2]).await;
    bench.until((true, 2)).await;
    drop(stream);
    bench.until((false, 2)).await;
    let stream = bench.opened(7).await;
    assert_eq!(stream.query.as_deref(), Some("epoch=7&seq=5"));
    stream.stored(6, &[3]).await;
    bench.until((true, 3)).await;
    bench.fleet.sweep();
    let page = bench.registry.page();
    for line in [
        "baton_router_view_blocks{tier=\"device\"} 3",
        "baton_router_view_ranks{state=\"exact\"} 1",
        "baton_router_view_ranks{state=\"unwatched\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

#[tokio::test]
async fn a_view_that_does_not_fit_is_built_anew_from_a_snapshot() {
    let bench = bench().await;
    bench.register(7, false);
    let stream = bench.opened(7).await;
    stream.snapshot(4, &[1, 2]).await;
    bench.until((true, 2)).await;
    stream.stored(6, &[3]).await;
    bench.until((false, 0)).await;
    let state = bench.fleet.snapshot().workers[0].state();
    assert_eq!(state, WorkerState::Ready, "its sidecar is well");
    let stream = bench.opened(7).await;
    assert_eq!(stream.query, None);
    stream.snapshot(6, &[1, 2, 3]).await;
    bench.until((true, 3)).await;
    let page = bench.registry.page();
    let line = "baton_router_view_resyncs_total{reason=\"order\"} 1";
    assert!(page.contains(line), "{line} is not in\n{page}");
}

#[tokio::test]
async fn a_new_life_of_the_sidecar_begins_with_nothing() {
    let bench = bench().await;
    bench.register(7, false);
    let stream = bench.opened(7).await;
    stream.snapshot(4, &[1, 2]).await;
    bench.until((true, 2)).await;
    bench.register(8, false);
    assert_eq!(bench.seen(), None);
    bench.until_nothing_is_held().await;
    let stream = bench.opened(8).await;
    assert_eq!(stream.query, None);
    stream.snapshot(1, &[1]).await;
    bench.until((true, 1)).await;
}

#[tokio::test]
async fn a_worker_that_leaves_gives_its_places_back_though_requests_keep_it() {
    let bench = bench().await;
    bench.register(7, false);
    let stream = bench.opened(7).await;
    stream.snapshot(4, &[1, 2]).await;
    bench.until((true, 2)).await;
    let kept = Arc::clone(&bench.fleet.snapshot().workers[0].worker);
    bench.register(7, true);
    bench.until_nothing_is_held().await;
    assert!(kept.view().known().is_empty());
}

#[test]
fn attempts_grow_apart_until_a_view_is_proven() {
    let longest = |failures: &Failures| {
        let pauses = (0..200).map(|_| failures.pause());
        pauses.max().unwrap()
    };
    let fresh = Failures {
        silent: 1,
        unfit: 0,
    };
    assert!(longest(&fresh) <= Duration::from_millis(200));
    let often = Failures {
        silent: 0,
        unfit: 1000,
    };
    assert!(longest(&often) <= Duration::from_secs_f64(BACK_OFF));
    assert!(longest(&often) > Duration::from_millis(400));
}
