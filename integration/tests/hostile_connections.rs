//! Connections that say nothing, little, slowly or too much, and those that are gone: each is bounded in time and memory,
//! and nobody else notices.

use std::net::SocketAddr;
use std::time::Duration;

use baton_daemon::files;
use baton_integration::ask::completion;
use baton_integration::client::{self, Exchange};
use baton_integration::emulated::vllm::Fate;
use baton_integration::emulated::vllm::script::{End, Fault, Gate, Leg, RawAnswer, Rule};
use baton_integration::fleet::{Fleet, Setup};
use baton_integration::hostile::answers::{Question, Shape, chunk, event};
use baton_integration::hostile::plain::{Front, Plain};
use baton_integration::hostile::process::Trio;
use baton_integration::wait::bounded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The daemons as a process.
const PROGRAM: &str = env!("CARGO_BIN_EXE_baton-test-daemon");

/// How slow a slow client is: slower than anything a limit of a second lets pass, and faster than its silence.
const PACE: Duration = Duration::from_millis(100);

async fn one_engine(router: &[&str]) -> Fleet {
    let local = Setup::new().plain("e0").router(&["--force", "local"]);
    local.router(router).start().await
}

async fn connect(address: SocketAddr) -> TcpStream {
    let connected = bounded("a connection", TcpStream::connect(address)).await;
    connected.unwrap_or_else(|error| panic!("nobody listens at {address}: {error}"))
}

/// An ordinary request, served.
async fn served(address: SocketAddr) {
    let ask = completion(false);
    let answer = client::call(address, "POST", ask.path, &[], &ask.body).await;
    assert_eq!(answer.served().generated(), ask.text);
}

/// All that comes until the peer closes, however it does.
async fn rest(mut stream: TcpStream) -> String {
    let mut received = Vec::new();
    let _ = bounded("the peer to close", stream.read_to_end(&mut received)).await;
    String::from_utf8_lossy(&received).into_owned()
}

/// Waits until all have ended; none may have panicked.
async fn all(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        assert!(ended.is_ok(), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_a_client_that_sends_all_before_it_reads() {
    let fleet = one_engine(&["--max-body-mib", "1"]).await;
    for (line, length, status) in [
        ("POST /v1/completions", "67108864", 413),
        ("GET /v1/completions", "67108864", 405),
        ("GET /fleet", "67108864", 401),
        ("POST /nowhere", "67108864", 404),
        ("POST /v1/completions", "+67108864", 400),
    ] {
        let mut stream = connect(fleet.address()).await;
        let head = format!("{line} HTTP/1.1\r\nhost: t\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![b'x'; 64 << 10];
        for _ in 0..1024 {
            let sent = bounded("sending", stream.write_all(&piece)).await;
            if sent.is_err() {
                break;
            }
        }
        let text = rest(stream).await;
        let begins = format!("HTTP/1.1 {status} ");
        assert!(text.starts_with(&begins), "{line} {length}: {text:?}");
    }
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_asked_for_its_body_only_if_it_is_wanted() {
    let fleet = one_engine(&["--max-body-mib", "1"]).await;
    let plain = Plain::new(Front::Router);
    let wait = |length: usize| {
        plain.with(
            format!("expect: 100-continue\r\ncontent-length: {length}\r\n"),
            "",
        )
    };
    let mut patient = Exchange::open(fleet.address()).await;
    patient.send(wait(plain.body.len())).await;
    patient.until("HTTP/1.1 100 Continue\r\n\r\n").await;
    patient.send(&plain.body).await;
    let text = patient.until(&plain.text).await;
    assert!(text.contains("HTTP/1.1 200 OK"), "{text}");
    let mut refused = Exchange::open(fleet.address()).await;
    refused.send(wait(5 << 20)).await;
    let text = refused.until("\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 413 "), "{text}");
    drop((patient, refused));
    fleet.finish().await;
}

/// What a slow or silent client sends, and the beginning of what it gets before it is given up.
async fn is_given_up(address: SocketAddr, start: Vec<u8>, trickle: Vec<u8>, last: &str) {
    let mut stream = connect(address).await;
    let _ = stream.write_all(&start).await;
    let (mut reading, mut writing) = stream.into_split();
    let trickling = tokio::spawn(async move {
        for byte in trickle {
            tokio::time::sleep(PACE).await;
            if writing.write_all(&[byte]).await.is_err() {
                break;
            }
        }
        // Nothing more, and no end.
        std::future::pending::<()>().await;
        drop(writing);
    });
    let mut received = Vec::new();
    let _ = bounded("the router to close", reading.read_to_end(&mut received)).await;
    trickling.abort();
    let text = String::from_utf8_lossy(&received);
    assert!(
        text.starts_with(last) && (!last.is_empty() || text.is_empty()),
        "{text:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_silent_clients_are_given_up() {
    let fleet = one_engine(&["--client-timeout-s", "1"]).await;
    let address = fleet.address();
    let (plain, live) = (Plain::new(Front::Router), Plain::live(Front::Router));
    let request = plain.sized();
    let head = request.len() - plain.body.len();
    let endless =
        b"x-header: a value that takes its time, and another one behind it\r\n".repeat(20);
    let mut clients = JoinSet::new();
    for _ in 0..25 {
        for (start, trickle, last) in [
            // Silent from the start, in the head, in the body, and after an answer.
            (Vec::new(), Vec::new(), ""),
            (request[..head / 2].to_vec(), Vec::new(), ""),
            (request[..head + 5].to_vec(), Vec::new(), "HTTP/1.1 408 "),
            (live.sized(), Vec::new(), "HTTP/1.1 200 "),
            // A byte now and then.
            (Vec::new(), request.clone(), ""),
            (plain.lines(), endless.clone(), ""),
            (
                request[..head].to_vec(),
                plain.body.to_vec(),
                "HTTP/1.1 408 ",
            ),
        ] {
            clients.spawn(is_given_up(address, start, trickle, last));
        }
    }
    served(address).await;
    all(clients).await;
    served(address).await;
    fleet.finish().await;
}

/// As many as there are descriptors for, up to 2,500.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_idle_connections_hold_nobody_up() {
    files::raise_limit();
    let count = 2500.min(files::acceptable_connections().saturating_sub(100));
    let trio = Trio::start(PROGRAM, None, &[], &[]).await;
    let address = trio.router.address;
    served(address).await;
    let before = trio.router.resident();
    let mut idle = Vec::new();
    for number in 0..count {
        let mut stream = connect(address).await;
        // Some have said a little, some have been answered.
        let said: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET /livez HTTP/1.1\r\nhost",
            _ => b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n",
        };
        stream.write_all(said).await.unwrap();
        if number % 3 == 2 {
            let mut answer = [0; 17];
            bounded("an answer", stream.read_exact(&mut answer))
                .await
                .unwrap();
        }
        idle.push(stream);
    }
    for _ in 0..5 {
        served(address).await;
    }
    let each = trio.router.resident().saturating_sub(before) / count as u64;
    assert!(each < 64 << 10, "{each} bytes for an idle connection");
    let mut piece = [0; 4096];
    let closed = idle.iter().filter(|stream| {
        std::iter::repeat_with(|| stream.try_read(&mut piece))
            .find(|read| !matches!(read, Ok(1..)))
            .is_some_and(|read| read.is_ok())
    });
    assert_eq!(closed.count(), 0, "all {count} are still open");
    drop(idle);
    trio.stop().await;
}

/// Few descriptors, and more idle clients than there are.
#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_leave_descriptors_for_others() {
    for (soft, hard) in [(64, 1024), (96, 96)] {
        let trio = Trio::start(PROGRAM, Some((soft, hard)), &[], &[]).await;
        let mut early = Exchange::open(trio.router.address).await;
        early.send("GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await;
        early.until(r#"{"alive":true}"#).await;
        let mut idle = JoinSet::new();
        for _ in 0..150 {
            // Those that are not accepted wait in the kernel.
            idle.spawn(TcpStream::connect(trio.router.address));
        }
        for _ in 0..3 {
            let plain = Plain::new(Front::Router);
            early.send(plain.sized()).await;
            let text = early.until(&plain.text).await;
            assert!(!text.contains("HTTP/1.1 5"), "{text}");
        }
        drop((early, idle));
        trio.stop().await;
    }
}

/// An answer's first word, then much more than anybody keeps for a client.
fn long_stream(question: &Question, after: &Gate) -> RawAnswer {
    let first = question.chunk(0).to_string();
    let more = event(
        &question
            .chunk(1)
            .to_string()
            .replace(&question.words[1], &"W".repeat(64 << 10)),
    );
    RawAnswer::new(End::Keep)
        .bytes(question.head("transfer-encoding: chunked\r\n"))
        .bytes(chunk(event(&first).as_bytes()))
        .repeated(chunk(more.as_bytes()), 1024)
        .gate(after)
        .bytes(chunk(event("[DONE]").as_bytes()))
        .bytes("0\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_stops_its_engine_and_costs_no_memory() {
    let trio = Trio::start(PROGRAM, None, &["--client-timeout-s", "2"], &[]).await;
    served(trio.router.address).await;
    let before = [trio.router.resident(), trio.sidecar.resident()];
    let (question, gate) = (Question::new(Shape::ALL[2]), Gate::new());
    let answer = Fault::Raw(long_stream(&question, &gate));
    trio.engine
        .script(Rule::on(Leg::Local).about(&question.mark).fault(answer));
    let deaf = client::start(
        trio.router.address,
        "POST",
        question.path,
        &[],
        &question.body,
    )
    .await;
    // Aborted, and not answered: it was never asked for all of it.
    trio.engine.saw(Leg::Local, Fate::Aborted).await;
    for (process, before) in [&trio.router, &trio.sidecar].into_iter().zip(before) {
        let grown = process.peak().saturating_sub(before);
        assert!(
            grown < 12 << 20,
            "{grown} bytes for 64 MiB that nobody read"
        );
    }
    drop(deaf);
    trio.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_gets_every_byte() {
    let fleet = one_engine(&[]).await;
    let (question, gate) = (Question::new(Shape::ALL[2]), Gate::new());
    gate.open();
    let answer = Fault::Raw(long_stream(&question, &gate));
    let engine = fleet.engine("e0");
    engine.script(Rule::on(Leg::Local).about(&question.mark).fault(answer));
    let mut stream = connect(fleet.address()).await;
    let request = client::request("POST", question.path, &[], question.body.as_bytes());
    stream.write_all(&request).await.unwrap();
    let (mut words, mut tail, mut piece) = (0, Vec::new(), vec![0; 16 << 10]);
    loop {
        let count = bounded("more of it", stream.read(&mut piece))
            .await
            .unwrap();
        if count == 0 {
            break;
        }
        words += memchr::memchr_iter(b'W', &piece[..count]).count();
        tail.extend_from_slice(&piece[..count]);
        tail.drain(..tail.len().saturating_sub(200));
        tokio::task::yield_now().await;
    }
    assert_eq!(words, 1024 * (64 << 10), "words arrived");
    let tail = String::from_utf8_lossy(&tail);
    assert!(tail.contains("data: [DONE]"), "{tail}");
    engine.behave();
    fleet.finish().await;
}

/// A half-open connection is a client that has gone: nobody can tell one from the other in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_sending_side_is_gone() {
    let fleet = one_engine(&[]).await;
    let (engine, gate) = (fleet.engine("e0"), Gate::new());
    engine.script(Rule::on(Leg::Local).gate(&gate));
    let mut stream = connect(fleet.address()).await;
    stream
        .write_all(&Plain::new(Front::Router).sized())
        .await
        .unwrap();
    gate.reached(1).await;
    stream.shutdown().await.unwrap();
    engine.saw(Leg::Local, Fate::Aborted).await;
    assert_eq!(rest(stream).await, "");
    gate.open();
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_vanish_anywhere_in_their_request_leave_nothing() {
    let fleet = one_engine(&[]).await;
    for (front, address) in [
        (Front::Router, fleet.address()),
        (Front::Sidecar, fleet.sidecar_address("e0")),
    ] {
        let mut clients = JoinSet::new();
        let length = Plain::new(front).sized().len();
        for at in 0..length {
            for by_chunks in [false, true] {
                let request = Plain::new(front).framed(by_chunks);
                clients.spawn(async move {
                    let mut stream = connect(address).await;
                    stream.write_all(&request[..at]).await.unwrap();
                    if at % 2 == 0 {
                        stream.set_zero_linger().unwrap();
                    }
                });
            }
        }
        all(clients).await;
        served(fleet.address()).await;
    }
    fleet.quiet().await;
    let seen = fleet.engine("e0").seen();
    assert_eq!(
        seen.len(),
        2,
        "no half request reached the engine: {seen:?}"
    );
    fleet.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_come_and_go_by_the_thousand_leave_nothing() {
    let fleet = one_engine(&[]).await;
    for address in [fleet.address(), fleet.sidecar_address("e0")] {
        for number in 0..1000 {
            let stream = connect(address).await;
            if number % 2 == 0 {
                stream.set_zero_linger().unwrap();
            }
        }
    }
    served(fleet.address()).await;
    fleet.finish().await;
}

/// Requests without an end, whose answers nobody reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_in_one_connection_is_not_read() {
    let trio = Trio::start(PROGRAM, None, &["--client-timeout-s", "1"], &[]).await;
    served(trio.router.address).await;
    let before = trio.router.resident();
    let stream = connect(trio.router.address).await;
    let (reading, mut writing) = stream.into_split();
    let flood = Plain::live(Front::Router).sized().repeat(1000);
    let drowned = async { while writing.write_all(&flood).await.is_ok() {} };
    bounded("the router to give up", drowned).await;
    let grown = trio.router.peak().saturating_sub(before);
    assert!(
        grown < 12 << 20,
        "{grown} bytes for answers that nobody reads"
    );
    drop(reading);
    served(trio.router.address).await;
    trio.stop().await;
}

/// Every byte of a body in a chunk of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_tiny_chunks_costs_its_size() {
    let trio = Trio::start(PROGRAM, None, &[], &[]).await;
    served(trio.router.address).await;
    let before = trio.router.resident();
    let mut stream = connect(trio.router.address).await;
    let head = Plain::new(Front::Router).with("transfer-encoding: chunked\r\n", "");
    stream.write_all(&head).await.unwrap();
    for _ in 0..25 {
        stream
            .write_all(&b"1\r\n \r\n".repeat(10_000))
            .await
            .unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut begins = [0; 13];
    bounded("an answer", stream.read_exact(&mut begins))
        .await
        .unwrap();
    assert_eq!(&begins, b"HTTP/1.1 400 ");
    let grown = trio.router.peak().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes for a body of 250 kB");
    drop(stream);
    trio.stop().await;
}

type Say = fn(&Question, RawAnswer) -> RawAnswer;

fn kilobytes(text: &str) -> Vec<u8> {
    chunk(text.repeat((64 << 10) / text.len()).as_bytes())
}

/// What an engine says too much of, and the most memory that a sidecar may spend on it.
const TOO_MUCH: &[(&str, Shape, Say, u64)] = &[
    (
        "events without a word",
        Shape::ALL[2],
        |question, answer| {
            let role = chunk(event(&question.role().to_string()).as_bytes());
            answer.repeated(role, u64::MAX)
        },
        8 << 20,
    ),
    (
        "comments",
        Shape::ALL[2],
        |_, answer| answer.repeated(kilobytes(": ping\n\n"), u64::MAX),
        8 << 20,
    ),
    (
        "an event of 100 MiB",
        Shape::ALL[2],
        |_, answer| {
            let start = answer.bytes(chunk(b"data: {\"choices\":[{\"text\":\""));
            start.repeated(kilobytes("x"), 1600)
        },
        48 << 20,
    ),
    (
        "a body without an end",
        Shape::ALL[0],
        |_, answer| answer.repeated(kilobytes(" "), u64::MAX),
        320 << 20,
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_says_too_much_is_cut_off() {
    let trio = Trio::start(PROGRAM, None, &[], &[]).await;
    let address = trio.router.address;
    served(address).await;
    for (name, shape, say, most) in TOO_MUCH {
        let before = trio.sidecar.resident();
        let question = Question::new(*shape);
        let head = question.head("transfer-encoding: chunked\r\n");
        let answer = Fault::Raw(say(&question, RawAnswer::new(End::Close).bytes(head)));
        let rule = Rule::on(Leg::Local).about(&question.mark);
        trio.engine.script(rule.fault(answer));
        let answer = client::call(address, "POST", question.path, &[], &question.body).await;
        assert_eq!(answer.served().generated(), question.text(), "{name}");
        let grown = trio.sidecar.peak().saturating_sub(before);
        assert!(grown < *most, "{name}: {grown} bytes");
    }
    let router = trio.router.peak();
    assert!(
        router < 64 << 20,
        "{router} bytes, and the router saw none of it"
    );
    trio.stop().await;
}
