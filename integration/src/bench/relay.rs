//! The minimal relay: the least that can carry the same requests over the same hops, with the same HTTP library.
//!
//! It is what Baton is compared with, and no more than that: it trusts everybody, never retries, waits for ever, and would
//! hand over stale KV without noticing. One thread, because several would only cost it more.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use baton_daemon::http::{Body, BoxError, Parts, full};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use memchr::memmem;
use tokio::net::TcpListener;

/// Where a relay sends what it gets.
#[derive(Debug, Clone)]
pub enum Hop {
    /// On, as it is: what stands in a sidecar's place, and in the router's for local requests.
    On(Uri),
    /// What stands in the router's place for split requests.
    Split {
        /// Asked first, for KV.
        prefill: Uri,
        /// Asked then, with it.
        decode: Uri,
    },
}

/// What every request of the benchmark begins with ends here; the keys before it are replaced.
const KEPT: &[u8] = b",\"model\"";

/// What a prefill is asked with instead.
const ASK: &[u8] = br#"{"stream":false,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}"#;

const PARAMS: &[u8] = b"\"kv_transfer_params\":";

/// An engine of the vLLM kind closes a connection that was idle for 5 s.
const IDLE: Duration = Duration::from_secs(3);

/// Relays until it is killed.
pub async fn serve(listen: SocketAddr, hop: Hop) -> Result<()> {
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {listen}"))?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (client, hop) = (client.clone(), hop.clone());
        let service = service_fn(move |request| {
            let (client, hop) = (client.clone(), hop.clone());
            async move { Ok::<_, Infallible>(relay(&client, &hop, request).await) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // A connection that breaks is its client's failure, and is counted there.
        tokio::spawn(connection);
    }
}

type Pool = Client<HttpConnector, Body>;

async fn relay(client: &Pool, hop: &Hop, request: Request<Incoming>) -> Response<Body> {
    let relayed = match hop {
        Hop::On(peer) => {
            let body = request.into_body().map_err(Into::into).boxed_unsync();
            send(client, peer, body).await
        }
        Hop::Split { prefill, decode } => split(client, prefill, decode, request).await,
    };
    relayed.unwrap_or_else(|error| {
        let mut response = Response::new(full(error.to_string()));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

async fn send(client: &Pool, peer: &Uri, body: Body) -> Result<Response<Body>, BoxError> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(peer.clone())
        .header(CONTENT_TYPE, "application/json")
        .body(body)?;
    let (head, body) = client.request(request).await?.into_parts();
    let mut response = Response::new(body.map_err(Into::into).boxed_unsync());
    *response.status_mut() = head.status;
    if let Some(value) = head.headers.get(CONTENT_TYPE) {
        response.headers_mut().insert(CONTENT_TYPE, value.clone());
    }
    Ok(response)
}

async fn split(
    client: &Pool,
    prefill: &Uri,
    decode: &Uri,
    request: Request<Incoming>,
) -> Result<Response<Body>, BoxError> {
    let body = request.into_body().collect().await?.to_bytes();
    let kept = memmem::find(&body, KEPT).ok_or("a request of another form")?;
    let ask = Parts::body([Bytes::from_static(ASK), body.slice(kept..)]);
    let answer = send(client, prefill, ask).await?.into_body();
    let answer = answer.collect().await?.to_bytes();
    let params = params(&answer).ok_or("a prefill without kv_transfer_params")?;
    let given = [b"{", params, b","].concat();
    send(client, decode, Parts::body([given.into(), body.slice(1..)])).await
}

/// The member `kv_transfer_params` of a prefill's answer, as text. No text in it has a brace.
fn params(answer: &[u8]) -> Option<&[u8]> {
    let start = memmem::find(answer, PARAMS)?;
    let mut depth = 0usize;
    let object = &answer[start + PARAMS.len()..];
    let end = object.iter().position(|byte| {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })?;
    (end > 0).then(|| &answer[start..=start + PARAMS.len() + end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_are_cut_out_whole() {
        let answer = br#"{"a":{},"kv_transfer_params":{"x":[[1]],"y":{"z":2}},"b":1}"#;
        assert_eq!(
            params(answer),
            Some(&br#""kv_transfer_params":{"x":[[1]],"y":{"z":2}}"#[..])
        );
        assert_eq!(params(br#"{"kv_transfer_params":null}"#), None);
        assert_eq!(params(b"{}"), None);
        assert_eq!(params(br#"{"kv_transfer_params":{"x":1"#), None);
    }
}
