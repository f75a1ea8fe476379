//! libzmq listens: what was recorded, and each fault as it is meant.

use serde_json::Value as Json;

use super::*;
use crate::emulated::vllm::events::{Event, Form, HashForm, Removed};
use crate::emulated::vllm::recorded::{self, RECORDINGS, unhex};
use crate::wait::{self, until};

const EXCHANGES: &str = include_str!("../../../recordings/vllm/kv_events/replay_exchange.json");
const SOURCES: &str = include_str!("../../../recordings/vllm/kv_events/sources.json");

type Message = Vec<Vec<u8>>;

fn config() -> PublisherConfig {
    PublisherConfig {
        endpoint: "tcp://*:0".to_owned(),
        replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv@agg@tiny".to_owned(),
        buffer_steps: 1000,
        ..PublisherConfig::default()
    }
}

fn socket(kind: zmq::SocketType) -> zmq::Socket {
    let socket = zmq::Context::new().socket(kind).unwrap();
    let patience = i32::try_from(wait::PATIENCE.as_millis()).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvtimeo(patience).unwrap();
    socket
}

/// A publisher, who listens to it, and who asks it.
struct Pair {
    publisher: Publisher,
    sub: zmq::Socket,
    dealer: zmq::Socket,
}

impl Pair {
    fn start(config: PublisherConfig) -> Self {
        let publisher = Publisher::start(config, 0).unwrap();
        let source = publisher.sources()["0"].clone();
        let (sub, dealer) = (socket(zmq::SUB), socket(zmq::DEALER));
        sub.set_subscribe(b"kv@agg").unwrap();
        sub.connect(source["endpoint"].as_str().unwrap()).unwrap();
        dealer
            .connect(source["replay_endpoint"].as_str().unwrap())
            .unwrap();
        let pair = Self {
            publisher,
            sub,
            dealer,
        };
        subscribed(&pair.publisher, &pair.sub);
        pair
    }

    fn raise(&self, fault: EventFault) {
        self.publisher.faults().raise(fault);
    }

    /// Publishes one batch for each mark.
    fn publish(&self, marks: impl IntoIterator<Item = u8>) {
        marks
            .into_iter()
            .for_each(|mark| self.publisher.publish(marked(mark)));
    }

    fn message(&self) -> Message {
        self.sub.recv_multipart(0).unwrap()
    }

    /// Number and mark of each of the next messages.
    fn heard(&self, messages: usize) -> Vec<(u64, u8)> {
        (0..messages).map(|_| read(&self.message())).collect()
    }

    fn ask(&self, from: u64) {
        self.dealer
            .send_multipart([&b""[..], &from.to_be_bytes()], 0)
            .unwrap();
    }

    /// Number and mark of each answer up to the end marker, which is awaited.
    fn replayed(&self) -> Vec<(u64, u8)> {
        let mut answers = Vec::new();
        loop {
            let answer = self.dealer.recv_multipart(0).unwrap();
            if answer[2] == [0xff; 8] {
                assert_eq!(answer, [&b""[..], b"", &[0xff; 8], b""]);
                return answers;
            }
            assert!(answer[0].is_empty());
            answers.push(read(&answer[1..]));
        }
    }
}

/// Publishes until the subscriber hears it, and lets it hear all of that.
fn subscribed(publisher: &Publisher, sub: &zmq::Socket) {
    let deadline = Instant::now() + wait::PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "the subscriber hears nothing");
        publisher.publish(marked(0));
        if sub.poll(zmq::POLLIN, 20).unwrap() > 0 {
            break;
        }
    }
    while read(&sub.recv_multipart(0).unwrap()).0 + 1 < publisher.next_sequence() {}
}

/// A batch that can be told from others.
fn marked(mark: u8) -> impl FnOnce(Told) -> Vec<u8> {
    let hashes = vec![[mark; 32]];
    written(vec![Event::Removed(Removed { hashes })])
}

fn written(events: Vec<Event>) -> impl FnOnce(Told) -> Vec<u8> {
    Event::write(events, Form::Maps, HashForm::Int)
}

fn read(message: &[Vec<u8>]) -> (u64, u8) {
    let [topic, number, payload] = message else {
        panic!("{} frames", message.len());
    };
    assert_eq!(topic, b"kv@agg@tiny");
    let events = recorded::batch(payload).events;
    let [Event::Removed(removed)] = &events[..] else {
        panic!("no marked batch: {events:?}");
    };
    (sequence(number), removed.hashes[0][31])
}

fn sequence(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

/// Frames without what is the clock's: a batch begins with an array of three and a float.
fn timeless(frames: &[Vec<u8>]) -> Message {
    let masked = |frame: &Vec<u8>| match &frame[..] {
        [0x93, 0xcb, rest @ ..] => rest[8..].to_vec(),
        _ => frame.clone(),
    };
    frames.iter().map(masked).collect()
}

fn hex_frames(frames: &Json) -> Message {
    let frames = frames.as_array().unwrap().iter();
    frames.map(|frame| unhex(frame.as_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn libzmq_sees_what_was_recorded() {
    let pair = Pair::start(config());
    pair.raise(EventFault::RestartSequence);
    for line in RECORDINGS[0].1.lines() {
        let recorded = hex_frames(&serde_json::from_str::<Json>(line).unwrap()["frames_hex"]);
        pair.publisher
            .publish(written(recorded::batch(&recorded[2]).events));
        assert_eq!(timeless(&pair.message()), timeless(&recorded));
    }

    let exchanges: Json = serde_json::from_str(EXCHANGES).unwrap();
    let exchanges = exchanges.as_array().unwrap();
    assert_eq!(exchanges.len(), 4);
    for exchange in exchanges {
        exchanged(&pair, exchange).await;
    }
}

async fn exchanged(pair: &Pair, exchange: &Json) {
    let label = exchange["label"].as_str().unwrap();
    let asks = hex_frames(&exchange["sent_frames_hex"]);
    let of_its_own = socket(zmq::REQ);
    let asker = match exchange["client_socket"].as_str().unwrap() {
        "REQ" => {
            let source = &pair.publisher.sources()["0"];
            of_its_own
                .connect(source["replay_endpoint"].as_str().unwrap())
                .unwrap();
            &of_its_own
        }
        _ => &pair.dealer,
    };
    asker.send_multipart(asks, 0).unwrap();
    if label.contains("TIMEOUT") {
        let ignored = || async { pair.publisher.replays_ignored() == 1 };
        until("the request to be passed over", ignored).await;
        return;
    }
    for expected in exchange["received_frames_hex"].as_array().unwrap() {
        let received = asker.recv_multipart(0).unwrap();
        assert_eq!(
            timeless(&received),
            timeless(&hex_frames(expected)),
            "{label}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_batches_leave_a_gap_which_replay_may_fill() {
    let pair = Pair::start(config());
    let at = pair.publisher.next_sequence();
    for (replayable, batches) in [(true, 2), (false, 1)] {
        pair.raise(EventFault::Lose {
            batches,
            replayable,
        });
    }
    pair.publish(1..=4);
    assert_eq!(pair.heard(1), [(at + 3, 4)]);
    pair.ask(at);
    assert_eq!(pair.replayed(), [(at, 1), (at + 1, 2), (at + 3, 4)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_loss_leaves_no_gap() {
    let pair = Pair::start(config());
    let at = pair.publisher.next_sequence();
    pair.raise(EventFault::LoseSilently { batches: 2 });
    pair.publish(1..=3);
    assert_eq!(pair.heard(1), [(at, 3)]);
    pair.ask(at);
    assert_eq!(pair.replayed(), [(at, 3)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_change_places_and_come_twice() {
    let pair = Pair::start(config());
    let at = pair.publisher.next_sequence();
    pair.raise(EventFault::SwapNextTwo);
    pair.publish(1..=3);
    assert_eq!(pair.heard(3), [(at + 1, 2), (at, 1), (at + 2, 3)]);

    pair.raise(EventFault::Duplicate { batches: 1 });
    pair.publish(4..=5);
    assert_eq!(pair.heard(3), [(at + 3, 4), (at + 3, 4), (at + 4, 5)]);

    pair.raise(EventFault::SwapNextTwo);
    pair.publish([6]);
    pair.publisher.faults().clear();
    assert_eq!(pair.heard(1), [(at + 5, 6)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_begin_again_and_history_is_forgotten() {
    let pair = Pair::start(config());
    let at = pair.publisher.next_sequence();
    pair.publish(1..=3);
    pair.heard(3);
    pair.raise(EventFault::ForgetHistory { keep: 1 });
    pair.ask(at);
    assert_eq!(pair.replayed(), [(at + 2, 3)]);

    pair.raise(EventFault::RestartSequence);
    pair.ask(0);
    assert_eq!(pair.replayed(), []);
    pair.publish([4]);
    assert_eq!(pair.heard(1), [(0, 4)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_buffer_holds_so_many_steps() {
    let pair = Pair::start(PublisherConfig {
        buffer_steps: 2,
        ..config()
    });
    let at = pair.publisher.next_sequence();
    pair.publish(1..=4);
    pair.ask(at);
    assert_eq!(pair.replayed(), [(at + 2, 3), (at + 3, 4)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_too_long_is_lost_with_its_number() {
    let room = 1000;
    let pair = Pair::start(PublisherConfig {
        max_queue_size: room,
        ..config()
    });
    let at = pair.publisher.next_sequence();
    pair.raise(EventFault::Hold);
    pair.publish(std::iter::repeat_n(1, room));
    assert_eq!(pair.publisher.dropped(), 0);
    pair.publish(2..=4);
    assert_eq!(pair.publisher.dropped(), 3);

    pair.publisher.faults().clear();
    let sent = (at..).take(room).map(|sequence| (sequence, 1));
    assert_eq!(pair.heard(room), sent.collect::<Vec<_>>());
    pair.publish([5]);
    let next = at + room as u64;
    assert_eq!(pair.heard(1), [(next + 3, 5)]);
    pair.ask(next);
    let kept = [(next, 2), (next + 1, 3), (next + 2, 4), (next + 3, 5)];
    assert_eq!(pair.replayed(), kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn mangled_batches_are_mangled_as_meant() {
    let pair = Pair::start(config());
    let mangled = |how| {
        pair.raise(EventFault::Mangle(how));
        pair.publish([1]);
        pair.message()
    };
    let decoded = |payload: &[u8]| rmpv::decode::read_value(&mut &payload[..]);

    let garbage = mangled(Mangled::NotMessagePack);
    assert_eq!(garbage[2][0], 0xc1, "a byte that MessagePack never uses");
    assert!(decoded(&mangled(Mangled::Truncated)[2]).is_err());
    assert!(decoded(&mangled(Mangled::OtherShape)[2]).unwrap().is_map());
    let unknown = decoded(&mangled(Mangled::UnknownEvent)[2]).unwrap();
    assert_eq!(unknown[1][0]["type"].as_str(), Some("BlockPromoted"));
    assert_eq!(unknown[1][1]["type"].as_str(), Some("BlockRemoved"));
    assert_eq!(mangled(Mangled::FrameMissing).len(), 2);
    assert_eq!(mangled(Mangled::FrameTooMany).len(), 4);
    assert_eq!(mangled(Mangled::ShortSequence)[1].len(), 4);
    let bytes = 20 << 20;
    assert!(mangled(Mangled::Huge { bytes })[2].len() > bytes);

    let at = pair.publisher.next_sequence();
    pair.publish([2]);
    assert_eq!(pair.heard(1), [(at, 2)]);
    pair.ask(at - 8);
    assert_eq!(pair.replayed().len(), 9, "the buffer has them whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_lies_as_meant() {
    let pair = Pair::start(config());
    let at = pair.publisher.next_sequence();
    pair.publish(1..=3);
    let replayed = |fault| {
        pair.raise(EventFault::Replay(fault));
        pair.ask(at);
        pair.replayed()
    };
    let others = [(at, 2), (at + 1, 3), (at + 2, 1)];
    assert_eq!(replayed(ReplayFault::OtherPayloads), others);
    let backwards = [(at + 2, 3), (at + 1, 2), (at, 1)];
    assert_eq!(replayed(ReplayFault::OutOfOrder), backwards);
    assert_eq!(replayed(ReplayFault::OneMissing), [(at, 1), (at + 2, 3)]);

    let before = pair.publisher.replays();
    for fault in [ReplayFault::NoEndMarker, ReplayFault::Mute] {
        pair.raise(EventFault::Replay(fault));
        let asked = pair.publisher.replays() + 1;
        pair.ask(at + 2);
        let read = || async { pair.publisher.replays() == asked };
        until("the request to be read", read).await;
    }
    assert_eq!(pair.publisher.replays(), before + 2);
    pair.publisher.faults().clear();
    pair.ask(at + 1);
    // The one answer without an end, nothing, then all of the last.
    assert_eq!(pair.replayed(), [(at + 2, 3), (at + 1, 2), (at + 2, 3)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_connects_to_a_subscriber_that_binds_and_finds_the_next_one() {
    let endpoint = format!("tcp://{}", crate::ports::free());
    let publisher = Publisher::start(
        PublisherConfig {
            endpoint: endpoint.clone(),
            topic: "kv@agg@tiny".to_owned(),
            ..PublisherConfig::default()
        },
        0,
    );
    let publisher = publisher.unwrap();
    assert_eq!(publisher.sources()["0"]["endpoint"], *endpoint);
    assert!(publisher.sources()["0"]["replay_endpoint"].is_null());
    for _ in 0..2 {
        let sub = socket(zmq::SUB);
        sub.set_subscribe(b"").unwrap();
        until("the subscriber's port to be free", || async {
            sub.bind(&endpoint).is_ok()
        })
        .await;
        subscribed(&publisher, &sub);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn its_ports_are_free_when_it_has_stopped() {
    let addresses = [crate::ports::free(), crate::ports::free()];
    let [endpoint, replay] = addresses.map(|address| format!("tcp://*:{}", address.port()));
    let config = || PublisherConfig {
        endpoint: endpoint.clone(),
        replay_endpoint: Some(replay.clone()),
        ..config()
    };
    let publisher = Publisher::start(config(), 0).unwrap();
    let sub = socket(zmq::SUB);
    sub.set_subscribe(b"").unwrap();
    sub.connect(&format!("tcp://{}", addresses[0])).unwrap();
    subscribed(&publisher, &sub);
    publisher.stop().await;
    // Under the last one's subscriber; and this time just dropped.
    let again = Publisher::start(config(), 0).unwrap();
    subscribed(&again, &sub);
    drop(again);
    for address in addresses {
        until("the dropped publisher's port to be free", || async {
            std::net::TcpListener::bind(address).is_ok()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_binds_a_path_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}", folder.path().join("events").display());
    for _ in 0..2 {
        let config = PublisherConfig {
            endpoint: endpoint.clone(),
            replay_endpoint: None,
            ..config()
        };
        let publisher = Publisher::start(config, 0).unwrap();
        let sub = socket(zmq::SUB);
        sub.set_subscribe(b"kv@").unwrap();
        sub.connect(&endpoint).unwrap();
        subscribed(&publisher, &sub);
        publisher.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_taken_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://*:{}", taken.local_addr().unwrap().port());
    let config = PublisherConfig {
        endpoint: endpoint.clone(),
        ..config()
    };
    let error = Publisher::start(config, 0).unwrap_err();
    assert!(error.to_string().contains(&endpoint), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_have_the_recorded_shape() {
    let recorded: Json = serde_json::from_str(SOURCES).unwrap();
    let recorded = &recorded["response"]["body"]["0"];
    let of = |rank, base: u16| {
        let config = PublisherConfig {
            endpoint: format!("tcp://*:{base}"),
            replay_endpoint: None,
            ..config()
        };
        Publisher::start(config, rank).unwrap().sources()
    };
    let port = crate::ports::free().port();
    let mut source = of(0, port)["0"].clone();
    source["endpoint"] = recorded["endpoint"].clone();
    source["replay_endpoint"] = recorded["replay_endpoint"].clone();
    assert_eq!(source, *recorded);

    let port = crate::ports::free().port();
    assert_eq!(of(1, port - 1)["1"]["endpoint"], format!("tcp://*:{port}"));
}
