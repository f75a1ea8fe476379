//! HTTP out: pooled connections, a bound on connecting, and an error that says whether the request may have arrived.

use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client as Pool, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::body::{Body, chain};

/// Most bytes read ahead over one connection, and the longest head of an answer. Hyper's own bound is six times that, and
/// a peer that keeps it full of interim answers holds a thread for as long as those take to read.
const MAX_BUFFER: usize = 64 << 10;

/// Bounds of a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// Longest time to connect.
    pub connect: Duration,
    /// How long an idle connection is kept. Must be shorter than the server keeps it, or a request may be written into a
    /// connection that is being closed.
    pub idle: Duration,
}

/// Whether a request that failed may have reached the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// It has not.
    No,
    /// Nobody knows.
    Unknown,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SendError {
    /// Whether the request may have arrived.
    pub delivered: Delivered,
    /// Whether it was a deadline of ours.
    pub timed_out: bool,
    /// Whether nobody listens at the address.
    pub refused: bool,
    /// One sentence.
    pub message: String,
}

/// A pool of connections. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Body>,
}

impl Client {
    /// A client with these bounds.
    pub fn new(limits: ClientLimits) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits.connect));
        connector.set_keepalive(Some(Duration::from_secs(15)));
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(limits.idle)
            .http1_max_buf_size(MAX_BUFFER)
            .build(connector);
        Self { pool }
    }

    /// Sends a request and waits up to `time` for the head of the answer.
    pub async fn send(
        &self,
        request: Request<Body>,
        time: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let uri = request.uri().clone();
        let authority = uri
            .authority()
            .map_or("?", |authority| authority.as_str())
            .to_owned();
        match tokio::time::timeout(time, self.pool.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                // The pool itself sends again what it can prove was never written; what it cannot, may have arrived.
                let delivered = if error.is_connect() {
                    Delivered::No
                } else {
                    Delivered::Unknown
                };
                let message = format!("no answer from {authority}: {}", chain(&error));
                Err(SendError {
                    delivered,
                    timed_out: false,
                    refused: error.is_connect() && is_refused(&error),
                    message,
                })
            }
            Err(_) => Err(SendError {
                delivered: Delivered::Unknown,
                timed_out: true,
                refused: false,
                message: format!(
                    "no answer from {authority} within {:.3} s",
                    time.as_secs_f64()
                ),
            }),
        }
    }
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
        || error.source().is_some_and(is_refused)
}
