//! What an agent does for its caller, on both fabrics: the same tests, with NIXL where its library is named.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::time::Duration;

use baton_transfer::{
    Agent, AgentConfig, Fabric, Library, Metadata, Peer, Pool, ReadFailed, Slots, Span,
    TransferError,
};

const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! on_both_fabrics {
    ($($name:ident),* $(,)?) => {
        mod loopback {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::Fabric::loopback()).await;
            })*
        }

        mod nixl {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs NIXL: BATON_NIXL_LIB names its library"]
            async fn $name() {
                super::$name(super::nixl_fabric()).await;
            })*
        }
    };
}

on_both_fabrics!(
    bytes_come_and_the_holder_is_told,
    agents_tell_each_other_bytes,
    what_is_not_registered_is_not_read,
    calls_without_sense_are_refused,
    a_name_stands_for_the_same_bytes,
    whoever_is_forgotten_can_be_met_again,
    an_agent_that_ended_says_so,
    slots_come_back_when_nobody_waits,
    many_callers_share_an_agent,
);

fn nixl_fabric() -> Fabric {
    let library = std::env::var_os("BATON_NIXL_LIB").expect("BATON_NIXL_LIB is set");
    let library = Library::find(Some(library.as_ref()), &[]).unwrap();
    Fabric::nixl(&library).unwrap()
}

/// Names are kept for as long as a process lives, so each test has its own.
async fn start(fabric: Fabric, test: &str, name: &str) -> Agent {
    let config = AgentConfig::new(format!("{test}-{name}"));
    Agent::start(&fabric, config).await.unwrap()
}

/// An agent with memory in which each byte is its offset, and what it tells of itself.
struct Holder {
    agent: Agent,
    held: Slots,
    metadata: Metadata,
}

impl Holder {
    async fn start(fabric: Fabric, test: &str) -> Self {
        let agent = start(fabric, test, "holder").await;
        let pool = agent.register(64, 4).await.unwrap();
        let mut held = pool.take(4).unwrap();
        for slot in 0..4 {
            let bytes: Vec<u8> = (0..64).map(|at| slot * 64 + at).collect();
            held.write(slot.into(), 0, &bytes);
        }
        let metadata = agent.metadata().await.unwrap();
        Self {
            agent,
            held,
            metadata,
        }
    }

    fn span(&self, at: u64, bytes: usize) -> Span {
        let address = self.held.span(0).address + at;
        Span {
            address,
            bytes,
            device: 0,
        }
    }
}

/// One that reads from it.
struct Reader {
    agent: Agent,
    peer: Peer,
    pool: Pool,
}

impl Reader {
    async fn start(fabric: Fabric, test: &str, holder: &Holder) -> Self {
        let agent = start(fabric, test, "reader").await;
        let pool = agent.register(16, 8).await.unwrap();
        let peer = agent.meet(&holder.metadata).await.unwrap();
        Self { agent, peer, pool }
    }

    async fn read(&self, spans: &[Span], told: Option<&[u8]>) -> Result<Slots, ReadFailed> {
        let into = self.pool.take(2).unwrap();
        self.agent
            .read(&self.peer, spans, into, told, PATIENCE)
            .await
    }

    fn unknown(&self) -> TransferError {
        TransferError::Unknown(self.peer.name().to_owned())
    }
}

/// The only message that comes next.
async fn hear(agent: &Agent) -> (String, Vec<u8>) {
    let mut came = agent.notifications().await.unwrap();
    assert_eq!(came.len(), 1, "{came:?}");
    let came = came.remove(0);
    (came.agent, came.message)
}

async fn bytes_come_and_the_holder_is_told(fabric: Fabric) {
    let test = "bytes_come";
    let holder = Holder::start(fabric, test).await;
    let reader = Reader::start(fabric, test, &holder).await;
    let spans = [holder.span(200, 10), holder.span(3, 20)];
    let told = b"id:1 \xff\0\xfe";
    let read = reader.read(&spans, Some(told)).await.unwrap();
    let expected: Vec<u8> = (200..210).chain(3..23).collect();
    assert_eq!(read.to_vec()[..30], expected);
    assert_eq!(read.to_vec()[30..], [0, 0]);
    let from = reader.agent.name().to_owned();
    assert_eq!(hear(&holder.agent).await, (from, told.to_vec()));
    // A second one finds what the holder has written since.
    let Holder { mut held, .. } = holder;
    held.write(0, 0, &[7; 64]);
    let read = reader.read(&[held.span(0)], None).await;
    assert!(read.is_err(), "64 bytes do not fit into 32");
    let span = Span {
        bytes: 16,
        ..held.span(0)
    };
    let read = reader.read(&[span], None).await.unwrap();
    assert_eq!(read.to_vec()[..16], [7; 16]);
}

async fn agents_tell_each_other_bytes(fabric: Fabric) {
    let one = start(fabric, "tell", "one").await;
    let other = start(fabric, "tell", "other").await;
    let to_other = one.meet(&other.metadata().await.unwrap()).await.unwrap();
    let to_one = other.meet(&one.metadata().await.unwrap()).await.unwrap();
    for message in [&b"HB:a,b"[..], b"", b"\xff\0\xfe", &[b'x'; 5000]] {
        one.notify(&to_other, message).await.unwrap();
        let said = (one.name().to_owned(), message.to_vec());
        assert_eq!(hear(&other).await, said);
        other.notify(&to_one, message).await.unwrap();
        let said = (other.name().to_owned(), message.to_vec());
        assert_eq!(hear(&one).await, said);
    }
}

async fn what_is_not_registered_is_not_read(fabric: Fabric) {
    let test = "not_registered";
    let holder = Holder::start(fabric, test).await;
    let reader = Reader::start(fabric, test, &holder).await;
    let at = |address, bytes| Span {
        address,
        bytes,
        device: 0,
    };
    let absent = [
        holder.span(250, 7),
        holder.span(1 << 40, 8),
        at(0, 1),
        at(u64::MAX - 8, 8),
    ];
    for span in absent {
        let spans = [holder.span(0, 8), span];
        let failed = reader.read(&spans, Some(b"no")).await.unwrap_err();
        let expected = TransferError::NoSuchMemory(reader.peer.name().to_owned());
        assert_eq!(failed.error, expected, "{span:?}");
        assert!(failed.slots.is_some(), "nothing is written: {span:?}");
    }
    // The connection has not suffered, and nobody was told of what did not come.
    let read = reader.read(&[holder.span(0, 8)], Some(b"yes")).await;
    read.unwrap();
    assert_eq!(hear(&holder.agent).await.1, b"yes");
}

async fn calls_without_sense_are_refused(fabric: Fabric) {
    let test = "without_sense";
    let holder = Holder::start(fabric, test).await;
    let reader = Reader::start(fabric, test, &holder).await;
    let nothing = TransferError::Refused("there is nothing to read");
    let small = TransferError::Refused("the slots are too small");
    let senseless = [
        (vec![], &nothing),
        (vec![holder.span(0, 8), holder.span(0, 0)], &nothing),
        (vec![holder.span(0, 33)], &small),
        (vec![holder.span(0, usize::MAX); 2], &small),
    ];
    for (spans, expected) in senseless {
        let failed = reader.read(&spans, None).await.unwrap_err();
        assert_eq!(failed.error, *expected);
        assert!(failed.slots.is_some());
    }

    let other = start(fabric, test, "other").await;
    let pool = other.register(16, 4).await.unwrap();
    let Reader { agent, peer, .. } = &reader;
    let spans = [holder.span(0, 8)];
    let strange = agent.read(peer, &spans, pool.take(1).unwrap(), None, PATIENCE);
    let failed = strange.await.unwrap_err();
    let expected = TransferError::Refused("the slots are another agent's");
    assert_eq!(failed.error, expected);
    let strange = other.read(peer, &spans, pool.take(1).unwrap(), None, PATIENCE);
    assert_eq!(strange.await.unwrap_err().error, reader.unknown());
    let strange = other.notify(peer, b"hello").await;
    assert_eq!(strange.unwrap_err(), reader.unknown());

    let nothing = other.register(16, 0).await;
    assert_eq!(nothing.unwrap_err(), TransferError::NoRoom(0));
    let nameless = Agent::start(&fabric, AgentConfig::new("")).await;
    let expected = TransferError::Refused("no agent can be called that");
    assert_eq!(nameless.unwrap_err(), expected);
}

async fn a_name_stands_for_the_same_bytes(fabric: Fabric) {
    let test = "same_bytes";
    let holder = Holder::start(fabric, test).await;
    let reader = Reader::start(fabric, test, &holder).await;
    let again = reader.agent.meet(&holder.metadata).await.unwrap();
    assert_eq!(again, reader.peer);
    let mut bytes = holder.metadata.bytes().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let changed = Metadata::parse(&bytes).unwrap();
    let error = reader.agent.meet(&changed).await.unwrap_err();
    let name = holder.agent.name().to_owned();
    assert_eq!(error, TransferError::Changed(name));
    reader.read(&[holder.span(0, 8)], None).await.unwrap();

    let own = reader.agent.metadata().await.unwrap();
    let error = reader.agent.meet(&own).await.unwrap_err();
    let expected = TransferError::Refused("an agent does not meet itself");
    assert_eq!(error, expected);
}

async fn whoever_is_forgotten_can_be_met_again(fabric: Fabric) {
    let test = "forgotten";
    let holder = Holder::start(fabric, test).await;
    let mut reader = Reader::start(fabric, test, &holder).await;
    reader.agent.notify(&reader.peer, b"before").await.unwrap();
    assert_eq!(hear(&holder.agent).await.1, b"before");
    reader.agent.forget(reader.peer.clone()).await;
    let between = reader.agent.notify(&reader.peer, b"between").await;
    assert_eq!(between.unwrap_err(), reader.unknown());
    reader.peer = reader.agent.meet(&holder.metadata).await.unwrap();
    let read = reader.read(&[holder.span(9, 1)], Some(b"after")).await;
    assert_eq!(read.unwrap().to_vec()[0], 9);
    assert_eq!(hear(&holder.agent).await.1, b"after");
}

async fn an_agent_that_ended_says_so(fabric: Fabric) {
    let test = "ended";
    let holder = Holder::start(fabric, test).await;
    let reader = Reader::start(fabric, test, &holder).await;
    let agent = &reader.agent;
    let waiting = [agent.clone(), agent.clone()]
        .map(|agent| tokio::spawn(async move { agent.notifications().await }));
    agent.end();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap_err(), TransferError::Gone);
    }
    let late = agent.notify(&reader.peer, b"late").await;
    assert_eq!(late.unwrap_err(), TransferError::Gone);
    assert_eq!(agent.metadata().await.unwrap_err(), TransferError::Gone);
    let late = reader.read(&[holder.span(0, 8)], None).await;
    assert_eq!(late.unwrap_err().error, TransferError::Gone);
    // What it had registered can still be used by those who have it.
    assert_eq!(reader.pool.take(1).unwrap().to_vec(), [0; 16]);
}

async fn slots_come_back_when_nobody_waits(fabric: Fabric) {
    let test = "nobody_waits";
    let holder = Holder::start(fabric, test).await;
    let Reader { agent, peer, pool } = Reader::start(fabric, test, &holder).await;
    for _ in 0..20 {
        let into = pool.take(4).unwrap();
        let spans = [holder.span(0, 64)];
        let read = agent.read(&peer, &spans, into, None, Duration::ZERO);
        if let Err(failed) = read.await {
            assert_eq!(failed.error, TransferError::Deadline(Duration::ZERO));
            assert!(failed.slots.is_none());
        }
        // Whatever became of it, it ends: its holder lives.
        let came_back = async {
            while pool.available() < 8 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, came_back).await.unwrap();
        assert_eq!(pool.quarantined(), 0);
    }
}

async fn many_callers_share_an_agent(fabric: Fabric) {
    let test = "many_callers";
    let holder = Holder::start(fabric, test).await;
    let Reader { agent, peer, pool } = Reader::start(fabric, test, &holder).await;
    let callers = (0..8u8).map(|caller| {
        let (agent, peer, pool) = (agent.clone(), peer.clone(), pool.clone());
        let spans = [holder.span(u64::from(caller) * 32, 16)];
        tokio::spawn(async move {
            let told = [caller];
            for _ in 0..100 {
                let into = pool.take(1).unwrap();
                let read = agent.read(&peer, &spans, into, Some(&told), PATIENCE);
                let expected: Vec<u8> = (caller * 32..).take(16).collect();
                assert_eq!(read.await.unwrap().to_vec(), expected);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let mut heard = [0; 8];
    while heard.iter().sum::<u32>() < 800 {
        for came in holder.agent.notifications().await.unwrap() {
            heard[usize::from(came.message[0])] += 1;
        }
    }
    assert_eq!(heard, [100; 8]);
}
