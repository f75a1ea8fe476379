//! HTTP in: one listener, bounded connections, slow peers given up, and an orderly end.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::body::Body;
use super::stall::StallGuard;
use super::strict;
use crate::files;
use crate::run::Exit;

/// Longest head of a request, in bytes. Hyper has no limit of its own but its buffer's, which one read may exceed.
const MAX_HEAD: usize = 64 << 10;

/// Whoever connected before the stop has so long to say what it wants.
const UNREAD: Duration = Duration::from_millis(200);

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most connections at a time; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Longest time for a request's head to arrive, and for a connection to stay idle.
    pub head: Duration,
    /// Longest time a peer may stop reading its answer.
    pub stall: Duration,
    /// Longest time for open requests to finish once asked to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: files::acceptable_connections().min(16_384),
            head: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. Dropped when the peer goes away.
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Opens a listener.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Exit> {
    let refused = |error| Exit::failure(format!("cannot listen on {address}: {error}"));
    TcpListener::bind(address).await.map_err(refused)
}

/// Serves until `stop`, then lets open requests finish for a while.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    limits: Limits,
    handler: Arc<H>,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let take = |stream, place: OwnedSemaphorePermit| {
        let connection = graceful.watch(connection(stream, limits, Arc::clone(&handler)));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    };
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => break,
            Ok(place) = Arc::clone(&places).acquire_owned() => place,
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: closing connections will help, spinning will not.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        take(stream, place);
    }
    for stream in still_waiting(listener) {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            break;
        };
        take(stream, place);
    }
    // Hyper closes a connection of which it has read nothing, though a request may be in the socket or behind it.
    tokio::time::sleep(UNREAD.min(limits.drain)).await;
    if tokio::time::timeout(limits.drain, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("requests were still open when the time to finish ran out");
    }
}

/// Peers that have connected and were not accepted yet: with the listener the kernel would reset them.
fn still_waiting(listener: TcpListener) -> impl Iterator<Item = TcpStream> {
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        let (stream, _) = listener.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        TcpStream::from_std(stream).ok()
    })
}

fn connection<H: Handler>(
    stream: TcpStream,
    limits: Limits,
    handler: Arc<H>,
) -> http1::Connection<
    TokioIo<StallGuard>,
    impl hyper::service::HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send>,
> {
    // Without it the last packet of each event waits for an acknowledgement, about 40 ms.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(StallGuard::new(stream, limits.stall));
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move {
            Ok::<_, Infallible>(match strict::refusal(&request) {
                Some(refusal) => refusal,
                None => handler.handle(request).await,
            })
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD)
        .max_header_size(MAX_HEAD)
        .serve_connection(io, service)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::body::full;
    use super::*;

    struct Says;

    impl Handler for Says {
        async fn handle(self: Arc<Self>, _: Request<Incoming>) -> Response<Body> {
            Response::new(full("here"))
        }
    }

    #[tokio::test]
    async fn who_has_connected_before_the_stop_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                .await
                .unwrap();
            clients.push(client);
        }
        let stop = CancellationToken::new();
        stop.cancel();
        serve(listener, Limits::default(), Arc::new(Says), stop).await;
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("here"), "{answer:?}");
        }
    }
}
