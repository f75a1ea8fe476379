//! What an SGLang engine publishes: the KV events of its ranks, and their load.

use std::sync::{Arc, PoisonError, Weak};

use baton_kv_events::follow::source::{Endpoints, Source, Way, reachable};
use baton_proto::Error;
use baton_sidecar_core::engine::{EngineLoad, Following};
use baton_sidecar_core::view::Feed;

use crate::attach::Sockets;
use crate::engine::SglangEngine;
use crate::events::SglangEvents;
use crate::load::{self, LoadSource, LoadStream};
use crate::server_info::{KvEvents, ServerInfo};

/// The events of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RankEvents {
    rank: u32,
    endpoints: Endpoints,
}

impl RankEvents {
    /// What the engine says of all its ranks, and whether it listens itself; `host` is where it is.
    fn told(events: &KvEvents, bound: bool, host: &str) -> Vec<Self> {
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
                way: if bound {
                    Way::Connect(at(port, rank))
                } else {
                    Way::Bind(at(port, rank))
                },
                replay: events.replay_endpoint_port_base.map(|port| at(port, rank)),
                topic: events.topic.clone(),
            },
        };
        ranks.map(of_rank).collect()
    }

    /// The only rank of an engine that was launched with these sockets.
    fn launched(sockets: &Sockets) -> Self {
        Self {
            rank: 0,
            endpoints: Endpoints {
                way: Way::Connect(sockets.events.clone()),
                replay: Some(sockets.replay.clone()),
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
fn start(sources: Vec<RankEvents>, feed: &Feed) -> Option<Following> {
    baton_kv_events::follow::start::<SglangEvents, _>(sources, feed)
}

impl SglangEngine {
    /// Follows what the engine's present life publishes.
    pub(crate) fn listen(&self, feed: &Feed) -> Option<Following> {
        let seen = self.last()?;
        let host = host_of(&self.config.base_url);
        let load = seen
            .server
            .kv_events
            .as_ref()
            .and_then(|told| load_source(told, &host));
        let load = load.map(|source| Arc::new(LoadStream::start(source)));
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) =
            load.as_ref().map_or_else(Weak::new, Arc::downgrade);
        let events = self.events(&seen.server, &host, feed);
        Some(Box::new((events, load)))
    }

    fn events(&self, server: &ServerInfo, host: &str, feed: &Feed) -> Option<Following> {
        if !server.keeps_prefixes() {
            nothing_is_kept(server.dp_size.unwrap_or(1).max(1), feed);
            return None;
        }
        let sources = match (&self.config.events, &server.kv_events) {
            (Some(launched), _) => vec![RankEvents::launched(launched)],
            (None, Some(told)) => RankEvents::told(told, server.binds_events(), host),
            (None, None) => Vec::new(),
        };
        start(sources, feed)
    }

    /// How busy the engine says it is.
    pub(crate) async fn busy(&self) -> Result<EngineLoad, Error> {
        let answered = self.http.loads().await;
        let stream = self
            .load
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .upgrade();
        let published = stream.and_then(|stream| stream.latest());
        if published.is_none() {
            answered.as_ref().map_err(Clone::clone)?;
        }
        let block_size = self.last().map_or(1, |seen| seen.server.block_size());
        Ok(load::told(answered.ok().as_ref(), published, block_size))
    }
}

/// An engine that finds no prefix again publishes nothing: that its cache is empty is all there is to know.
fn nothing_is_kept(ranks: u32, feed: &Feed) {
    for rank in 0..ranks {
        feed.watch(rank);
        feed.silent(rank);
    }
}

/// The host in a base URL.
fn host_of(base_url: &str) -> String {
    let uri: Option<http::Uri> = base_url.parse().ok();
    uri.and_then(|uri| uri.host().map(str::to_owned))
        .unwrap_or_else(|| "127.0.0.1".to_owned())
}

/// Where all ranks publish their load. The engine binds it to all of its addresses.
fn load_source(told: &KvEvents, host: &str) -> Option<LoadSource> {
    let port = told.load_endpoint_port_base?;
    let ranks = 0..told.dp_size.unwrap_or(1).max(1);
    let at = |rank| format!("tcp://{host}:{}", u32::from(port).saturating_add(rank));
    Some(LoadSource {
        endpoints: ranks.map(at).collect(),
        topic: told.load_topic.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use baton_proto::worker::{EngineKind, Role, WorkerInfo};
    use baton_sidecar_core::view::KvView;
    use baton_sidecar_core::view::metrics::ViewMetrics;

    use super::*;

    fn told(json: serde_json::Value) -> KvEvents {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn ports_count_up_by_rank_and_a_wildcard_is_where_the_engine_is() {
        let told = told(
            serde_json::json!({"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5560,
            "topic": "kv", "block_size": 4, "dp_size": 2, "load_endpoint_port_base": 5562, "load_topic": "load",
            "replay_endpoint_port_base": 5564}),
        );
        let [first, second] = &RankEvents::told(&told, true, "10.0.0.7")[..] else {
            panic!("two ranks");
        };
        assert_eq!((first.rank(), second.rank()), (0, 1));
        let endpoints = second.endpoints();
        assert_eq!(
            endpoints.way,
            Way::Connect("tcp://10.0.0.7:5561".to_owned())
        );
        assert_eq!(endpoints.replay.as_deref(), Some("tcp://10.0.0.7:5565"));
        let load = load_source(&told, "10.0.0.7").unwrap();
        assert_eq!(
            load.endpoints,
            ["tcp://10.0.0.7:5562", "tcp://10.0.0.7:5563"]
        );
    }

    #[test]
    fn an_engine_that_keeps_no_prefixes_is_certain_to_hold_none() {
        let view = KvView::new(ViewMetrics::default(), None);
        let feed = view.begin(&WorkerInfo::unknown(EngineKind::Sglang, Role::Decode));
        nothing_is_kept(2, &feed);
        let ranks = view.ranks();
        assert_eq!(ranks.len(), 2);
        assert!(
            ranks
                .iter()
                .all(|rank| rank.doubts.is_empty() && !rank.broken && !rank.deaf)
        );
    }

    #[test]
    fn a_concrete_host_stays_and_what_is_not_told_is_not_guessed() {
        let bound =
            told(serde_json::json!({"endpoint_host": "10.1.1.1", "endpoint_port_base": 5560}));
        let sources = RankEvents::told(&bound, true, "elsewhere");
        let endpoints = sources[0].endpoints();
        assert_eq!(
            endpoints.way,
            Way::Connect("tcp://10.1.1.1:5560".to_owned())
        );
        assert!(!sources[0].tells_again());
        let connects = &RankEvents::told(&bound, false, "elsewhere")[0];
        assert_eq!(
            connects.endpoints().way,
            Way::Bind("tcp://10.1.1.1:5560".to_owned())
        );
        assert_eq!(load_source(&bound, "h"), None);
        assert_eq!(
            RankEvents::told(&told(serde_json::json!({})), true, "h"),
            []
        );
    }
}
