//! Where the KV events of an engine's ranks are to be had.

use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use baton_kv_events::follow::source::{Endpoints, Source, Way, reachable};
use serde::Deserialize;

/// Longest time to find out whether somebody listens at an endpoint.
const PROBE: Duration = Duration::from_millis(500);

/// vLLM's `--kv-events-config`, and what `GET /kv_event_sources` says of a rank (0.32.0).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EventsConfig {
    /// Whether events are told at all.
    #[serde(default)]
    pub enable_kv_cache_events: bool,
    /// How; only `zmq` can be listened to.
    #[serde(default)]
    pub publisher: Option<String>,
    /// Where they are published.
    #[serde(default = "default_endpoint")]
    pub endpoint: String,
    /// Where they can be had again.
    #[serde(default)]
    pub replay_endpoint: Option<String>,
    /// What they are published under.
    #[serde(default)]
    pub topic: String,
}

fn default_endpoint() -> String {
    "tcp://*:5557".to_owned()
}

/// What is known of where the events of one rank are to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSource {
    /// Data-parallel rank.
    pub rank: u32,
    /// What the engine says, or was given.
    pub config: EventsConfig,
    /// Where the engine is.
    pub host: String,
    /// The endpoint that the engine was given, if that is known.
    pub asked: Option<String>,
}

impl EventsConfig {
    /// Whether there is something to listen to.
    pub fn tells(&self) -> bool {
        let listens = |publisher: &str| publisher == "zmq";
        self.enable_kv_cache_events && self.publisher.as_deref().is_none_or(listens)
    }

    /// As this rank has it: ports are counted up by rank, as vLLM does.
    #[must_use]
    pub fn of_rank(&self, rank: u32) -> Self {
        let shifted = |endpoint: &str| -> String {
            let port = endpoint
                .strip_prefix("tcp://")
                .and(endpoint.rsplit_once(':'));
            let port = port.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
            match port {
                Some((host, port)) if port > 0 => {
                    format!("{host}:{}", u32::from(port).saturating_add(rank))
                }
                _ => endpoint.to_owned(),
            }
        };
        Self {
            endpoint: shifted(&self.endpoint),
            replay_endpoint: self.replay_endpoint.as_deref().map(shifted),
            ..self.clone()
        }
    }
}

impl EventSource {
    /// What this sidecar does to hear the rank. May take a moment.
    ///
    /// vLLM binds what looks like a wildcard, or is a path, and connects to everything else. But what it says of itself
    /// has the address that it bound in place of a wildcard port, which looks just like one that it connects to. Then the
    /// endpoint that it was given is looked at, and if nobody knows that, whether anybody listens.
    pub fn endpoints(&self) -> Endpoints {
        let told = &self.config.endpoint;
        let asked = self.asked.as_deref();
        let bound = is_bound(told) || asked.map_or_else(|| is_listened_to(told), is_bound);
        let replay = self.config.replay_endpoint.as_deref();
        Endpoints {
            way: if bound {
                Way::Connect(reachable(told, &self.host))
            } else {
                Way::Bind(told.clone())
            },
            replay: replay.map(|endpoint| reachable(endpoint, &self.host)),
            topic: self.config.topic.clone(),
        }
    }
}

impl Source for EventSource {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn topic(&self) -> &str {
        &self.config.topic
    }

    fn tells_again(&self) -> bool {
        self.config.replay_endpoint.is_some()
    }

    fn endpoints(&self) -> Endpoints {
        self.endpoints()
    }
}

/// vLLM's rule (0.32.0, `ZmqEventPublisher._is_bind_endpoint`).
fn is_bound(endpoint: &str) -> bool {
    endpoint.contains('*') || endpoint.contains("::") || endpoint.starts_with("ipc://")
}

fn is_listened_to(endpoint: &str) -> bool {
    let Some(address) = endpoint.strip_prefix("tcp://") else {
        return true;
    };
    let mut addresses = address.to_socket_addrs().into_iter().flatten();
    addresses.any(|address| TcpStream::connect_timeout(&address, PROBE).is_ok())
}

/// Reads `GET /kv_event_sources`: ranks by number. One that is no number, or tells nothing that can be heard, is left out.
pub fn sources_told(told: BTreeMap<String, EventsConfig>) -> BTreeMap<u32, EventsConfig> {
    let known = told.into_iter().filter(|(_, config)| config.tells());
    known
        .filter_map(|(rank, config)| Some((rank.parse().ok()?, config)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn config(endpoint: &str, replay: Option<&str>) -> EventsConfig {
        EventsConfig {
            enable_kv_cache_events: true,
            publisher: Some("zmq".to_owned()),
            endpoint: endpoint.to_owned(),
            replay_endpoint: replay.map(str::to_owned),
            topic: "kv".to_owned(),
        }
    }

    fn endpoints(config: EventsConfig, host: &str, asked: Option<&str>) -> Endpoints {
        let source = EventSource {
            rank: 0,
            config,
            host: host.to_owned(),
            asked: asked.map(str::to_owned),
        };
        source.endpoints()
    }

    fn way(endpoint: &str, asked: Option<&str>) -> Way {
        endpoints(config(endpoint, None), "engine-host", asked).way
    }

    #[test]
    fn what_the_recorded_engine_says_of_its_ranks() {
        let recorded =
            include_str!("../../../integration/recordings/vllm/kv_events/sources_dp.json");
        let mut recorded: serde_json::Value = serde_json::from_str(recorded).unwrap();
        let told = serde_json::from_value(recorded["response"]["body"].take()).unwrap();
        let sources = sources_told(told);
        assert_eq!(sources.keys().collect::<Vec<_>>(), [&0, &1]);
        let source = endpoints(sources[&1].clone(), "10.0.0.7", None);
        assert_eq!(source.way, Way::Connect("tcp://10.0.0.7:6058".to_owned()));
        assert_eq!(source.replay.as_deref(), Some("tcp://127.0.0.1:6158"));
        assert_eq!(sources[&0].of_rank(1), sources[&1]);
    }

    #[test]
    fn the_side_that_the_engine_does_not_take_is_ours() {
        for wildcard in ["tcp://*:5557", "tcp://[::]:5557"] {
            let expected = Way::Connect("tcp://engine-host:5557".to_owned());
            assert_eq!(way(wildcard, None), expected);
        }
        let path = "ipc:///run/engine/events";
        assert_eq!(way(path, None), Way::Connect(path.to_owned()));
        let resolved = "tcp://10.0.0.7:41234";
        let connect = Way::Connect(resolved.to_owned());
        assert_eq!(way(resolved, Some("tcp://*:0")), connect);
        let bind = Way::Bind(resolved.to_owned());
        assert_eq!(way(resolved, Some(resolved)), bind);
    }

    #[test]
    fn where_nobody_knows_who_listens_there_decides() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        assert_eq!(way(&endpoint, None), Way::Connect(endpoint.clone()));
        drop(listener);
        assert_eq!(way(&endpoint, None), Way::Bind(endpoint));
    }

    #[test]
    fn an_engine_without_events_has_no_sources() {
        let told = |json: &str| sources_told(serde_json::from_str(json).unwrap());
        assert!(told("{}").is_empty());
        assert!(told(r#"{"0": {"enable_kv_cache_events": false}}"#).is_empty());
        assert!(told(r#"{"0": {"enable_kv_cache_events": true, "publisher": "null"}}"#).is_empty());
        assert!(told(r#"{"x": {"enable_kv_cache_events": true}}"#).is_empty());
        let newer = told(r#"{"0": {"enable_kv_cache_events": true, "colour": "blue"}}"#);
        assert_eq!(newer[&0].endpoint, "tcp://*:5557");
    }
}
