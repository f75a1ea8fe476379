//! What the engine says of its KV transfers, and by what they moved.
//!
//! No library tells which way it has taken, and one that finds no RDMA device takes TCP without a word. But the devices
//! count what they carry: what an engine has fetched came through an RDMA device, or through a network device, or
//! through neither, from memory to memory.

use std::fs;
use std::path::Path;

use baton_proto::load::{KvIn, Measured, Origin, Transport};

use crate::engine::Moved;
use crate::metrics::TransferMetrics;

/// Bytes of one look below which it is not judged by what they moved: others use the devices, too.
const JUDGED: u64 = 1 << 20;

/// Looks that must agree before a transport is named.
const AGREED: u32 = 3;

/// Share of the fetched bytes that a device must have carried.
const SHARE: f64 = 0.8;

/// Share of what was learnt of the rate that stays at each look.
const MEMORY: f64 = 0.8;

/// What is known of an engine's transfers.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    last: Option<(Moved, Carried)>,
    rate: Option<Rate>,
    suspected: Option<(Transport, u32)>,
    named: Option<Transport>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    bytes: f64,
    seconds: f64,
}

/// Bytes that this host's devices have received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Carried {
    /// Over TCP/IP devices, the loopback device included.
    pub(crate) network: u64,
    /// Over RDMA devices; `None` without any.
    pub(crate) rdma: Option<u64>,
}

impl Carried {
    /// As the kernel counts them now.
    pub(crate) fn now() -> Self {
        let network = fs::read_to_string("/proc/net/dev").unwrap_or_default();
        Self {
            network: received(&network),
            rdma: rdma_received(Path::new("/sys/class/infiniband")),
        }
    }
}

/// Sum of what all devices of `/proc/net/dev` received.
fn received(table: &str) -> u64 {
    let devices = table.lines().filter_map(|line| line.split_once(':'));
    devices
        .filter_map(|(_, counts)| counts.split_whitespace().next()?.parse::<u64>().ok())
        .fold(0, u64::saturating_add)
}

/// Sum of what all ports received; they count words of four bytes.
fn rdma_received(devices: &Path) -> Option<u64> {
    let devices = fs::read_dir(devices).ok()?.flatten();
    let ports = devices.filter_map(|device| fs::read_dir(device.path().join("ports")).ok());
    let words = ports.flatten().flatten().filter_map(|port| {
        let counter = port.path().join("counters/port_rcv_data");
        fs::read_to_string(counter).ok()?.trim().parse::<u64>().ok()
    });
    words
        .map(|words| words.saturating_mul(4))
        .reduce(u64::saturating_add)
}

impl Transfers {
    /// The engine was looked at.
    pub(crate) fn look(&mut self, moved: Moved, carried: Carried, metrics: &TransferMetrics) {
        let Some((before, carried_before)) = self.last.replace((moved, carried)) else {
            return;
        };
        // An engine that began anew counts from nothing.
        let Some(since) = moved.since(&before) else {
            return;
        };
        metrics.count(&since);
        if since.bytes > 0 {
            self.learn(&since);
        }
        if since.bytes >= JUDGED {
            self.judge(by_what(since.bytes, &carried_before, &carried), carried);
        }
        metrics.transport(self.named);
    }

    fn learn(&mut self, since: &Moved) {
        let Rate { bytes, seconds } = self.rate.unwrap_or_default();
        self.rate = Some(Rate {
            bytes: bytes * MEMORY + to_f64(since.bytes),
            seconds: seconds * MEMORY + since.seconds,
        });
    }

    fn judge(&mut self, by: Transport, carried: Carried) {
        let agreed = match self.suspected {
            Some((suspected, times)) if suspected == by => times + 1,
            _ => 1,
        };
        self.suspected = Some((by, agreed));
        if agreed < AGREED || self.named == Some(by) {
            return;
        }
        self.named = Some(by);
        if by == Transport::Tcp && carried.rdma.is_some() {
            tracing::warn!(
                "KV moves over TCP although this host has RDMA devices: see the engine's UCX_TLS and UCX_NET_DEVICES"
            );
        } else {
            tracing::info!(transport = by.word(), "it is known by what KV moves");
        }
    }

    /// What routers are told.
    pub(crate) fn kv_in(&self) -> Option<Measured<KvIn>> {
        let rate = self.rate.filter(|rate| rate.seconds > 0.0)?;
        Some(Measured {
            value: KvIn {
                bytes_per_s: rate.bytes / rate.seconds,
                transport: self.named,
            },
            from: Origin::EngineMetric,
        })
    }
}

pub(crate) fn by_what(bytes: u64, before: &Carried, now: &Carried) -> Transport {
    let enough = |carried: u64| to_f64(carried) >= to_f64(bytes) * SHARE;
    let rdma = now
        .rdma
        .zip(before.rdma)
        .map(|(now, before)| now.saturating_sub(before));
    if rdma.is_some_and(enough) {
        Transport::Rdma
    } else if enough(now.network.saturating_sub(before.network)) {
        Transport::Tcp
    } else {
        Transport::Memory
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes, far below 2^52")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn moved(mib: u64) -> Moved {
        Moved {
            bytes: mib * MIB,
            seconds: to_f64(mib) / 100.0,
            transfers: mib,
            failed: 0,
            expired: 0,
        }
    }

    fn carried(network: u64, rdma: Option<u64>) -> Carried {
        Carried {
            network: network * MIB,
            rdma: rdma.map(|mib| mib * MIB),
        }
    }

    /// What is named after looks at which each device had carried so much for each MiB that was fetched.
    fn named(network: u64, rdma: Option<u64>) -> Option<Transport> {
        let (mut transfers, metrics) = (Transfers::default(), TransferMetrics::default());
        for look in 0..=u64::from(AGREED) {
            assert_eq!(transfers.named, None, "look {look}");
            let rdma = rdma.map(|rdma| rdma * look);
            transfers.look(moved(look * 10), carried(network * look, rdma), &metrics);
        }
        transfers.named
    }

    #[test]
    fn a_transport_is_named_by_the_device_that_carried_the_bytes() {
        assert_eq!(named(0, None), Some(Transport::Memory));
        assert_eq!(named(11, None), Some(Transport::Tcp));
        assert_eq!(named(11, Some(0)), Some(Transport::Tcp));
        assert_eq!(named(2, Some(10)), Some(Transport::Rdma));
        assert_eq!(named(2, Some(2)), Some(Transport::Memory));
    }

    #[test]
    fn one_look_that_says_otherwise_changes_nothing() {
        let (mut transfers, metrics) = (Transfers::default(), TransferMetrics::default());
        for look in 0..10 {
            let network = if look == 7 { 1000 } else { 0 };
            transfers.look(moved(look * 10), carried(network, None), &metrics);
        }
        assert_eq!(transfers.named, Some(Transport::Memory));
    }

    #[test]
    fn the_rate_is_of_the_engines_own_seconds_and_survives_its_restart() {
        let (mut transfers, metrics) = (Transfers::default(), TransferMetrics::default());
        assert_eq!(transfers.kv_in(), None);
        for mib in [0, 50, 100, 0, 50] {
            transfers.look(moved(mib), Carried::default(), &metrics);
        }
        let rate = transfers.kv_in().unwrap().value.bytes_per_s;
        assert!((rate - 100.0 * to_f64(MIB)).abs() < 1.0, "{rate}");
    }

    #[test]
    fn network_devices_are_summed() {
        let table =
            "Inter-|   Receive\n face |bytes    packets\n    lo: 100 2 0 0\n  eth0:23 1 0 0\n";
        assert_eq!(received(table), 123);
        assert_eq!(rdma_received(Path::new("/nowhere")), None);
    }
}
