//! Measures the way between two hosts by reading the other sidecar's memory, over the fabric that engines use.
//!
//! It is a prior, from host memory to host memory: what engines need for their transfers replaces it. Memory and agent are
//! there only while links are measured.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use baton_proto::call::path;
use baton_proto::link::{LinkMeasured, LinkOffer, MeasureLink};
use baton_proto::{Error, ErrorKind, Source, Stage, frame};
use baton_transfer::{Agent, Metadata, Peer, Pool, Slots, Span};
use bytes::Bytes;
use http::Method;

use crate::core::Core;
use crate::engine::Engine;
use crate::transfers::{Carried, by_what};

/// Bytes of the large read: enough that its start does not count.
const LARGE: usize = 16 << 20;

/// Bytes of the small one.
const SMALL: usize = 4 << 10;

/// Reads of each kind, of which the best counts: a busy machine makes them slower and never faster.
const READS: u32 = 3;

/// Longest that one read may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long agent and memory are kept after they were last used.
const KEPT: Duration = Duration::from_secs(60);

/// This sidecar's end of all links.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Held while a link is measured, so that measurements do not disturb each other.
    measuring: tokio::sync::Mutex<()>,
    meter: Mutex<Option<(Arc<Meter>, Instant)>>,
}

/// An agent, memory that others read, and memory to read into.
#[derive(Debug)]
struct Meter {
    agent: Agent,
    offered: Slots,
    pool: Pool,
}

impl Meter {
    async fn start(agent: Agent) -> Result<Self, Error> {
        let pool = agent.register(LARGE, 2).await;
        let pool = pool.map_err(|error| failed(&error.to_string()))?;
        let offered = pool.take(1).ok_or_else(|| failed("there is no memory"))?;
        Ok(Self {
            agent,
            offered,
            pool,
        })
    }

    async fn offer(&self) -> Result<LinkOffer, Error> {
        let metadata = self.agent.metadata().await;
        let metadata = metadata.map_err(|error| failed(&error.to_string()))?;
        let span = self.offered.span(0);
        Ok(LinkOffer {
            agent: Bytes::copy_from_slice(metadata.bytes()),
            address: span.address,
            bytes: span.bytes as u64,
        })
    }

    async fn measure(&self, offer: &LinkOffer) -> Result<LinkMeasured, Error> {
        let metadata = Metadata::parse(&offer.agent).map_err(|bad| failed(&bad.to_string()))?;
        if offer.bytes < LARGE as u64 {
            return Err(failed("the other side offers too little memory"));
        }
        let met = self.agent.meet(&metadata).await;
        let peer = met.map_err(|error| failed(&error.to_string()))?;
        // The first read sets the connection up.
        self.read(&peer, offer.address, SMALL).await?;
        let small = self.best(&peer, offer.address, SMALL).await?;
        let before = Carried::now();
        let large = self.best(&peer, offer.address, LARGE).await?;
        let moved = u64::from(READS) * LARGE as u64;
        let transport = by_what(moved, &before, &Carried::now());
        self.agent.forget(peer).await;
        Ok(LinkMeasured {
            bytes: LARGE as u64,
            seconds: large.as_secs_f64(),
            small_bytes: SMALL as u64,
            small_seconds: small.as_secs_f64(),
            transport,
        })
    }

    async fn best(&self, peer: &Peer, address: u64, bytes: usize) -> Result<Duration, Error> {
        let mut best = Duration::MAX;
        for _ in 0..READS {
            best = best.min(self.read(peer, address, bytes).await?);
        }
        Ok(best)
    }

    async fn read(&self, peer: &Peer, address: u64, bytes: usize) -> Result<Duration, Error> {
        let into = self.pool.take(1);
        let into = into.ok_or_else(|| failed("an earlier read has not ended"))?;
        let span = Span {
            address,
            bytes,
            device: 0,
        };
        let started = Instant::now();
        let read = self.agent.read(peer, &[span], into, None, PATIENCE).await;
        read.map_err(|error| failed(&error.to_string()))?;
        Ok(started.elapsed())
    }
}

impl Links {
    async fn meter<E: Engine>(&self, engine: &E) -> Result<Arc<Meter>, Error> {
        let kept = self.lock().take();
        let meter = match kept {
            Some((meter, _)) => meter,
            None => Arc::new(Meter::start(engine.agent().await?).await?),
        };
        *self.lock() = Some((Arc::clone(&meter), Instant::now()));
        Ok(meter)
    }

    /// Lets go of what was not used for long. To be called now and then.
    pub(crate) fn sweep(&self) {
        let mut meter = self.lock();
        if meter
            .as_ref()
            .is_some_and(|(_, used)| used.elapsed() > KEPT)
        {
            *meter = None;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Arc<Meter>, Instant)>> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What others need to measure the way to this host.
pub(crate) async fn offer<E: Engine>(core: &Core<E>) -> Result<LinkOffer, Error> {
    core.links.meter(&core.engine).await?.offer().await
}

/// Measures the way from another host to this one.
pub(crate) async fn measure<E: Engine>(
    core: &Core<E>,
    wanted: MeasureLink,
) -> Result<LinkMeasured, Error> {
    let _alone = core.links.measuring.lock().await;
    let offer = offered(core, &wanted.from).await?;
    core.links.meter(&core.engine).await?.measure(&offer).await
}

async fn offered<E: Engine>(core: &Core<E>, from: &str) -> Result<LinkOffer, Error> {
    let peers = &core.peers;
    let offered = peers.call(Method::GET, from, path::LINK, PATIENCE).await;
    let offered = offered.map_err(|failed| failed.error)?;
    frame::from_bytes(&offered).map_err(|bad| failed(&bad.to_string()))
}

fn failed(why: &str) -> Error {
    let message = format!("the link cannot be measured: {why}");
    Error::new(
        ErrorKind::Unreachable,
        Source::Sidecar,
        Stage::Fleet,
        message,
    )
}

#[cfg(test)]
mod tests {
    use baton_transfer::{AgentConfig, Fabric};

    use super::*;

    async fn meter(name: &str) -> Meter {
        let agent = Agent::start(&Fabric::loopback(), AgentConfig::new(name)).await;
        Meter::start(agent.unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_link_is_measured_by_reading_what_the_other_side_offers() {
        let (here, there) = (meter("here").await, meter("there").await);
        let offer = there.offer().await.unwrap();
        for _ in 0..2 {
            let measured = here.measure(&offer).await.unwrap();
            assert_eq!(measured.bytes, LARGE as u64);
            assert!(measured.small_seconds > 0.0);
            assert!(measured.seconds > measured.small_seconds, "{measured:?}");
        }
        assert_eq!(here.pool.available(), 1, "what was read into is free again");
    }

    #[tokio::test]
    async fn nonsense_is_no_link() {
        let (here, there) = (meter("here").await, meter("there").await);
        let good = there.offer().await.unwrap();
        for bad in [
            LinkOffer {
                agent: Bytes::from_static(b"x"),
                ..good.clone()
            },
            LinkOffer {
                bytes: 1,
                ..good.clone()
            },
            LinkOffer {
                address: 1,
                ..good.clone()
            },
        ] {
            assert!(here.measure(&bad).await.is_err(), "{bad:?}");
        }
        here.measure(&good).await.unwrap();
        drop(there);
        assert!(here.measure(&good).await.is_err(), "nobody is there");
    }
}
