//! Who binds and who connects, and where.
//!
//! The rule is that of vLLM 0.32.0, which SGLang 0.5.23 shares: an endpoint with `*` or `::` in it, or on `ipc`, is bound, any other is connected to, so
//! that its subscriber must bind. One thing differs: an emulated engine binds on the loopback interface only.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use zeromq::{Endpoint, Listener};

/// How a socket gets its peers.
#[derive(Debug)]
pub(super) enum Way {
    /// They come.
    Bound {
        /// What `/kv_event_sources` calls it.
        endpoint: String,
        /// Already bound.
        listener: Listener,
    },
    /// It goes to them.
    Connects {
        /// Where to.
        endpoint: String,
    },
}

/// The endpoint of a data-parallel rank: its port is the configured one plus the rank; port 0 stays the kernel's choice.
pub(super) fn of_rank(endpoint: &str, rank: u32) -> anyhow::Result<String> {
    if rank == 0 {
        return Ok(endpoint.to_owned());
    }
    let Address::Tcp { host, port } = Address::parse(endpoint)? else {
        bail!("{endpoint} has no port to tell ranks apart: use tcp");
    };
    if port == 0 {
        return Ok(endpoint.to_owned());
    }
    let port = u32::from(port) + rank;
    Ok(format!("tcp://{host}:{port}"))
}

impl Way {
    /// As the rule says.
    pub(super) fn of(endpoint: &str) -> anyhow::Result<Self> {
        let binds =
            endpoint.contains('*') || endpoint.contains("::") || endpoint.starts_with("ipc://");
        if binds {
            return Self::bind(endpoint);
        }
        let parsed: Result<Endpoint, _> = endpoint.parse();
        parsed.map_err(|error| anyhow!("{endpoint} is no endpoint: {error}"))?;
        Ok(Self::Connects {
            endpoint: endpoint.to_owned(),
        })
    }

    /// Bound, whatever it looks like.
    pub(super) fn bind(endpoint: &str) -> anyhow::Result<Self> {
        let failed = || format!("cannot listen on {endpoint}");
        match Address::parse(endpoint)? {
            Address::Ipc(path) => {
                // Whoever listened there last may have left its file; libzmq removes it as well.
                let _ = std::fs::remove_file(&path);
                let listener = UnixListener::bind(path).with_context(failed)?;
                Ok(Self::Bound {
                    endpoint: endpoint.to_owned(),
                    listener: Listener::Ipc(listener),
                })
            }
            Address::Tcp { host, port } => {
                let listener = TcpListener::bind((loopback(&host), port)).with_context(failed)?;
                let endpoint = match port {
                    0 => format!("tcp://{}", listener.local_addr()?),
                    _ => endpoint.to_owned(),
                };
                Ok(Self::Bound {
                    endpoint,
                    listener: Listener::Tcp(listener),
                })
            }
        }
    }

    /// What `/kv_event_sources` calls it: as configured, but a port that the kernel chose is told.
    pub(super) fn endpoint(&self) -> &str {
        match self {
            Self::Bound { endpoint, .. } | Self::Connects { endpoint } => endpoint,
        }
    }
}

enum Address {
    Tcp { host: String, port: u16 },
    Ipc(PathBuf),
}

impl Address {
    fn parse(endpoint: &str) -> anyhow::Result<Self> {
        if let Some(path) = endpoint.strip_prefix("ipc://") {
            return Ok(Self::Ipc(path.into()));
        }
        let address = endpoint.strip_prefix("tcp://");
        address
            .and_then(|address| address.rsplit_once(':'))
            .and_then(|(host, port)| {
                Some(Self::Tcp {
                    host: host.to_owned(),
                    port: port.parse().ok()?,
                })
            })
            .ok_or_else(|| anyhow!("{endpoint} is no endpoint: use tcp://HOST:PORT or ipc://PATH"))
    }
}

/// A loopback address as it is; for any other host, wildcards among them, the usual one.
fn loopback(host: &str) -> IpAddr {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => address,
        _ => Ipv4Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_binds_and_a_host_connects() {
        for bound in ["tcp://*:0", "tcp://[::]:0"] {
            let way = Way::of(bound).unwrap();
            assert!(matches!(way, Way::Bound { .. }), "{bound}");
            assert!(way.endpoint().starts_with("tcp://127.0.0.1:"), "{bound}");
            assert!(!way.endpoint().ends_with(":0"), "{bound}");
        }
        let way = Way::of("tcp://127.0.0.1:5557").unwrap();
        assert!(matches!(way, Way::Connects { .. }));
        for bad in ["5557", "tcp://nowhere", "tcp://*:70000"] {
            assert!(Way::of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranks_are_told_apart_by_ports() {
        let recorded = include_str!("../../../recordings/vllm/kv_events/sources_dp.json");
        let recorded: serde_json::Value = serde_json::from_str(recorded).unwrap();
        for key in ["endpoint", "replay_endpoint"] {
            let of = |rank: &str| recorded["response"]["body"][rank][key].as_str().unwrap();
            assert_eq!(of_rank(of("0"), 0).unwrap(), of("0"));
            assert_eq!(of_rank(of("0"), 1).unwrap(), of("1"));
        }
        assert_eq!(of_rank("tcp://*:0", 3).unwrap(), "tcp://*:0");
        assert!(of_rank("ipc:///tmp/events", 1).is_err());
    }
}
