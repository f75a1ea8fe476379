//! Clients that ask without a pause until told to stop. Every one of them must be served right.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client;
use crate::emulated::model;
use crate::wait;

const PROMPT: &str =
    "Runners come and go, and the baton is passed on all the same, lap after lap after lap.";

/// Which of a client's requests one engine serves by itself: it wants a single token.
const LOCAL: usize = 3;

/// Clients at work.
#[derive(Debug)]
pub struct Steady {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: JoinSet<()>,
}

impl Steady {
    /// So many clients, spread over these routers. One whose router does not call itself ready goes to the next, as a load
    /// balancer does.
    pub fn start(routers: &[SocketAddr], clients: usize) -> Self {
        let (stop, served) = (Arc::default(), Arc::default());
        let mut steady = Self {
            stop,
            served,
            clients: JoinSet::new(),
        };
        for number in 0..clients {
            let mut routers = routers.to_vec();
            let own = number % routers.len();
            routers.rotate_left(own);
            let client = Client {
                number,
                routers,
                stop: Arc::clone(&steady.stop),
                served: Arc::clone(&steady.served),
            };
            steady.clients.spawn(client.run());
        }
        steady
    }

    /// Waits until so many more were served.
    pub async fn more(&self, count: usize) {
        let wanted = self.served.load(Ordering::Relaxed) + count;
        wait::until("clients to be served", || async {
            self.served.load(Ordering::Relaxed) >= wanted
        })
        .await;
    }

    /// Ends them; how many requests were served.
    pub async fn end(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.expect("every client was served right");
        }
        self.served.load(Ordering::Relaxed)
    }
}

struct Client {
    number: usize,
    routers: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
}

impl Client {
    async fn run(self) {
        let mut round: usize = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let router = self.router().await;
            self.ask(router, round).await;
            self.served.fetch_add(1, Ordering::Relaxed);
            round += 1;
        }
    }

    async fn ask(&self, router: SocketAddr, round: usize) {
        let prompt = format!("client {} round {round} {PROMPT}", self.number);
        let tokens = if round.is_multiple_of(LOCAL) { 1 } else { 5 };
        let stream = round.is_multiple_of(2);
        let body =
            json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "stream": stream});
        let headers = [("content-type", "application/json")];
        let path = "/v1/completions";
        let answer = client::call(router, "POST", path, &headers, body.to_string()).await;
        let right = model::text(&prompt, tokens);
        assert_eq!(answer.served().generated(), right);
    }

    /// The first router that is ready; its own, where there is no choice.
    async fn router(&self) -> SocketAddr {
        if self.routers.len() == 1 {
            return self.routers[0];
        }
        wait::until_some("a router to be ready", || async {
            for router in &self.routers {
                if is_ready(*router).await {
                    return Some(*router);
                }
            }
            None
        })
        .await
    }
}

async fn is_ready(router: SocketAddr) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(router).await?;
        stream
            .write_all(&client::request("GET", "/readyz", &[], b""))
            .await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    wait::bounded("a router's readiness", asked)
        .await
        .unwrap_or(false)
}
