//! What goes wrong between two processes that move memory: the peer is killed, stands still, tells nonsense of itself, or
//! takes its memory away. Each case over loopback TCP, and over NIXL where its library is named.
//!
//! Both agents are in processes of their own, for some of these have been seen to end a process.

use std::path::PathBuf;
use std::time::Duration;

use baton_integration::transfer_peer::{Process, SLOT, Started};
use baton_integration::wait::{PATIENCE, until};

/// Of a read from a peer that stands still.
const SHORT: Duration = Duration::from_millis(300);

macro_rules! on_both_fabrics {
    ($($name:ident),* $(,)?) => {
        mod loopback {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Fabric { nixl: None }).await;
            })*
        }

        mod nixl {
            $(#[tokio::test]
            #[ignore = "needs NIXL: cargo xtask e2e vllm --only transfer"]
            async fn $name() {
                super::$name(super::Fabric::nixl()).await;
            })*
        }
    };
}

on_both_fabrics!(
    a_killed_peer_is_gone_and_its_successor_is_not,
    a_peer_that_stands_still_keeps_no_caller_and_gets_no_slot_back,
    slots_leave_quarantine_when_the_peer_dies,
    a_process_ends_though_its_peer_stands_still,
    memory_that_is_taken_away_ends_nobody,
    broken_metadata_ends_nobody,
    nothing_listens_but_on_loopback,
);

struct Fabric {
    nixl: Option<PathBuf>,
}

impl Fabric {
    fn nixl() -> Self {
        let library = std::env::var_os("BATON_NIXL_LIB").expect("BATON_NIXL_LIB is set");
        Self {
            nixl: Some(library.into()),
        }
    }

    /// Over shared memory NIXL copies from a process that stands still as from any other; over TCP, as over a network, the
    /// peer takes part.
    fn spawn_far(&self) -> Process {
        self.spawn(&[("UCX_TLS", "tcp")])
    }

    fn spawn_near(&self) -> Process {
        self.spawn(&[])
    }

    fn spawn(&self, variables: &[(&str, &str)]) -> Process {
        let program = env!("CARGO_BIN_EXE_baton-transfer-peer");
        Process::spawn(program, self.nixl.as_deref(), variables)
    }
}

/// A holder whose memory is filled with a byte, and a reader that has met it and read from it.
async fn pair(spawn: impl Fn() -> Process) -> (Process, Started, Process) {
    let (mut holder, mut reader) = (spawn(), spawn());
    let held = holder.start("holder").await;
    assert_eq!(holder.ask("fill 7").await, "filled");
    reader.start("reader").await;
    assert_eq!(reader.meet(&held.metadata).await, "met holder");
    assert_eq!(reader.read(&held, SLOT, PATIENCE).await, "read 7");
    (holder, held, reader)
}

async fn until_pool_is(reader: &mut Process, expected: &str) {
    let reader = tokio::sync::Mutex::new(reader);
    until(expected, || async {
        reader.lock().await.ask("pool").await == expected
    })
    .await;
}

async fn a_killed_peer_is_gone_and_its_successor_is_not(fabric: Fabric) {
    for spawn in [Fabric::spawn_near, Fabric::spawn_far] {
        let (mut holder, held, mut reader) = pair(|| spawn(&fabric)).await;
        holder.kill().await;
        let gone = "error agent holder is gone";
        assert_eq!(reader.read(&held, SLOT, PATIENCE).await, gone);
        assert_eq!(reader.ask("tell holder hello").await, gone);
        // For good, whoever may listen there now.
        assert_eq!(reader.read(&held, SLOT, PATIENCE).await, gone);
        assert_eq!(reader.ask("pool").await, "pool 4 0");

        let mut successor = spawn(&fabric);
        let held = successor.start("successor").await;
        assert_eq!(reader.meet(&held.metadata).await, "met successor");
        assert_eq!(reader.read(&held, SLOT, PATIENCE).await, "read 0");
        assert_eq!(reader.ask("tell successor hello").await, "told");
        assert_eq!(successor.ask("hear").await, "heard reader hello");
    }
}

async fn a_peer_that_stands_still_keeps_no_caller_and_gets_no_slot_back(fabric: Fabric) {
    let (mut holder, held, mut reader) = pair(|| fabric.spawn_far()).await;
    let mut other = fabric.spawn_far();
    let others = other.start("other").await;
    assert_eq!(other.ask("fill 9").await, "filled");
    assert_eq!(reader.meet(&others.metadata).await, "met other");

    holder.stop().await;
    let late = "error the transfer did not end within 0.3 s";
    assert_eq!(reader.read(&held, 3 * SLOT, SHORT).await, late);
    until_pool_is(&mut reader, "pool 1 3").await;
    assert_eq!(
        reader.read(&others, 2 * SLOT, PATIENCE).await,
        "error no slots"
    );
    assert_eq!(reader.read(&others, SLOT, PATIENCE).await, "read 9");
    assert_eq!(reader.ask("tell holder hello").await, "told");

    holder.go_on();
    until_pool_is(&mut reader, "pool 4 0").await;
    assert_eq!(reader.read(&others, 4 * SLOT, PATIENCE).await, "read 9");
    assert_eq!(reader.read(&held, 4 * SLOT, PATIENCE).await, "read 7");
    assert_eq!(holder.ask("hear").await, "heard reader hello");
}

async fn slots_leave_quarantine_when_the_peer_dies(fabric: Fabric) {
    let (mut holder, held, mut reader) = pair(|| fabric.spawn_far()).await;
    holder.stop().await;
    let late = "error the transfer did not end within 0.3 s";
    assert_eq!(reader.read(&held, 4 * SLOT, SHORT).await, late);
    until_pool_is(&mut reader, "pool 0 4").await;
    holder.kill().await;
    until_pool_is(&mut reader, "pool 4 0").await;
    reader.finish().await;
}

async fn a_process_ends_though_its_peer_stands_still(fabric: Fabric) {
    let (holder, held, mut reader) = pair(|| fabric.spawn_far()).await;
    holder.stop().await;
    let late = "error the transfer did not end within 0.3 s";
    assert_eq!(reader.read(&held, 4 * SLOT, SHORT).await, late);
    // The agent ends with a transfer under way, and another one takes its place.
    reader.start("next").await;
    reader.finish().await;
}

/// Deregistration is no fence on a host. What counts is that the holder lives.
async fn memory_that_is_taken_away_ends_nobody(fabric: Fabric) {
    for spawn in [Fabric::spawn_near, Fabric::spawn_far] {
        let (mut holder, held, mut reader) = pair(|| spawn(&fabric)).await;
        assert_eq!(holder.ask("retire").await, "retired");
        let read = reader.read(&held, SLOT, PATIENCE).await;
        let no_memory = "error agent holder has no such memory";
        let may_be = ["read 7", no_memory, "error agent holder is gone"];
        assert!(may_be.contains(&read.as_str()), "{read}");
        assert_eq!(holder.ask("pool").await, "pool 4 0");
        holder.finish().await;
        reader.finish().await;
    }
}

/// Cut and changed at many places: refused, or believed by NIXL, which has no checksum. Whatever it makes of them, the
/// process lives, and an agent that has not seen them is not misled.
async fn broken_metadata_ends_nobody(fabric: Fabric) {
    let (mut holder, held, mut reader) = pair(|| fabric.spawn_near()).await;
    let length = held.metadata.len();
    for at in (0..length).step_by(23) {
        let cut = held.metadata[..at].to_vec();
        let mut changed = held.metadata.clone();
        changed[at] ^= 0x15;
        for broken in [cut, changed] {
            reader.start(&format!("reader-{at}-{}", broken.len())).await;
            let met = reader.meet(&broken).await;
            let again = reader.meet(&held.metadata).await;
            let expected = if met == "met holder" {
                ["error agent holder told other metadata of itself before"; 2]
            } else {
                let poisoned = "error metadata of agent holder were broken once, so only a new agent can meet it";
                [poisoned, "met holder"]
            };
            assert!(
                expected.contains(&again.as_str()),
                "{at}: {met}, then {again}"
            );
        }
    }
    reader.start("unmisled").await;
    assert_eq!(reader.meet(&held.metadata).await, "met holder");
    assert_eq!(reader.read(&held, SLOT, PATIENCE).await, "read 7");
    assert_eq!(holder.ask("pool").await, "pool 4 0");
    reader.finish().await;
}

async fn nothing_listens_but_on_loopback(fabric: Fabric) {
    let (mut holder, _, mut reader) = pair(|| fabric.spawn_near()).await;
    let mut addresses = Vec::new();
    for process in [&mut holder, &mut reader] {
        let listening = process.ask("listening").await;
        addresses.extend(listening.split(' ').skip(1).map(str::to_owned));
    }
    assert!(!addresses.is_empty());
    for address in addresses {
        // 127.0.0.1, as the kernel prints it on a little-endian machine.
        assert!(address.starts_with("0100007F:"), "{address}");
    }
}
