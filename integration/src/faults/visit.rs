//! One client: asks, waits, perhaps leaves, and judges what it got.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::ask::{Ask, Leave, Stage};
use super::seat::{DEADLINE_S, RouterSeat, STALL_S};
use super::verdict::{self, End};
use crate::client::{self, Answer};

/// What is added to every bound before a request counts as hung.
const GRACE: Duration = Duration::from_secs(5);

/// Between two tries to find a router that listens.
const PAUSE: Duration = Duration::from_millis(20);

/// What became of a request.
#[derive(Debug)]
pub struct Visit {
    /// How it ended.
    pub end: End,
    /// From the first try to connect to the end.
    pub took: Duration,
}

/// Asks one of these routers.
pub async fn visit(ask: &Ask, routers: &[RouterSeat]) -> Visit {
    let begun = Instant::now();
    let end = match connect(ask, routers, begun).await {
        None => End::Hung("no router can be reached".to_owned()),
        Some((router, kills, stream)) => {
            let end = Client::new(stream, begun).ask(ask).await;
            tracing::debug!(number = ask.number, router = %router.address(), ?end, "request ended");
            match end {
                End::Dishonest(_) | End::Hung(_) if router.has_cut_off(kills) => End::Orphaned,
                end => end,
            }
        }
    };
    Visit {
        end,
        took: begun.elapsed(),
    }
}

/// A router that listens; the one whose turn it is first.
async fn connect<'a>(
    ask: &Ask,
    routers: &'a [RouterSeat],
    begun: Instant,
) -> Option<(&'a RouterSeat, u64, TcpStream)> {
    let deadline = begun + Duration::from_secs(DEADLINE_S);
    let mut turn = ask.number;
    while Instant::now() < deadline {
        let router = &routers[turn % routers.len()];
        let kills = router.kills();
        if router.is_up()
            && let Some(stream) = reach(router.address(), deadline).await
        {
            return Some((router, kills, stream));
        }
        turn += 1;
        tokio::time::sleep(PAUSE).await;
    }
    None
}

async fn reach(address: SocketAddr, deadline: Instant) -> Option<TcpStream> {
    let stream = timeout_at(deadline, TcpStream::connect(address))
        .await
        .ok()?
        .ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    /// Until then something must come.
    bound: Instant,
}

impl Client {
    fn new(stream: TcpStream, begun: Instant) -> Self {
        Self {
            stream,
            received: Vec::new(),
            bound: begun + Duration::from_secs(DEADLINE_S) + GRACE,
        }
    }

    async fn ask(mut self, ask: &Ask) -> End {
        let id = format!("fault-{}", ask.number);
        let headers = [
            ("content-type", "application/json"),
            ("x-request-id", id.as_str()),
            ("baton-explain", "1"),
        ];
        let request = client::request("POST", ask.path, &headers, ask.body.as_bytes());
        if let Some(leave) = ask.leave {
            return self.ask_and_leave(ask, &request, leave).await;
        }
        // Who answers before it has read all is read all the same.
        let _ = self.stream.write_all(&request).await;
        self.read_to_the_end(ask).await
    }

    async fn ask_and_leave(&mut self, ask: &Ask, request: &[u8], leave: Leave) -> End {
        let all = match leave.stage {
            Stage::InBody => request.len() - ask.body.len() / 2,
            Stage::After(_) | Stage::AfterEvents(_) => request.len(),
        };
        let _ = self.stream.write_all(&request[..all]).await;
        let (until, events) = match leave.stage {
            Stage::InBody => (Instant::now(), usize::MAX),
            Stage::After(time) => (Instant::now() + time, usize::MAX),
            Stage::AfterEvents(events) => (self.bound, events),
        };
        while self.events() < events {
            let read = tokio::select! {
                () = sleep_until(until) => break,
                read = self.stream.read_buf(&mut self.received) => read,
            };
            if !read.is_ok_and(|read| read > 0) {
                break;
            }
        }
        if leave.reset {
            let _ = self.stream.set_zero_linger();
        }
        let seen = Answer::parse_so_far(&self.received, true);
        let judged = seen.and_then(|seen| verdict::of_beginning(ask, &seen));
        judged.unwrap_or(End::Left)
    }

    fn events(&self) -> usize {
        memchr::memmem::find_iter(&self.received, "\n\n").count()
    }

    async fn read_to_the_end(&mut self, ask: &Ask) -> End {
        loop {
            if let Some(answer) = Answer::parse_so_far(&self.received, false) {
                return verdict::of(ask, &answer);
            }
            let read = timeout_at(self.bound, self.stream.read_buf(&mut self.received)).await;
            match read {
                Err(_) => return self.hung(),
                Ok(Ok(read)) if read > 0 => self.heard(ask),
                Ok(_) => return self.cut(ask),
            }
        }
    }

    /// A stream that has begun may only be silent for so long.
    fn heard(&mut self, ask: &Ask) {
        if ask.stream && self.events() > 0 {
            let silence = Duration::from_secs(STALL_S) + GRACE;
            self.bound = Instant::now() + silence;
        }
    }

    fn hung(&self) -> End {
        let tail = self.received.len().saturating_sub(200);
        let tail = String::from_utf8_lossy(&self.received[tail..]);
        End::Hung(format!(
            "{} bytes came, the last ones {tail:?}",
            self.received.len()
        ))
    }

    /// The connection ended before the answer did.
    fn cut(&self, ask: &Ask) -> End {
        match Answer::parse_so_far(&self.received, true) {
            Some(answer) => verdict::of(ask, &answer),
            None => End::Dishonest("the connection was closed without a word".to_owned()),
        }
    }
}
