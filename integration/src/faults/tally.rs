//! What was counted, and what it is called.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::subject::{Engines, Subject};
use super::verdict::End;
use super::visit::Visit;
use crate::bench::figure::{Figure, quantile, rounded};
use crate::emulated::vllm::Seen;
use crate::emulated::vllm::script::Leg;
use crate::fleet::Kind;

/// Of each kind of what must not be, so much is told in words.
const MOST_TOLD: usize = 8;

/// At least so much of what was asked and waited for is served, or the run shows nothing.
pub const LEAST_SERVED: f64 = 0.9;

/// All counts of a run.
#[derive(Debug, Default)]
pub struct Tally {
    requests: usize,
    served: usize,
    left: usize,
    orphaned: usize,
    errors: BTreeMap<String, usize>,
    times: Vec<u64>,
    /// Legs that reached an engine.
    prefill_legs: usize,
    decode_legs: usize,
    local_legs: usize,
    /// Handoffs that reached a decode engine, with how often each did.
    handoffs: HashMap<String, usize>,
    /// Held KV that was already counted.
    leaks: HashSet<String>,
    /// Faults that were there.
    pub faults: usize,
    /// Wrong answers.
    pub wrong: usize,
    /// Requests without an end.
    pub hung: usize,
    /// Ends that do not say what they are.
    pub dishonest: usize,
    /// Blocks that are held for nobody.
    pub leaked_blocks: usize,
    /// Handoffs that reached a decode engine more than once.
    pub double_use: usize,
    /// Certain views of a rank that differ from what it holds.
    pub view_wrong: usize,
    /// The same that are right.
    pub views_right: usize,
    /// Blocks that engines held until they did not wait any more, where nothing gives KV back.
    pub timed_out_blocks: usize,
    /// Tickets, legs, requests and reservations that are still open though nobody asks.
    pub open_work: usize,
    /// Workers that a router does not use though nothing is wrong with them.
    pub not_ready: usize,
    /// Engines that died of what they were sent.
    pub killed_engines: usize,
    /// What must not be, in words.
    told: BTreeMap<&'static str, Vec<String>>,
}

impl Tally {
    /// A request has ended.
    pub fn visited(&mut self, number: usize, visit: Visit) {
        self.requests += 1;
        match visit.end {
            End::Served => {
                self.served += 1;
                self.times.push(microseconds(visit.took));
            }
            End::Left => self.left += 1,
            End::Orphaned => self.orphaned += 1,
            End::Refused(kind) => *self.errors.entry(kind).or_default() += 1,
            End::Broken(kind) => *self.errors.entry(format!("in stream: {kind}")).or_default() += 1,
            End::Wrong(what) => {
                self.wrong += 1;
                self.tell("wrong", format!("request {number}: {what}"));
            }
            End::Hung(what) => {
                self.hung += 1;
                self.tell("hung", format!("request {number}: {what}"));
            }
            End::Dishonest(what) => {
                self.dishonest += 1;
                self.tell("dishonest", format!("request {number}: {what}"));
            }
        }
    }

    /// These requests reached an engine.
    pub fn reached(&mut self, subject: &dyn Subject, legs: &[Seen]) {
        for seen in legs {
            match seen.leg {
                Leg::Prefill => self.prefill_legs += 1,
                Leg::Local => self.local_legs += 1,
                Leg::Decode => self.decoded(&subject.handoff(&seen.json())),
            }
        }
    }

    fn decoded(&mut self, handoff: &str) {
        self.decode_legs += 1;
        let times = self.handoffs.entry(handoff.to_owned()).or_default();
        *times += 1;
        if *times > 1 {
            self.double_use += 1;
            self.tell("double_use", format!("{handoff} reached decode again"));
        }
    }

    /// An engine holds this KV though nobody asks.
    pub fn holds(&mut self, engine: &str, held: &[(String, usize)]) {
        for (id, blocks) in held {
            if self.leaks.insert(format!("{engine}/{id}")) {
                self.leaked_blocks += blocks;
                self.tell("leaked_blocks", format!("{engine} holds {blocks} for {id}"));
            }
        }
    }

    /// Something that must not be.
    pub fn tell(&mut self, kind: &'static str, what: String) {
        let told = self.told.entry(kind).or_default();
        if told.len() < MOST_TOLD {
            told.push(what);
        }
    }

    /// The same by kind, as far as it was told.
    pub fn told(&self) -> impl Iterator<Item = String> {
        let kinds = self.told.iter();
        kinds.flat_map(|(kind, told)| told.iter().map(move |what| format!("{kind}: {what}")))
    }

    /// Share of what was asked and waited for that was served.
    pub fn served_share(&self) -> f64 {
        let waited = self.requests - self.left - self.orphaned;
        ratio(self.served, waited)
    }

    /// What is wrong with the run, in words.
    pub fn failures(&self, engines: Engines) -> Vec<String> {
        let zeros = [
            ("wrong", self.wrong),
            ("hung", self.hung),
            ("dishonest", self.dishonest),
            ("leaked_blocks", self.leaked_blocks),
            ("double_use", self.double_use),
            ("view_wrong", self.view_wrong),
            ("open_work", self.open_work),
            ("not_ready", self.not_ready),
            ("killed_engines", self.killed_engines),
        ];
        let failed = zeros.iter().filter(|(_, count)| *count > 0);
        let mut failures: Vec<String> = failed
            .map(|(name, count)| format!("{}.{name} is {count}", engines.prefix()))
            .collect();
        let share = self.served_share();
        if share < LEAST_SERVED {
            failures.push(format!("only {:.1} % were served", share * 100.0));
        }
        failures
    }

    /// All figures of a run with these engines.
    pub fn figures(mut self, engines: Engines) -> Vec<Figure> {
        self.times.sort_unstable();
        let time = |share| quantile(&self.times, share).unwrap_or_default();
        let count = |name: &str, value| count(engines, name, value);
        let figure = |name: &str, value, unit| figure(engines, name, value, unit);
        let mut figures = vec![
            count("requests", self.requests),
            count("split_requests", self.handoffs.len()),
            count("injected", self.faults),
            count("wrong", self.wrong),
            count("hung", self.hung),
            count("dishonest", self.dishonest),
            count("leaked_blocks", self.leaked_blocks),
            count("double_use", self.double_use),
            count("view_wrong", self.view_wrong),
            count("views_right", self.views_right),
            count("open_work", self.open_work),
            count("not_ready", self.not_ready),
            count("killed_engines", self.killed_engines),
            figure("served_share", self.served_share(), ""),
            count("clients_left", self.left),
            count("cut_by_router_kills", self.orphaned),
            figure("legs_per_request", self.legs_per_request(), ""),
            count("local_legs", self.local_legs),
            figure("p50_ms", milliseconds(time(0.5)), "ms"),
            figure("p99_ms", milliseconds(time(0.99)), "ms"),
        ];
        if engines.cast().contains(&Kind::Trtllm) {
            figures.push(count("timed_out_blocks", self.timed_out_blocks));
        }
        for (kind, times) in &self.errors {
            let word = kind.replace(": ", "_").replace(' ', "_");
            figures.push(count(&format!("errors.{word}"), *times));
        }
        figures
    }

    fn legs_per_request(&self) -> f64 {
        let legs = self.prefill_legs + self.decode_legs + self.local_legs;
        ratio(legs, self.requests)
    }
}

/// A count under its stable name.
pub fn count(engines: Engines, name: &str, value: usize) -> Figure {
    figure(engines, name, as_number(value), "")
}

fn figure(engines: Engines, name: &str, value: f64, unit: &'static str) -> Figure {
    Figure {
        name: format!("{}.{name}", engines.prefix()),
        value: rounded_unless_whole(value),
        unit,
        spread: [rounded_unless_whole(value); 2],
        reference: None,
        direct: None,
    }
}

fn rounded_unless_whole(value: f64) -> f64 {
    if value.fract() == 0.0 {
        value
    } else {
        rounded(value)
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    as_number(part) / as_number(whole)
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn as_number(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "seconds, not centuries")]
fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1000.0
}

fn microseconds(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(tally: &mut Tally, end: End) {
        let took = Duration::from_millis(3);
        tally.visited(0, Visit { end, took });
    }

    #[test]
    fn a_run_that_serves_nothing_fails() {
        let mut tally = Tally::default();
        for _ in 0..3 {
            ended(&mut tally, End::Refused("no_worker".to_owned()));
        }
        assert_eq!(tally.failures(Engines::Vllm), ["only 0.0 % were served"]);
    }

    #[test]
    fn who_left_is_not_counted_as_unserved() {
        let mut tally = Tally::default();
        ended(&mut tally, End::Served);
        ended(&mut tally, End::Left);
        ended(&mut tally, End::Orphaned);
        assert!(tally.failures(Engines::Vllm).is_empty());
        ended(&mut tally, End::Hung("x".to_owned()));
        assert_eq!(tally.failures(Engines::Vllm)[0], "faults.hung is 1");
        let figures = tally.figures(Engines::Vllm);
        let of = |name: &str| {
            figures
                .iter()
                .find(|figure| figure.name == name)
                .unwrap()
                .value
        };
        assert_eq!((of("faults.requests"), of("faults.hung")), (4.0, 1.0));
        assert!((of("faults.p50_ms") - 3.0).abs() < 1e-9);
    }

    #[test]
    fn held_kv_is_counted_once() {
        let mut tally = Tally::default();
        let held = [("a".to_owned(), 4), ("b".to_owned(), 2)];
        tally.holds("p0", &held);
        tally.holds("p0", &held);
        assert_eq!(tally.leaked_blocks, 6);
    }
}
