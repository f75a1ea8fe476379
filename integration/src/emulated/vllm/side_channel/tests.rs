//! libzmq asks and answers on the other side.

use std::sync::atomic::Ordering;

use baton_transfer::Kind;

use super::*;
use crate::wait::{self, until};

const RECORDED: &str = include_str!("../../../../recordings/vllm/handshakes.json");

fn recorded(engine: &str) -> Vec<u8> {
    let all: serde_json::Value = serde_json::from_str(RECORDED).unwrap();
    let hex = all[engine].as_str().unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Those of a real engine, its agent among them.
fn facts() -> HandshakeFacts {
    HandshakeFacts::parse(&recorded("prefill")).unwrap()
}

struct Listening {
    listener: Listener,
    mode: Arc<Mutex<SideChannel>>,
    killed: Arc<AtomicBool>,
}

impl Listening {
    fn start() -> Self {
        let mode = Arc::<Mutex<SideChannel>>::default();
        let killed = Arc::<AtomicBool>::default();
        let listener = Listener::start(
            crate::ports::free(),
            &facts(),
            Arc::clone(&mode),
            Arc::clone(&killed),
        )
        .unwrap();
        Self {
            listener,
            mode,
            killed,
        }
    }

    fn peer(&self, kind: zmq::SocketType) -> zmq::Socket {
        let socket = zmq::Context::new().socket(kind).unwrap();
        let patience = i32::try_from(wait::PATIENCE.as_millis()).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(patience).unwrap();
        socket
            .connect(&format!("tcp://{}", self.listener.address()))
            .unwrap();
        socket
    }
}

#[test]
fn the_payload_is_the_recorded_one() {
    assert_eq!(facts().encode(), recorded("prefill"));
}

#[test]
fn facts_survive_the_way() {
    assert_eq!(HandshakeFacts::parse(&facts().encode()), Ok(facts()));
    let real = HandshakeFacts::parse(&recorded("decode")).unwrap();
    assert_eq!(real.metadata.kind(), Kind::Nixl);
    assert_eq!(
        (
            real.block_len_bytes,
            real.regions().block_bytes(),
            real.num_blocks
        ),
        (8192, 16_384, 256)
    );
    let spans: Vec<_> = real.regions().spans(255).unwrap().collect();
    let [first, second] = &real.base_addresses[..] else {
        panic!("it has two layers");
    };
    let addresses = [first + 255 * 8192, second + 255 * 8192];
    assert_eq!(
        spans.iter().map(|span| span.address).collect::<Vec<_>>(),
        addresses
    );
    assert!(spans.iter().all(|span| span.bytes == 8192));
    assert!(real.regions().spans(256).is_none());
}

#[test]
fn a_sidecar_reads_what_is_meant() {
    let read = baton_sidecar_vllm::handshake::Handshake::parse(&facts().encode()).unwrap();
    assert_eq!(read.incarnation.to_string(), facts().metadata.agent_name());
    assert_eq!(read.engine_id, facts().engine_id);
    assert_eq!(read.geometry.bytes_per_token(), 512);
}

#[tokio::test(flavor = "multi_thread")]
async fn req_and_dealer_get_payload_and_clock() {
    let listening = Listening::start();
    let req = listening.peer(zmq::REQ);
    req.send(REQUEST, 0).unwrap();
    let [payload, clock] = &req.recv_multipart(0).unwrap()[..] else {
        panic!("a reply has two frames");
    };
    assert_eq!(*payload, facts().encode());
    let clock: f64 = rmp_serde::from_slice(clock).unwrap();

    let dealer = listening.peer(zmq::DEALER);
    dealer.send_multipart([b"", REQUEST], 0).unwrap();
    let [empty, again, later] = &dealer.recv_multipart(0).unwrap()[..] else {
        panic!("a DEALER gets the empty frame, too");
    };
    let later: f64 = rmp_serde::from_slice(later).unwrap();
    assert!(empty.is_empty() && again == payload && later >= clock && clock > 0.0);
    listening.listener.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_magic_is_answered_and_all_else_ends_the_listener() {
    let unknown_rank: &[u8] = b"\x93\xc4\x0cget_meta_msg\x00\x07";
    let ends: [&[&[u8]]; 4] = [
        &[b"", unknown_rank],
        &[REQUEST],
        &[b"", b"\xc1"],
        &[b"", REQUEST, b"more"],
    ];
    for frames in ends {
        let listening = Listening::start();
        let dealer = listening.peer(zmq::DEALER);
        dealer
            .send_multipart([&b""[..], b"\x93\xc4\x0bother_magic\x00\x00"], 0)
            .unwrap();
        assert_eq!(dealer.recv_multipart(0).unwrap().len(), 3);
        assert!(!listening.killed.load(Ordering::Relaxed));

        dealer.send_multipart(frames, 0).unwrap();
        until("the listener to die", || async {
            listening.killed.load(Ordering::Relaxed)
        })
        .await;
        let port = listening.listener.address().port();
        let short = Duration::from_millis(200);
        let dead = handshake("127.0.0.1", port, short).await;
        assert!(
            matches!(dead, Err(HandshakeError::NoAnswer { .. })),
            "{dead:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_engine_tells_no_answer_from_nonsense() {
    let listening = Listening::start();
    let port = listening.listener.address().port();
    let says = |mode| *listening.mode.lock().unwrap() = mode;
    let short = Duration::from_millis(200);

    assert_eq!(
        handshake("127.0.0.1", port, wait::PATIENCE).await,
        Ok(facts())
    );
    for mode in [SideChannel::Garbage, SideChannel::OtherShape] {
        says(mode);
        let nonsense = handshake("127.0.0.1", port, wait::PATIENCE).await;
        assert!(
            matches!(nonsense, Err(HandshakeError::Nonsense(_))),
            "{nonsense:?}"
        );
    }
    says(SideChannel::Mute);
    let mute = handshake("127.0.0.1", port, short).await;
    assert!(
        matches!(mute, Err(HandshakeError::NoAnswer { .. })),
        "{mute:?}"
    );

    listening.listener.stop().await;
    let gone = handshake("127.0.0.1", port, short).await;
    assert!(
        matches!(gone, Err(HandshakeError::NoAnswer { .. })),
        "{gone:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_engine_understands_libzmq() {
    let router = zmq::Context::new().socket(zmq::ROUTER).unwrap();
    router.set_linger(0).unwrap();
    router
        .set_rcvtimeo(i32::try_from(wait::PATIENCE.as_millis()).unwrap())
        .unwrap();
    router.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = router.get_last_endpoint().unwrap().unwrap();
    let port = endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
    let answering = std::thread::spawn(move || {
        let frames = router.recv_multipart(0).unwrap();
        let [identity, empty, request] = &frames[..] else {
            panic!("not what a REQ sends: {frames:?}");
        };
        assert!(empty.is_empty() && request == REQUEST);
        let payload = recorded("prefill");
        let reply: [&[u8]; 4] = [
            identity,
            b"",
            &payload,
            b"\xcb\x40\xa5\xf7\x35\x76\xed\x47\x41",
        ];
        router.send_multipart(reply, 0).unwrap();
        router
    });
    let asked = handshake("127.0.0.1", port, wait::PATIENCE).await.unwrap();
    assert_eq!(asked.engine_id, "prefill-1796007702");
    answering.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_listener_leaves_its_port_at_once() {
    let listening = Listening::start();
    let address = listening.listener.address();
    let req = listening.peer(zmq::REQ);
    req.send(REQUEST, 0).unwrap();
    req.recv_multipart(0).unwrap();
    listening.listener.stop().await;
    let next = Listener::start(address, &facts(), Arc::default(), Arc::default()).unwrap();
    assert_eq!(next.address(), address);
    drop(next);
    until("the dropped listener's port to be free", || async {
        TcpListener::bind(address).is_ok()
    })
    .await;
}
