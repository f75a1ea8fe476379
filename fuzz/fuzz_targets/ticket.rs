//! What a sidecar takes for a genuine ticket. Only one was ever sealed with this token: the golden vector's.

#![no_main]

use std::sync::LazyLock;

use baton_proto::frame::{from_bytes, to_bytes};
use baton_proto::ticket::Ticket;
use baton_proto::token::FleetToken;
use libfuzzer_sys::fuzz_target;

static TOKEN: LazyLock<FleetToken> = LazyLock::new(|| FleetToken::new("0123456789abcdef").unwrap());

static SEALED: LazyLock<Ticket> = LazyLock::new(|| {
    let vector = include_str!("../../proto/vectors/ticket.hex");
    let digits: String = vector.lines().filter(|line| !line.starts_with('#')).collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    from_bytes(&bytes).unwrap()
});

fuzz_target!(|data: &[u8]| {
    baton_fuzz::reads_back::<Ticket>(data);
    let Ok(ticket) = from_bytes::<Ticket>(data) else { return };
    if ticket.is_genuine(&TOKEN) {
        assert!(ticket.lease_remaining_ms <= SEALED.lease_ms);
        let same_age = Ticket { lease_remaining_ms: SEALED.lease_remaining_ms, ..ticket };
        assert_eq!(to_bytes(&same_age), to_bytes(&*SEALED), "a ticket nobody made passes for a genuine one");
    } else if ticket.lease_remaining_ms <= ticket.lease_ms {
        assert_ne!(Ticket { lease_remaining_ms: SEALED.lease_remaining_ms, ..ticket }, *SEALED);
    }
});
