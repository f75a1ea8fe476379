//! What workers do, and what of it goes to the router.

use super::queue::Event;
use super::{Simulation, nanoseconds, seconds};
use crate::routing::engine::{Fetch, Leg, Output, Planned};
use crate::routing::links::Transfer;
use crate::routing::policy::{Load, News};

impl Simulation<'_> {
    pub(super) fn submit(&mut self, worker: usize, leg: Leg) {
        self.engines[worker].submit(leg);
        self.wake(worker);
    }

    /// Lets an idle worker look for work, once all that happens now has happened.
    fn wake(&mut self, worker: usize) {
        if !self.engines[worker].is_stepping() && !self.woken[worker] {
            self.woken[worker] = true;
            self.queue.push(self.now, Event::Wake(worker));
        }
    }

    pub(super) fn plan(&mut self, worker: usize) {
        if self.engines[worker].is_stepping() {
            return;
        }
        let mut fetches = Vec::new();
        match self.engines[worker].plan(&mut fetches) {
            Planned::Step(takes) => {
                let takes = u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX);
                self.queue.push(self.now + takes, Event::StepEnd(worker));
            }
            Planned::Idle => self.tell_changes(worker),
        }
        for fetch in fetches {
            self.fetch(worker, fetch);
        }
    }

    pub(super) fn step_ends(&mut self, worker: usize) {
        let mut outputs = Vec::new();
        self.engines[worker].finish_step(&mut outputs);
        self.tell_changes(worker);
        for output in outputs {
            self.output(worker, output);
        }
        self.plan(worker);
    }

    fn tell_changes(&mut self, worker: usize) {
        let changes = self.engines[worker].take_changes();
        if !changes.is_empty() && self.view.knows(worker) {
            self.after(self.delays.event, Event::View { worker, changes });
        }
    }

    fn output(&mut self, worker: usize, output: Output) {
        let request = output.request;
        if let Some(finish) = output.finish
            && finish.held
        {
            let cached = finish.cached;
            self.served[request as usize].cached = cached;
            self.after(self.delays.lease, Event::LeaseEnd { worker, request });
            let ready = Event::Ready {
                request,
                worker,
                cached,
            };
            return self.after(self.delays.hop, ready);
        }
        self.token(worker, request);
        if let Some(finish) = output.finish {
            let served = &mut self.served[request as usize];
            if !served.is_split() {
                served.cached = finish.cached;
            }
            let done = Event::Done {
                request,
                worker,
                generated: output.generated,
            };
            self.after(self.delays.hop, done);
        }
    }

    /// A token for a client.
    fn token(&mut self, worker: usize, request: u32) {
        let seen = self.now + nanoseconds(self.delays.hop);
        let served = &mut self.served[request as usize];
        let last = std::mem::replace(&mut served.last_token, seen);
        if served.first_token == 0 {
            served.first_token = seen;
            return self.after(self.delays.hop, Event::First { request, worker });
        }
        self.outcome.add_gap(seen - last);
        if self.policy.wants_tokens() {
            let news = News::Token { request, worker };
            // A hop early: millions of events would have to wait in the queue, and the policy's clock must not go back.
            self.policy.told(seconds(self.now), &news);
        }
    }

    fn fetch(&mut self, to: usize, fetch: Fetch) {
        let Fetch {
            request,
            from,
            tokens,
        } = fetch;
        if !self.engines[from].holds(request) {
            self.outcome.expired += 1;
            self.engines[to].fetched(request, false);
            self.wake(to);
            return;
        }
        self.pulled.insert(request);
        let transfer = Transfer {
            request,
            from,
            to,
            bytes: tokens * u64::from(self.workers[from].kv_bytes_per_token),
            asked: self.now,
        };
        self.after(self.delays.transfer, Event::Send(transfer));
    }

    pub(super) fn links_changed(&mut self) {
        self.links_version += 1;
        if let Some(at) = self.links.next_arrival() {
            let version = self.links_version;
            self.queue.push(at, Event::Arrivals { version });
        }
    }

    pub(super) fn arrivals(&mut self, version: u64) {
        if version != self.links_version {
            return;
        }
        for transfer in self.links.take_arrived(self.now) {
            let Transfer {
                request, from, to, ..
            } = transfer;
            self.engines[from].release(request);
            self.wake(from);
            self.engines[to].fetched(request, true);
            self.wake(to);
            self.pulled.remove(&request);
            let (transfers, took) = &mut self.arrived[to];
            transfers.push(transfer);
            *took += seconds(self.now - transfer.asked);
            self.outcome.moved_bytes += transfer.bytes;
        }
        self.links_changed();
    }

    pub(super) fn lease_ends(&mut self, worker: usize, request: u32) {
        if !self.pulled.contains(&request) && self.engines[worker].release(request) {
            self.wake(worker);
        }
    }

    pub(super) fn write_report(&mut self, worker: usize) {
        self.reports[worker] += 1;
        let busy = self.engines[worker].busy();
        let load = Load {
            sequence: self.reports[worker],
            written: seconds(self.now),
            running: busy.running,
            waiting: busy.waiting,
            queued_prefill_tokens: busy.queued_prefill_tokens,
            free_blocks: busy.free_blocks,
            handoffs_held: busy.held,
            handoffs_pulling: busy.fetching,
        };
        let (transfers, took) = std::mem::take(&mut self.arrived[worker]);
        #[expect(clippy::cast_precision_loss, reason = "transfers are few")]
        let seconds = took / transfers.len().max(1) as f64;
        self.after(
            self.delays.report,
            Event::Report {
                worker,
                load,
                transfers,
                seconds,
            },
        );
        if self.open > 0 {
            self.after(self.delays.report_interval, Event::Write(worker));
        }
    }
}
