//! A fleet, a router and their clients in virtual time.
//!
//! Everything that happens is an event in a [`queue`]; nothing sleeps, and equal seeds give equal outcomes to the last digit.
//! Requests come when the trace says, whatever has become of those before them: an open loop. What workers do is in
//! [`workers`]; here is what the router does.

mod queue;
mod workers;

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use baton_proto::worker::Role;

use self::queue::{Event, Queue};
use super::engine::{Engine, Handoff, Leg};
use super::links::{Links, Transfer};
use super::outcome::{Outcome, Served};
use super::policy::{Arrival, Cached, Choice, Facts, KvChange, News, Policy, Seen};
use super::setting::{Delays, Worker};
use super::trace::Trace;
use super::view::View;

/// A run.
pub struct Simulation<'a> {
    trace: &'a Trace,
    workers: &'a [Worker],
    delays: Delays,
    policy: &'a mut dyn Policy,
    now: u64,
    queue: Queue,
    // What a router has.
    facts: Vec<Facts>,
    view: View,
    cached: Vec<Cached>,
    // What workers have.
    engines: Vec<Engine>,
    links: Links,
    /// Grows when something changes on the links.
    links_version: u64,
    woken: Vec<bool>,
    reports: Vec<u64>,
    /// Per worker, transfers to it that arrived since its last report, and their seconds.
    arrived: Vec<(Vec<Transfer>, f64)>,
    pulled: HashSet<u32>,
    // What came of it.
    served: Vec<Served>,
    open: usize,
    outcome: Outcome,
}

/// Runs a trace, with its times divided by `speedup`, until every request has ended.
pub fn run(
    trace: &Trace,
    speedup: f64,
    workers: &[Worker],
    delays: Delays,
    policy: &mut dyn Policy,
) -> Result<Outcome> {
    let name = policy.name();
    let mut simulation = Simulation::new(trace, speedup, workers, delays, policy);
    while let Some((at, event)) = simulation.queue.pop() {
        simulation.now = at;
        simulation.happens(event).context(name)?;
    }
    simulation.finish().context(name)
}

impl<'a> Simulation<'a> {
    fn new(
        trace: &'a Trace,
        speedup: f64,
        workers: &'a [Worker],
        delays: Delays,
        policy: &'a mut dyn Policy,
    ) -> Self {
        let cards: Vec<f64> = workers.iter().map(|worker| worker.card).collect();
        let silent: Vec<usize> = (0..workers.len())
            .filter(|worker| !workers[*worker].tells)
            .collect();
        let mut queue = Queue::default();
        for (number, request) in (0..).zip(&trace.requests) {
            queue.push(nanoseconds(request.at / speedup), Event::Arrive(number));
        }
        for worker in 0..workers.len() {
            // Not all at the same time.
            #[expect(clippy::cast_precision_loss, reason = "workers are few")]
            let share = worker as f64 / workers.len() as f64;
            let first = nanoseconds(delays.report_interval * share);
            queue.push(first, Event::Write(worker));
        }
        Self {
            trace,
            workers,
            delays,
            policy,
            now: 0,
            queue,
            facts: workers.iter().map(Worker::facts).collect(),
            view: View::new(workers.len(), &silent),
            cached: Vec::new(),
            engines: workers
                .iter()
                .map(|worker| Engine::new(worker.engine.clone()))
                .collect(),
            links: Links::new(&cards),
            links_version: 0,
            woken: vec![false; workers.len()],
            reports: vec![0; workers.len()],
            arrived: vec![(Vec::new(), 0.0); workers.len()],
            pulled: HashSet::new(),
            served: vec![Served::default(); trace.requests.len()],
            open: trace.requests.len(),
            outcome: Outcome::default(),
        }
    }

    fn happens(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Arrive(request) => return self.arrive(request),
            Event::Leg { worker, leg } => self.submit(worker, leg),
            Event::Wake(worker) => {
                self.woken[worker] = false;
                self.plan(worker);
            }
            Event::StepEnd(worker) => self.step_ends(worker),
            Event::Send(transfer) => {
                self.links.begin(self.now, transfer);
                self.links_changed();
            }
            Event::Arrivals { version } => self.arrivals(version),
            Event::LeaseEnd { worker, request } => self.lease_ends(worker, request),
            Event::View { worker, changes } => self.view_changes(worker, &changes),
            Event::Ready {
                request,
                worker,
                cached,
            } => self.ready(request, worker, cached),
            Event::First { request, worker } => self.tell(&News::FirstToken { request, worker }),
            Event::Done {
                request,
                worker,
                generated,
            } => self.done(request, worker, generated),
            Event::Write(worker) => self.write_report(worker),
            Event::Report {
                worker,
                load,
                transfers,
                seconds,
            } => {
                for transfer in transfers {
                    self.tell_transfer(transfer, seconds);
                }
                self.tell(&News::Load { worker, load });
            }
        }
        Ok(())
    }

    fn arrive(&mut self, request: u32) -> Result<()> {
        let asked = &self.trace.requests[request as usize];
        let arrival = Arrival {
            request,
            tokens: asked.prompt,
            blocks: asked.blocks.clone(),
        };
        self.view.find(&arrival.blocks, &mut self.cached);
        let seen = Seen {
            workers: &self.facts,
            cached: &self.cached,
        };
        let choice = self.policy.choose(seconds(self.now), &arrival, &seen);
        let served = &mut self.served[request as usize];
        served.arrived = self.now;
        served.choice = Some(choice);
        match choice {
            Choice::Refuse => self.open -= 1,
            Choice::Local { worker } => {
                ensure!(
                    self.workers[worker].role != Role::Unknown,
                    "worker {worker} takes no work"
                );
                self.dispatch(request, worker, Handoff::None);
            }
            Choice::Split { prefill, decode } => {
                ensure!(
                    prefill != decode
                        && self.workers[prefill].role.prefills()
                        && self.workers[decode].role.decodes(),
                    "prefill on {prefill} and decode on {decode} is no plan"
                );
                self.dispatch(request, prefill, Handoff::Hold);
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, request: u32, worker: usize, handoff: Handoff) {
        let asked = &self.trace.requests[request as usize];
        let leg = Leg {
            request,
            prompt: asked.prompt,
            uncached: self.policy.uncached(request).unwrap_or(asked.prompt),
            answer: if handoff == Handoff::Hold {
                1
            } else {
                asked.answer
            },
            blocks: asked.blocks.clone(),
            handoff,
        };
        self.after(self.delays.hop, Event::Leg { worker, leg });
    }

    /// A prefill leg was answered: decode is asked.
    fn ready(&mut self, request: u32, worker: usize, cached: u32) {
        self.tell(&News::PrefillReady {
            request,
            worker,
            cached,
        });
        if let Some(Choice::Split { prefill, decode }) = self.served[request as usize].choice {
            self.dispatch(request, decode, Handoff::Fetch { from: prefill });
        }
    }

    fn done(&mut self, request: u32, worker: usize, generated: u32) {
        self.open -= 1;
        let cached = self.served[request as usize].cached;
        self.tell(&News::Finished {
            request,
            worker,
            cached,
            generated,
        });
    }

    fn view_changes(&mut self, worker: usize, changes: &[KvChange]) {
        self.view.apply(worker, changes);
        self.tell(&News::Kv { worker, changes });
    }

    fn tell_transfer(&mut self, transfer: Transfer, seconds: f64) {
        self.tell(&News::Transferred {
            request: transfer.request,
            from: transfer.from,
            to: transfer.to,
            bytes: transfer.bytes,
            seconds,
        });
    }

    fn tell(&mut self, news: &News<'_>) {
        self.policy.told(seconds(self.now), news);
    }

    fn after(&mut self, delay: f64, event: Event) {
        self.queue.push(self.now + nanoseconds(delay), event);
    }

    /// What came of it, if everything ended as it must.
    fn finish(mut self) -> Result<Outcome> {
        ensure!(self.open == 0, "{} requests never ended", self.open);
        for (number, engine) in self.engines.iter().enumerate() {
            ensure!(
                engine.open() == 0 && engine.blocks_used() == 0,
                "worker {number} still has {} legs and {} blocks in use",
                engine.open(),
                engine.blocks_used()
            );
        }
        self.outcome.engines = self.engines.iter().map(Engine::stats).collect();
        self.outcome.roles = self.workers.iter().map(|worker| worker.role).collect();
        self.outcome.add_all(self.trace, &self.served);
        Ok(self.outcome)
    }
}

/// Seconds of a time in nanoseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "an hour in nanoseconds is exact"
)]
pub(super) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn nanoseconds(seconds: f64) -> u64 {
    let of = Duration::from_secs_f64(seconds).as_nanos();
    u64::try_from(of).unwrap_or(u64::MAX)
}
