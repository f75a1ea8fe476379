//! Where the KV events of an SGLang engine's ranks are to be had.

use baton_kv_events::follow::source::{Endpoints, Source, Way, reachable};
use baton_sidecar_core::engine::Following;
use baton_sidecar_core::view::Feed;

use crate::events::SglangEvents;
use crate::server_info::KvEvents;

/// The events of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankEvents {
    rank: u32,
    endpoints: Endpoints,
}

impl RankEvents {
    /// What the engine says of all its ranks; `host` is where it is.
    pub(crate) fn told(events: &KvEvents, host: &str) -> Vec<Self> {
        let ranks = 0..events.dp_size.unwrap_or(1).max(1);
        let Some(port) = events.endpoint_port_base else {
            return Vec::new();
        };
        let at = |port: u16, rank: u32| {
            let listens_at = events.endpoint_host.as_deref().unwrap_or("*");
            let port = u32::from(port).saturating_add(rank);
            reachable(&format!("tcp://{listens_at}:{port}"), host)
        };
        let of_rank = |rank| Self {
            rank,
            endpoints: Endpoints {
                way: Way::Connect(at(port, rank)),
                replay: events.replay_endpoint_port_base.map(|port| at(port, rank)),
                topic: events.topic.clone(),
            },
        };
        ranks.map(of_rank).collect()
    }

    /// The only rank of an engine that was launched with these sockets.
    pub(crate) fn launched(events: &str, replay: &str) -> Self {
        Self {
            rank: 0,
            endpoints: Endpoints {
                way: Way::Connect(events.to_owned()),
                replay: Some(replay.to_owned()),
                topic: String::new(),
            },
        }
    }
}

impl Source for RankEvents {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn topic(&self) -> &str {
        &self.endpoints.topic
    }

    fn tells_again(&self) -> bool {
        self.endpoints.replay.is_some()
    }

    fn endpoints(&self) -> Endpoints {
        self.endpoints.clone()
    }
}

/// Starts to follow; nothing if there is nothing to follow.
pub(crate) fn start(sources: Vec<RankEvents>, feed: &Feed) -> Option<Following> {
    baton_kv_events::follow::start::<SglangEvents, _>(sources, feed)
}
