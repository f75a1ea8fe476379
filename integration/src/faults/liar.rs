//! A man in the middle who understands HTTP: he repeats what should be said once, answers what he should have asked, or says
//! something else than he heard ([`forge`]).
//!
//! It takes requests apart as far as it must: a head, and a body of known length. On one connection one request follows
//! the other, as Baton's processes send them.

mod forge;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use self::forge::Exchange;

/// Of what may be repeated, every one of so many is.
const EVERY: u64 = 10;

/// Longest time that a repetition is listened to.
const LISTENS: Duration = Duration::from_secs(15);

/// What is done to those who pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// A router's decode call comes twice at the sidecar.
    RepeatsDecodeCalls,
    /// A sidecar's leg that brings KV, which has this in its body, comes twice at the engine: nobody is left who would refuse
    /// it.
    RepeatsLegsWith(&'static str),
    /// Every handoff is said to be settled, and the sidecar is not asked.
    SettlesUnasked,
    /// A leg is said to be aborted, and the engine is not asked.
    KeepsAborts,
    /// All legs are of a few rooms.
    ReusesRooms,
    /// An answer that was aborted is said to have ended by itself.
    HidesAborts,
    /// All handoffs have one of a few ids, and nobody who said another one hears of it.
    ReusesIds,
    /// A failure inside of a stream is said to be its end.
    HidesFailures,
}

impl Lie {
    /// What is answered to a request that its receiver never sees.
    fn answer(self, request: &[u8]) -> Option<&'static [u8]> {
        match self {
            Self::SettlesUnasked if is_settle(request) => Some(SETTLED),
            Self::KeepsAborts if request.starts_with(b"POST /abort_request ") => Some(ABORTED),
            _ => None,
        }
    }

    /// Whether this may be said twice.
    fn may_repeat(self, request: &[u8]) -> bool {
        match self {
            Self::RepeatsDecodeCalls => request.starts_with(b"POST /baton/v1/decode "),
            Self::RepeatsLegsWith(mark) => brings_kv(request, mark),
            _ => false,
        }
    }
}

/// The man in the middle.
#[derive(Debug)]
pub struct Liar {
    address: SocketAddr,
    told: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Liar {
    /// One in front of this address.
    pub async fn before(upstream: SocketAddr, lie: Lie) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = Arc::<AtomicU64>::default();
        let teller = Teller {
            upstream,
            lie,
            chances: Arc::default(),
            told: Arc::clone(&told),
        };
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(teller.clone().serve(client));
            }
        });
        Self {
            address,
            told,
            accepting,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lies told so far.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Teller {
    upstream: SocketAddr,
    lie: Lie,
    chances: Arc<AtomicU64>,
    told: Arc<AtomicU64>,
}

/// What is kept in mind between a request and its answer.
#[derive(Default)]
struct Between {
    /// What is repeated once the answer has begun.
    repetition: Mutex<Option<Vec<u8>>>,
    /// Which id was said instead of which.
    exchange: Mutex<Option<Exchange>>,
}

impl Teller {
    async fn serve(self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.upstream).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
        let between = Between::default();
        // One direction's end is the connection's.
        tokio::select! {
            _ = self.requests(from_client, to_server, &to_client, &between) => {}
            _ = self.answers(from_server, &to_client, &between) => {}
        }
    }

    async fn requests(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        back: &tokio::sync::Mutex<OwnedWriteHalf>,
        between: &Between,
    ) -> Option<()> {
        let mut ahead = Vec::new();
        loop {
            let request = next(&mut from, &mut ahead).await?;
            if let Some(answer) = self.lie.answer(&request) {
                self.told.fetch_add(1, Ordering::Relaxed);
                back.lock().await.write_all(answer).await.ok()?;
                continue;
            }
            if self.is_to_be_repeated(&request) {
                *between.repetition.lock().unwrap() = Some(request.clone());
            }
            let said = self.asked_instead(&request, between);
            to.write_all(&said).await.ok()?;
        }
    }

    async fn answers(
        &self,
        mut from: OwnedReadHalf,
        to: &tokio::sync::Mutex<OwnedWriteHalf>,
        between: &Between,
    ) -> Option<()> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let read = from.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
            let repeated = between.repetition.lock().unwrap().take();
            if let Some(request) = repeated {
                self.told.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(repeat(self.upstream, request));
            }
            let said = self.answered_instead(&buffer[..read], between);
            to.lock().await.write_all(&said).await.ok()?;
        }
    }

    /// What the engine or sidecar is asked.
    fn asked_instead<'a>(&self, request: &'a [u8], between: &Between) -> Cow<'a, [u8]> {
        match self.lie {
            Lie::ReusesRooms => self.forged(request, forge::few_rooms),
            Lie::ReusesIds => {
                let exchange = Exchange::in_leg(request);
                let said = self.forged(request, |leg| Some(exchange.as_ref()?.done(leg)));
                *between.exchange.lock().unwrap() = exchange;
                said
            }
            _ => Cow::Borrowed(request),
        }
    }

    /// What whoever asked is answered.
    fn answered_instead<'a>(&self, answer: &'a [u8], between: &Between) -> Cow<'a, [u8]> {
        match self.lie {
            Lie::HidesAborts => self.forged(answer, forge::ended_by_itself),
            Lie::HidesFailures => self.forged(answer, forge::ended_well),
            Lie::ReusesIds => {
                let exchange = between.exchange.lock().unwrap();
                let undone = exchange.as_ref().map(|exchange| exchange.undone(answer));
                undone.map_or(Cow::Borrowed(answer), Cow::Owned)
            }
            _ => Cow::Borrowed(answer),
        }
    }

    /// Something else of the same length, if there is anything to lie about.
    fn forged<'a>(
        &self,
        said: &'a [u8],
        forge: impl Fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Cow<'a, [u8]> {
        let Some(forged) = forge(said) else {
            return Cow::Borrowed(said);
        };
        self.told.fetch_add(1, Ordering::Relaxed);
        Cow::Owned(forged)
    }

    fn is_to_be_repeated(&self, request: &[u8]) -> bool {
        self.lie.may_repeat(request)
            && self.chances.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
    }
}

const SETTLED: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

const ABORTED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn is_settle(request: &[u8]) -> bool {
    let line = request.split(|byte| *byte == b'\r').next();
    let line = line.unwrap_or_default();
    line.starts_with(b"POST /baton/v1/tickets/")
        && [&b"/settle "[..], b"/confirm "]
            .iter()
            .any(|verb| memchr::memmem::find(line, verb).is_some())
}

fn brings_kv(request: &[u8], mark: &str) -> bool {
    request.starts_with(b"POST /v1/") && memchr::memmem::find(request, mark.as_bytes()).is_some()
}

async fn repeat(upstream: SocketAddr, request: Vec<u8>) {
    let Ok(mut stream) = TcpStream::connect(upstream).await else {
        return;
    };
    if stream.write_all(&request).await.is_err() {
        return;
    }
    let mut buffer = vec![0; 16 << 10];
    let listening = async { while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    let _ = tokio::time::timeout(LISTENS, listening).await;
}

/// The next whole request; `None` when there is none, or one whose length is not told.
async fn next(from: &mut OwnedReadHalf, ahead: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        let end = memchr::memmem::find(ahead, b"\r\n\r\n").map(|at| at + 4);
        let whole = match end {
            Some(end) => Some(end + length(&ahead[..end])?),
            None => None,
        };
        if let Some(whole) = whole.filter(|whole| ahead.len() >= *whole) {
            return Some(ahead.drain(..whole).collect());
        }
        from.read_buf(ahead).await.ok().filter(|read| *read > 0)?;
    }
}

fn length(head: &[u8]) -> Option<usize> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    assert!(
        !head.contains("transfer-encoding"),
        "a request of unknown length: {head}"
    );
    let mut lines = head.lines();
    let told = lines.find_map(|line| line.strip_prefix("content-length:"));
    told.map_or(Some(0), |told| told.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lied_about_is_known() {
        assert!(is_settle(
            b"POST /baton/v1/tickets/ab/settle HTTP/1.1\r\n\r\n"
        ));
        assert!(!is_settle(
            b"POST /baton/v1/tickets/ab/release HTTP/1.1\r\n\r\n"
        ));
        let leg = Lie::RepeatsLegsWith("\"do_remote_prefill\":true");
        assert!(
            leg.may_repeat(b"POST /v1/completions HTTP/1.1\r\n\r\n{\"do_remote_prefill\":true}")
        );
        assert!(!leg.may_repeat(b"POST /v1/completions HTTP/1.1\r\n\r\n{}"));
        let abort = b"POST /abort_request HTTP/1.1\r\n\r\n{}";
        assert_eq!(Lie::KeepsAborts.answer(abort), Some(ABORTED));
        assert_eq!(Lie::SettlesUnasked.answer(abort), None);
        assert_eq!(length(b"GET / HTTP/1.1\r\n\r\n"), Some(0));
        assert_eq!(
            length(b"POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\n"),
            Some(7)
        );
    }
}
