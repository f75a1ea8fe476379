//! What engines tell besides answers: events, metrics, handshakes.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Runner, Stop};
use crate::conformance::cases::Log;
use crate::conformance::events::{self, Batch};
use crate::conformance::http::{self, Request};
use crate::conformance::laws::{event_log, handshake, metrics_page};
use crate::conformance::mask;
use crate::conformance::metrics::{Page, family_of};
use crate::conformance::shape::{self, Difference};
use crate::conformance::socket;
use crate::conformance::target::{self, Role, Setup};

/// Events and counters follow the answer they belong to within this.
const FOLLOW_BOUND: Duration = Duration::from_secs(10);

/// Counters that stay the same for this long belong to what was asked before.
const SETTLED: Duration = Duration::from_millis(100);

/// A subscription is in force after so many requests.
const HEARD_WITHIN: u64 = 50;

/// What both engines' counters grew by in a recorded handoff.
type Growth = BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>;

static GROWTH: LazyLock<Growth> = LazyLock::new(|| {
    let text = include_str!("../../../recordings/vllm/metric_deltas.json");
    serde_json::from_str(text).expect("recorded growth of counters")
});

/// A recorded page of metrics.
pub(in crate::conformance) fn recorded_page(name: &str) -> Option<Page> {
    let text = match name {
        "aggregated" => include_str!("../../../recordings/vllm/metrics_agg.txt"),
        "decode" => include_str!("../../../recordings/vllm/metrics_decode.txt"),
        "prefill" => include_str!("../../../recordings/vllm/metrics_prefill.txt"),
        _ => return None,
    };
    Some(Page::read(text))
}

impl Runner<'_> {
    fn page(&mut self, role: Role) -> Result<Page, Stop> {
        let place = self.engine(role)?;
        Ok(Page::read(&http::page(&place.base, "/metrics")?))
    }

    /// Counters that no longer move.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing here is async, and what is waited for keeps real time"
    )]
    fn settled(&mut self, role: Role) -> Result<Page, Stop> {
        let place = self.engine(role)?;
        let page = http::until("counters stand still", FOLLOW_BOUND, || {
            let before = Page::read(&http::page(&place.base, "/metrics").ok()?);
            std::thread::sleep(SETTLED);
            let after = Page::read(&http::page(&place.base, "/metrics").ok()?);
            let mut moved = after.grown_since(&before).into_keys();
            (!moved.any(|name| name.starts_with("vllm:"))).then_some(after)
        });
        Ok(page?)
    }

    pub(super) fn count(&mut self) -> Result<(), Stop> {
        self.counters = Some((self.settled(Role::Prefill)?, self.settled(Role::Decode)?));
        Ok(())
    }

    pub(super) fn grew(&mut self, name: &str) -> Result<(), Stop> {
        let (prefill, decode) = self
            .counters
            .take()
            .ok_or_else(|| "nothing was counted".to_owned())?;
        for (role, before) in [(Role::Prefill, prefill), (Role::Decode, decode)] {
            let recorded = &GROWTH[name][role.name()];
            let after = self.settled(role)?;
            let grown = after.grown_since(&before);
            self.break_laws(role.name(), metrics_page::broken(&after));
            // What did not grow in this recording, but did in others, must not grow here.
            let told = GROWTH.values().flat_map(|sides| sides[role.name()].keys());
            for counter in told {
                self.checked += 1;
                let (then, now) = (recorded.get(counter), grown.get(counter));
                let same = if mask::is_growth_masked(counter) {
                    then.is_some() == now.is_some()
                } else {
                    then.map(|value| value.to_bits()) == now.map(|value| value.to_bits())
                };
                let difference =
                    Difference::new(counter, format!("grew by {now:?} instead of {then:?}"));
                let known = self.found.contains(&difference.clone().of(role.name()));
                if !same && !known {
                    self.found.push(difference.of(role.name()));
                }
            }
        }
        Ok(())
    }

    pub(super) fn families(&mut self, role: Role, name: &str) -> Result<(), Stop> {
        let recorded = recorded_page(name).ok_or_else(|| format!("no page {name}"))?;
        let seen = self.page(role)?;
        self.break_laws(name, metrics_page::broken(&seen));
        let families = recorded
            .kinds
            .iter()
            .filter(|(family, _)| !mask::is_family_masked(family));
        for (family, kind) in families {
            self.checked += 1;
            if seen.kinds.get(family) != Some(kind) {
                let what = format!("{:?} instead of {kind:?}", seen.kinds.get(family));
                self.found.push(Difference::new(family.as_str(), what));
                continue;
            }
            let (then, now) = (recorded.labels(family), seen.labels(family));
            if then != now {
                let what = format!("labels {now:?} instead of {then:?}");
                self.found.push(Difference::new(family.as_str(), what));
            }
        }
        let strange = seen
            .samples
            .keys()
            .map(|sample| sample.split('{').next().unwrap_or_default());
        let strange = strange.filter(|name| !seen.kinds.contains_key(family_of(name)));
        let strange: Vec<&str> = strange
            .filter(|name| !seen.kinds.contains_key(*name))
            .collect();
        if let Some(first) = strange.first() {
            self.found
                .push(Difference::new(*first, "a sample without a type"));
        }
        Ok(())
    }

    /// The engine's log since its boot, once it is as it must be, or after a while whatever it is.
    fn replayed(
        &mut self,
        role: Role,
        complete: impl Fn(&[Batch]) -> bool,
    ) -> Result<Vec<Batch>, Stop> {
        let place = self.engine(role)?;
        let (_, replay) = target::event_sockets(&place.base, 0)?;
        let log = http::until("a log is complete", FOLLOW_BOUND, || {
            let log = socket::replay(&replay, 0).ok()?;
            complete(&log).then_some(log)
        });
        match log {
            Ok(log) => Ok(log),
            // What is missing is told by whoever looks at it.
            Err(_) => Ok(socket::replay(&replay, 0)?),
        }
    }

    pub(super) fn log(&mut self, role: Role, log: Log) -> Result<(), Stop> {
        let seen = self.lawful(role, log.batches)?;
        let recorded = &events::recorded()[log.name][0];
        let recorded = &recorded[..log.batches.min(recorded.len())];
        self.checked += recorded.len();
        self.add(log.name, events::compare(recorded, &seen, log.hashes));
        Ok(())
    }

    /// The engine's log since its boot, judged by the laws.
    pub(super) fn lawful(&mut self, role: Role, batches: usize) -> Result<Vec<Batch>, Stop> {
        let sequences = self.sequences.get(&role).cloned().unwrap_or_default();
        let seen = self.replayed(role, |seen| {
            seen.len() >= batches && event_log::blocks_of(seen, &sequences).is_empty()
        })?;
        self.checked += event_log::LAWS.len() + 1;
        self.break_laws(role.name(), event_log::broken(&seen));
        let wrong = event_log::blocks_of(&seen, &sequences).into_iter();
        let law = "what is stored are the full blocks of what was computed";
        self.break_laws(role.name(), wrong.map(|what| (law, what)).collect());
        if self.case.setup == Setup::Ranks {
            let wrong = event_log::hashes_can_be_computed(&seen).into_iter();
            let law = "hashes can be computed from tokens";
            self.break_laws(role.name(), wrong.map(|what| (law, what)).collect());
        }
        Ok(seen)
    }

    pub(super) fn replay(&mut self, role: Role) -> Result<(), Stop> {
        let log = self.replayed(role, |_| true)?;
        let place = self.engine(role)?;
        let (_, endpoint) = target::event_sockets(&place.base, 0)?;
        for exchange in socket::recorded_replays() {
            self.checked += 1;
            let differences = socket::compare_replay(&endpoint, &exchange, &log)?;
            self.add(&exchange.label, differences);
        }
        Ok(())
    }

    pub(super) fn heard(&mut self, role: Role) -> Result<(), Stop> {
        let place = self.engine(role)?;
        let (endpoint, _) = target::event_sockets(&place.base, 0)?;
        let subscription = socket::Subscription::new(&endpoint)?;
        for number in 0..HEARD_WITHIN {
            let prompt: Vec<u64> = (0..40).map(|at| 50 + (at * 11 + number) % 900).collect();
            let body = json!({"model": self.fresh.model, "prompt": prompt, "max_tokens": 1, "temperature": 0});
            self.send(
                role,
                &Request::post("/v1/completions", body),
                "a new prompt",
            )?;
            let Some(heard) = subscription.next()? else {
                continue;
            };
            self.checked += 1;
            let log = self.replayed(role, |log| log.iter().any(|batch| batch.seq == heard.seq))?;
            let replayed = log.iter().find(|batch| batch.seq == heard.seq);
            if replayed != Some(&heard) {
                let what = format!("heard {heard:?}, replayed {replayed:?}");
                self.found.push(Difference::new("event stream", what));
            }
            return Ok(());
        }
        Err(Stop::Fail("a subscriber hears nothing".to_owned()))
    }

    pub(super) fn handshake(&mut self, role: Role) -> Result<(), Stop> {
        let seen = self.shaken(role)?;
        let recorded = socket::recorded_handshake(role.name());
        self.checked += 2;
        let (recorded, told) = (json!({"handshake": recorded}), json!({"handshake": seen}));
        self.found.extend(shape::documents(&recorded, &told, &[]));
        self.break_laws(role.name(), handshake::broken(&seen));
        let peer = if role == Role::Prefill {
            Role::Decode
        } else {
            Role::Prefill
        };
        let hash = |payload: &Value| payload["compatibility_hash"].clone();
        let peer = hash(&self.shaken(peer)?);
        if peer != hash(&seen) {
            let what = format!("{peer} and {}", hash(&seen));
            self.found.push(Difference::new(
                "law: a pair has one compatibility hash",
                what,
            ));
        }
        Ok(())
    }

    fn shaken(&mut self, role: Role) -> Result<Value, Stop> {
        let place = self.engine(role)?;
        let Some(address) = place.side_channel else {
            let what = format!("the {} engine's side channel is not known", role.name());
            return Err(Stop::Skip(what));
        };
        Ok(socket::handshake(&address)?)
    }
}
