//! Where decode engines find a prefill engine, in a spelling that they have not met an earlier life of it by.
//!
//! A decode engine remembers what it learnt at an address, by the address as it is written, and forgets it when two heartbeats in a
//! row have failed there, five seconds apart (0.5.23). An engine that is back sooner is taken for its last life: what decode says
//! to that one reaches nobody, and both legs wait for nothing. So the address of a life that nobody can have missed the last one
//! before is written in another way, and decode asks there anew.

use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_proto::Incarnation;
use tokio::time::Instant;

/// An engine that was away for so long was missed: two heartbeats, and the time that they take.
const MISSED: Duration = Duration::from_secs(20);

/// Ways to write an address in digits: beyond them a part of it would be longer than parts of names may be.
const WAYS: usize = 50;

/// The host of an engine's bootstrap server, as it is told to decode engines.
#[derive(Debug)]
pub struct Spelling {
    host: String,
    life: Mutex<Option<Life>>,
}

#[derive(Debug)]
struct Life {
    incarnation: Incarnation,
    /// When the engine was last known to be there.
    heard: Instant,
    /// How often in a row it was back too soon.
    way: usize,
}

impl Spelling {
    /// Of a host of which no life is known.
    pub fn of(host: String) -> Self {
        Self {
            host,
            life: Mutex::default(),
        }
    }

    /// The engine is there, in whichever life.
    pub fn heard(&self) {
        if let Some(life) = &mut *self.lock() {
            life.heard = Instant::now();
        }
    }

    /// The engine is in this life.
    pub fn lives(&self, incarnation: &Incarnation) {
        let now = Instant::now();
        let mut known = self.lock();
        let way = match &*known {
            Some(life) if life.incarnation == *incarnation => life.way,
            Some(life) if now - life.heard < MISSED => life.way + 1,
            _ => 0,
        };
        *known = Some(Life {
            incarnation: incarnation.clone(),
            heard: now,
            way,
        });
    }

    /// The host, as it is written in this life.
    pub fn host(&self) -> String {
        let way = self.lock().as_ref().map_or(0, |life| life.way);
        spelt(&self.host, way)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same host in another way: an address as one number with zeros before it, a name with some of its letters in the other
/// case. What has neither digits nor letters to play with stays as it is.
fn spelt(host: &str, way: usize) -> String {
    if way == 0 {
        return host.to_owned();
    }
    match host.parse::<Ipv4Addr>() {
        Ok(address) => {
            let digits = 8 + (way - 1) % WAYS;
            format!("0x{:0digits$x}", address.to_bits())
        }
        Err(_) if host.contains(':') => host.to_owned(),
        Err(_) => in_other_case(host, way),
    }
}

fn in_other_case(name: &str, way: usize) -> String {
    let mut letters = 0;
    let turned = name.chars().map(|letter| {
        if !letter.is_ascii_alphabetic() {
            return letter;
        }
        let turns = letters < usize::BITS && way >> letters & 1 == 1;
        letters += 1;
        if !turns {
            letter
        } else if letter.is_ascii_lowercase() {
            letter.to_ascii_uppercase()
        } else {
            letter.to_ascii_lowercase()
        }
    });
    turned.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::ToSocketAddrs;

    use super::*;

    fn life(name: &str) -> Incarnation {
        name.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_back_too_soon_has_another_spelling_until_it_was_missed() {
        let spelling = Spelling::of("10.0.0.7".to_owned());
        spelling.lives(&life("first"));
        assert_eq!(spelling.host(), "10.0.0.7");
        tokio::time::advance(MISSED * 5).await;
        spelling.heard();
        tokio::time::advance(MISSED / 2).await;
        spelling.lives(&life("second"));
        assert_eq!(spelling.host(), "0x0a000007");
        spelling.lives(&life("second"));
        assert_eq!(spelling.host(), "0x0a000007");
        spelling.lives(&life("third"));
        assert_eq!(spelling.host(), "0x00a000007");
        tokio::time::advance(MISSED).await;
        spelling.lives(&life("fourth"));
        assert_eq!(spelling.host(), "10.0.0.7");
    }

    #[test]
    fn spellings_differ_and_mean_the_same() {
        for host in ["127.0.0.1", "localhost"] {
            let ways: HashSet<String> = (0..WAYS).map(|way| spelt(host, way)).collect();
            assert_eq!(ways.len(), WAYS);
            for way in ways {
                let mut found = (way.as_str(), 80).to_socket_addrs().unwrap();
                assert!(found.all(|at| at.ip().is_loopback()), "{way}");
            }
        }
        assert_eq!(spelt("fd00::7", 3), "fd00::7");
        assert_eq!(spelt("node-1.fleet", 5), "NoDe-1.fleet");
    }
}
