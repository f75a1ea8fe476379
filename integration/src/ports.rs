//! Ports that nobody else takes between being picked and being used.
//!
//! Daemons are told where to listen, so their ports must be known beforehand. They are taken below the range from which the
//! kernel gives out ports by itself, and each is reserved for the life of this process by an abstract Unix socket of its
//! name, for tests may run in several processes.

use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Mutex;

/// Ports to choose from: above the well-known ones, below Linux's ephemeral ones (from 32768).
const RANGE: std::ops::Range<u16> = 18_000..32_000;

struct Reserved {
    next: u16,
    held: Vec<UnixListener>,
}

static RESERVED: Mutex<Option<Reserved>> = Mutex::new(None);

/// An address on the loopback interface that is free and stays this process's own.
pub fn free() -> SocketAddr {
    let mut reserved = RESERVED.lock().unwrap();
    let start = || {
        let spread = std::process::id() * 97 % u32::from(RANGE.end - RANGE.start);
        Reserved {
            next: RANGE.start + u16::try_from(spread).unwrap(),
            held: Vec::new(),
        }
    };
    let reserved = reserved.get_or_insert_with(start);
    for _ in RANGE {
        let port = reserved.next;
        reserved.next = if port + 1 == RANGE.end {
            RANGE.start
        } else {
            port + 1
        };
        let name = UnixAddr::from_abstract_name(format!("baton-test-port-{port}")).unwrap();
        let Ok(held) = UnixListener::bind_addr(&name) else {
            continue;
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            reserved.held.push(held);
            return address;
        }
    }
    panic!("no port is free in {RANGE:?}");
}
