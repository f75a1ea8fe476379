//! The engine as a sidecar on another host may see it: its event ports are mapped, and the way there can be cut.
//!
//! HTTP goes through a relay that changes nothing but the ports that `GET /kv_event_sources` or `GET /server_info` tells. The event stream and
//! its replay go through forwarders; while the way is cut nobody listens there, and what the engine publishes is lost.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use baton_daemon::http::{Body, BoxError, full};
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::ports;
use crate::real::engine::Kind;

/// Where an engine listens.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// HTTP.
    pub http: SocketAddr,
    /// The event stream.
    pub events: SocketAddr,
    /// Its replay.
    pub replay: SocketAddr,
}

impl Ports {
    /// Free ones.
    pub fn free() -> Self {
        Self {
            http: ports::free(),
            events: ports::free(),
            replay: ports::free(),
        }
    }
}

/// The way to an engine.
pub struct Detour {
    /// Where a sidecar finds the engine.
    pub seen: Ports,
    runtime: Runtime,
    forwarders: [Forwarder; 2],
}

impl Detour {
    /// Opens the way. The engine need not be there yet.
    pub fn open(kind: Kind, engine: Ports) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let seen = Ports::free();
        let listener = runtime.block_on(TcpListener::bind(seen.http));
        let listener = listener.with_context(|| format!("cannot listen on {}", seen.http))?;
        let way = Seen { kind, ports: seen };
        runtime.spawn(relay(listener, engine.http, way));
        let forwarders = [(seen.events, engine.events), (seen.replay, engine.replay)];
        let forwarders = forwarders.map(|(listen, to)| Forwarder::start(&runtime, listen, to));
        let mut detour = Self {
            seen,
            runtime,
            forwarders,
        };
        detour.set_open(true)?;
        Ok(detour)
    }

    /// Ends the connections for events and refuses new ones, until it is mended.
    pub fn cut(&mut self) -> Result<()> {
        self.set_open(false)
    }

    /// Accepts connections again.
    pub fn mend(&mut self) -> Result<()> {
        self.set_open(true)
    }

    fn set_open(&mut self, open: bool) -> Result<()> {
        for forwarder in &mut self.forwarders {
            forwarder.wanted.send(open)?;
            let there = forwarder.is_open.wait_for(|is_open| *is_open == open);
            self.runtime.block_on(there)?;
        }
        Ok(())
    }
}

/// Carries the bytes of connections to one address on to another.
struct Forwarder {
    wanted: watch::Sender<bool>,
    is_open: watch::Receiver<bool>,
}

impl Forwarder {
    fn start(runtime: &Runtime, listen: SocketAddr, to: SocketAddr) -> Self {
        let (wanted, orders) = watch::channel(false);
        let (reports, is_open) = watch::channel(false);
        runtime.spawn(forward(listen, to, orders, reports));
        Self { wanted, is_open }
    }
}

async fn forward(
    listen: SocketAddr,
    to: SocketAddr,
    mut orders: watch::Receiver<bool>,
    reports: watch::Sender<bool>,
) {
    while orders.wait_for(|open| *open).await.is_ok() {
        let Ok(listener) = TcpListener::bind(listen).await else {
            // The port is this process's own; whoever waits for it to be open says so.
            return;
        };
        reports.send_replace(true);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                _ = orders.wait_for(|open| !*open) => break,
                Ok((from, _)) = listener.accept() => {
                    connections.spawn(carry(from, to));
                }
            }
        }
        drop(listener);
        connections.shutdown().await;
        reports.send_replace(false);
    }
}

async fn carry(mut from: TcpStream, to: SocketAddr) {
    // A connection that ends is seen by both of its ends.
    if let Ok(mut to) = TcpStream::connect(to).await {
        let _ = copy_bidirectional(&mut from, &mut to).await;
    }
}

/// What a sidecar is told in place of what the engine says.
#[derive(Debug, Clone, Copy)]
struct Seen {
    kind: Kind,
    ports: Ports,
}

impl Seen {
    /// Whether the engine's ports are in the answer to this.
    fn is_told_at(self, path: &str) -> bool {
        match self.kind {
            Kind::Vllm => path == "/kv_event_sources",
            Kind::Sglang => path == "/server_info",
        }
    }

    /// What the engine tells of its event ports, as it is seen.
    fn mapped(self, told: &[u8]) -> Result<String, BoxError> {
        let Ports { events, replay, .. } = self.ports;
        let mut told: Value = serde_json::from_slice(told)?;
        match self.kind {
            Kind::Vllm => {
                for rank in told.as_object_mut().into_iter().flatten() {
                    rank.1["endpoint"] = format!("tcp://*:{}", events.port()).into();
                    rank.1["replay_endpoint"] = format!("tcp://{replay}").into();
                }
            }
            Kind::Sglang => {
                let source = &mut told["kv_events"];
                source["endpoint_port_base"] = events.port().into();
                source["replay_endpoint_port_base"] = replay.port().into();
            }
        }
        Ok(told.to_string())
    }
}

type Pool = Client<HttpConnector, Body>;

async fn relay(listener: TcpListener, engine: SocketAddr, seen: Seen) {
    // An engine of the vLLM kind closes a connection that was idle for 5 s.
    let client: Pool = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build_http();
    while let Ok((stream, _)) = listener.accept().await {
        let client = client.clone();
        let service = service_fn(move |request| {
            let client = client.clone();
            async move {
                let answer = pass(&client, engine, seen, request).await;
                Ok::<_, Infallible>(answer.unwrap_or_else(|error| {
                    let mut answer = Response::new(full(error.to_string()));
                    *answer.status_mut() = StatusCode::BAD_GATEWAY;
                    answer
                }))
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn pass(
    client: &Pool,
    engine: SocketAddr,
    seen: Seen,
    request: Request<Incoming>,
) -> Result<Response<Body>, BoxError> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let tells_ports = seen.is_told_at(path);
    let uri: Uri = format!("http://{engine}{path}").parse()?;
    let (mut head, body) = request.into_parts();
    head.uri = uri;
    head.headers.remove(HOST);
    let body = body.map_err(Into::into).boxed_unsync();
    let (head, body) = client
        .request(Request::from_parts(head, body))
        .await?
        .into_parts();
    let body = if tells_ports {
        full(seen.mapped(&body.collect().await?.to_bytes())?)
    } else {
        body.map_err(Into::into).boxed_unsync()
    };
    let mut answer = Response::new(body);
    *answer.status_mut() = head.status;
    if let Some(value) = head.headers.get(CONTENT_TYPE) {
        answer.headers_mut().insert(CONTENT_TYPE, value.clone());
    }
    Ok(answer)
}
