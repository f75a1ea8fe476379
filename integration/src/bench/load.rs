//! The load generator: so many clients, each asking its next question when it has its answer.
//!
//! The clients never pause between the warm-up and the measurement: a clock is read, a flag changes, and from then on
//! answers count. What is in flight at both edges is the same on average, so it cancels out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::connection::Connection;
use super::process::CpuClock;
use super::question::Question;

/// Longest an answer may take. Nothing here takes a second; one that hangs must end the run.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// For so long.
    Time(Duration),
    /// So many answers.
    Requests(usize),
}

/// What to send, and where.
#[derive(Debug, Clone)]
pub struct Load {
    /// Who is asked.
    pub target: SocketAddr,
    /// What is asked, in turns.
    pub questions: Arc<[Question]>,
    /// Clients.
    pub concurrency: usize,
    /// How long clients ask before anything counts.
    pub warm_up: Duration,
    /// How much counts.
    pub amount: Amount,
}

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    /// How long it took.
    pub time: Duration,
    /// How long each answer took, in nanoseconds, sorted.
    pub latencies: Vec<u64>,
    /// Chunks that all these answers came in.
    pub chunks: usize,
    /// CPU time that each process used meanwhile.
    pub cpu: Vec<Duration>,
}

/// What the clients of one load share.
#[derive(Debug, Default)]
struct Shared {
    counts: AtomicBool,
    over: AtomicBool,
    answered: AtomicUsize,
    /// Answers after which to tell the others; 0 for never.
    enough: usize,
    reached: Notify,
}

#[derive(Debug, Default)]
struct Answered {
    latencies: Vec<u64>,
    chunks: usize,
}

/// Sends a load and measures it, and the CPU time of these processes with it.
pub async fn run(load: &Load, clocks: &[CpuClock]) -> Result<Measured> {
    let shared = Arc::new(Shared {
        enough: match load.amount {
            Amount::Time(_) => 0,
            Amount::Requests(requests) => requests,
        },
        ..Shared::default()
    });
    let mut clients = JoinSet::new();
    for number in 0..load.concurrency {
        let connection = Connection::open(load.target).await?;
        let questions = Arc::clone(&load.questions);
        clients.spawn(client(connection, questions, number, Arc::clone(&shared)));
    }
    during(tokio::time::sleep(load.warm_up), &mut clients).await?;
    let read = || clocks.iter().map(|clock| clock.read()).collect();
    let (before, start): (Result<Vec<Duration>>, _) = (read(), Instant::now());
    shared.counts.store(true, Ordering::Relaxed);
    match load.amount {
        Amount::Time(time) => during(tokio::time::sleep(time), &mut clients).await?,
        Amount::Requests(_) => during(shared.reached.notified(), &mut clients).await?,
    }
    let (after, time): (Result<Vec<Duration>>, _) = (read(), start.elapsed());
    shared.counts.store(false, Ordering::Relaxed);
    shared.over.store(true, Ordering::Relaxed);
    let answered = finish(clients).await?;
    let spent = before?.into_iter().zip(after?);
    Ok(Measured {
        time,
        latencies: answered.latencies,
        chunks: answered.chunks,
        cpu: spent
            .map(|(before, after)| after.saturating_sub(before))
            .collect(),
    })
}

/// Waits for `something`, while no client may end.
async fn during(
    something: impl Future<Output = ()>,
    clients: &mut JoinSet<Result<Answered>>,
) -> Result<()> {
    tokio::select! {
        () = something => Ok(()),
        Some(ended) = clients.join_next() => match ended? {
            Err(error) => Err(error),
            Ok(_) => bail!("a client ended early"),
        },
    }
}

async fn finish(mut clients: JoinSet<Result<Answered>>) -> Result<Answered> {
    let mut all = Answered::default();
    while let Some(ended) = clients.join_next().await {
        let mut answered = ended??;
        all.latencies.append(&mut answered.latencies);
        all.chunks += answered.chunks;
    }
    all.latencies.sort_unstable();
    Ok(all)
}

async fn client(
    mut connection: Connection,
    questions: Arc<[Question]>,
    number: usize,
    shared: Arc<Shared>,
) -> Result<Answered> {
    let mut answered = Answered::default();
    // Each begins elsewhere, so that not all ask the same at the same time.
    for question in questions.iter().cycle().skip(number) {
        let sent = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, connection.ask(&question.request)).await;
        let (status, body) = answer.context("no answer came")??;
        let took = sent.elapsed();
        // Before the check, which costs time that is the client's own.
        let counts = shared.counts.load(Ordering::Relaxed);
        let chunks = question.check(status, body)?;
        if counts {
            let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            answered.latencies.push(nanoseconds);
            answered.chunks += chunks;
            if shared.answered.fetch_add(1, Ordering::Relaxed) + 1 == shared.enough {
                shared.reached.notify_one();
            }
        }
        if shared.over.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(answered)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::bench::row::Form;

    /// An engine that says something else from its so-many-eth answer on.
    async fn engine(turns_at: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let said = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let said = Arc::clone(&said);
                tokio::spawn(async move {
                    let mut request = vec![0; 64 << 10];
                    while stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                        let number = said.fetch_add(1, Ordering::Relaxed);
                        let text = if number < turns_at { "right" } else { "wrong" };
                        let body = format!("{{\"content\":\"{text}\"}}");
                        let length = body.len();
                        let answer =
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                });
            }
        });
        address
    }

    async fn load(turns_at: usize) -> Result<Measured> {
        let target = engine(turns_at).await;
        let learnt = super::super::question::learn(target, "m", 4, Form::Unary).await?;
        let load = Load {
            target,
            questions: learnt.into(),
            concurrency: 4,
            warm_up: Duration::ZERO,
            amount: Amount::Requests(100),
        };
        run(&load, &[CpuClock::of(std::process::id())?]).await
    }

    #[tokio::test]
    async fn counts_what_was_asked_for() {
        let measured = load(usize::MAX).await.unwrap();
        assert!(measured.latencies.len() >= 100);
        assert!(measured.latencies.is_sorted());
        assert_eq!(measured.chunks, measured.latencies.len());
        assert!(measured.cpu[0] > Duration::ZERO);
    }

    #[tokio::test]
    async fn one_wrong_answer_ends_it() {
        let error = load(60).await.unwrap_err();
        assert!(error.to_string().contains("wrong answer"), "{error:#}");
    }
}
