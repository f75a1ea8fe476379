//! What must hold whenever nothing is under way: router, sidecar and subscriber agree.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use baton_proto::digest::BlockSetDigest;
use baton_proto::hash::SequenceHash;

use super::books::Books;
use super::look::{self, Routed, Shown, Watched};
use super::stand::{Stand, TOKEN, WORKER};
use super::subscriber::Subscriber;
use crate::real::http;

/// The last events are told within this, on a busy machine too.
const BOUND: Duration = Duration::from_secs(30);

/// What must be so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// All know exactly what the engine holds.
    Exactly,
    /// Something was lost for good: all say so, and none believes in a block that is not there. The sidecar has the engine
    /// report blocks that it reuses, which the subscriber cannot tell from further copies: its books grow until the next
    /// reset. What they are too mild for, the engine's own hits show.
    InPart,
}

/// What the subscriber knows of the engine's life.
pub struct Witness {
    subscriber: Subscriber,
    /// Its books.
    pub books: Books,
}

impl Witness {
    /// Of a life that may have begun already.
    pub fn join(stand: &Stand, model: &str) -> Result<Self> {
        Ok(Self {
            subscriber: stand.subscribe()?,
            books: Books::new(model),
        })
    }

    /// How many messages the engine has published, as far as was heard.
    pub fn heard(&self) -> u64 {
        self.subscriber.heard()
    }

    /// Takes all that the engine has published.
    pub fn catch_up(&mut self) -> Result<()> {
        let news = self.subscriber.catch_up()?;
        news.iter()
            .try_for_each(|payload| self.books.apply(payload))
    }
}

/// All that is told of one rank at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    held: BTreeSet<SequenceHash>,
    router: Option<Routed>,
    sidecar: Option<Shown>,
    watched: Option<Watched>,
}

/// How many blocks are known, once all agree.
pub fn agree(stand: &Stand, witness: &mut Witness, known: Known) -> Result<String> {
    let mut told = None;
    let agreed = http::until("agreement", BOUND, || {
        witness.catch_up()?;
        let now = Told::look(stand, witness)?;
        let agreed = now.agrees(known);
        told = Some(now);
        Ok(agreed.then_some(()))
    });
    match (agreed, told) {
        (Ok(()), Some(told)) => Ok(format!(
            "{told}, {} messages of the engine",
            witness.heard()
        )),
        (Err(error), Some(told)) => bail!("{error}; {told}"),
        (Err(error), None) => Err(error),
        (Ok(()), None) => bail!("nothing was looked at"),
    }
}

impl Told {
    fn look(stand: &Stand, witness: &Witness) -> Result<Self> {
        Ok(Self {
            held: witness.books.held(),
            router: look::router(&stand.router(), TOKEN, WORKER)?,
            sidecar: look::sidecar(&stand.sidecar())?,
            watched: look::watch(&stand.sidecar(), TOKEN)?,
        })
    }

    fn agrees(&self, known: Known) -> bool {
        let (Some(router), Some(sidecar), Some(watched)) =
            (&self.router, &self.sidecar, &self.watched)
        else {
            return false;
        };
        let certain = known == Known::Exactly;
        let alike = [router.certain, sidecar.certain, watched.certain] == [certain; 3]
            && router.blocks == watched.blocks.len() as u64
            && i64::try_from(router.blocks) == Ok(sidecar.blocks)
            && router.digest == digest(&watched.blocks);
        alike
            && match known {
                Known::Exactly => watched.blocks == self.held,
                Known::InPart => watched.blocks.is_subset(&self.held),
            }
    }
}

fn digest(blocks: &BTreeSet<SequenceHash>) -> u64 {
    blocks.iter().copied().collect::<BlockSetDigest>().value()
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.held.len();
        write!(f, "subscriber {held} blocks {:016x}", digest(&self.held))?;
        match &self.router {
            Some(router) => write!(
                f,
                ", router {} blocks {:016x} certain={} resyncs={}",
                router.blocks, router.digest, router.certain, router.resyncs
            )?,
            None => write!(f, ", router nothing")?,
        }
        match &self.sidecar {
            Some(sidecar) => write!(
                f,
                ", sidecar {} blocks certain={}",
                sidecar.blocks, sidecar.certain
            )?,
            None => write!(f, ", sidecar nothing")?,
        }
        let Some(watched) = &self.watched else {
            return write!(f, ", nothing watched");
        };
        let missing = self.held.difference(&watched.blocks).count();
        let surplus = watched.blocks.difference(&self.held).count();
        write!(f, ", of these {missing} unknown and {surplus} not there")
    }
}
