//! What is done to router, sidecar and engine, in order, and what must hold after each.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::load::{Ask, Clients, Patience, Workload};
use super::look;
use super::predictions::{self, Found};
use super::quiet::{self, Known, Witness};
use super::stand::{Parts, Stand};
use crate::real::engine::Kind;
use crate::real::http;
use crate::real::report::Report;

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Completions of the first stage; others take a part of that.
    pub requests: usize,
    /// How many at a time.
    pub at_a_time: usize,
    /// Predictions that are compared after the first stage.
    pub probes: usize,
    /// Everything, or a short cut.
    pub whole: bool,
    /// What decides about the requests.
    pub seed: u64,
}

impl Size {
    /// About how many requests that are.
    pub fn total(self) -> u64 {
        // Some stages go on until enough was published.
        let [requests, probes] = if self.whole { [4, 5] } else { [2, 2] };
        (self.requests * requests + self.probes * probes) as u64
    }
}

/// How many messages the engine keeps for replay in the whole proof: little enough that a loss can be beyond repair.
const BUFFER_STEPS: u64 = 200;

/// So few requests publish less than that, at two or three messages each.
const REPLAYABLE: usize = 32;

/// The sidecar connects anew and asks within this.
const LOSS_BOUND: Duration = Duration::from_secs(20);

/// After a request that had the engine announce what it reused, so long announcements may be of that kind.
const REPORTS_BOUND: Duration = Duration::from_secs(12);

/// A run.
struct Run<'a> {
    size: Size,
    report: &'a Report,
    parts: Parts,
    stand: Stand,
    witness: Witness,
    workload: Workload,
}

/// Runs all stages. What does not hold is reported and the rest goes on; an error means that it cannot.
pub fn run(mut parts: Parts, size: Size, report: &Report) -> Result<()> {
    parts.buffer_steps = size.whole.then_some(BUFFER_STEPS);
    let mut stand = Stand::new(parts.clone())?;
    stand.start_router()?;
    stand.start_engine()?;
    stand.start_sidecar()?;
    stand.wait_until_ready()?;
    let mut run = Run {
        size,
        report,
        witness: Witness::join(&stand, &parts.model)?,
        workload: Workload::new(size.seed, parts.kind == Kind::Vllm),
        stand,
        parts,
    };
    run.quiet("at the start", Known::Exactly);
    run.pressure()?;
    run.resets()?;
    run.cut()?;
    if size.whole {
        run.router_restart()?;
        run.loss()?;
        run.late_sidecar()?;
        run.engine_restart()?;
        run.sidecar_restart()?;
        run.launched()?;
    } else {
        run.sidecar_restart()?;
    }
    run.figures();
    Ok(())
}

impl Run<'_> {
    /// Random completions on an engine that must evict.
    fn pressure(&mut self) -> Result<()> {
        self.traffic("under eviction pressure", self.size.requests)?;
        let counts = &self.witness.books.counts;
        let detail = format!("{counts:?}");
        let (what, all) = match self.parts.kind {
            Kind::Vllm => (
                "the engine evicts, and has blocks of adapters, with salts, and twice",
                vec![counts.removed, counts.adapted, counts.salted, counts.again],
            ),
            // Its tree has one place for a block.
            Kind::Sglang => (
                "the engine evicts, and has blocks with salts",
                vec![counts.removed, counts.salted],
            ),
        };
        let met = all.iter().all(|count| *count > 0);
        self.report.check(what, met, &detail);
        self.probes(self.size.probes, Known::Exactly)
    }

    /// A reset of an idle engine may be told late; one among requests makes them begin anew, if the engine does that.
    fn resets(&mut self) -> Result<()> {
        let before = self.witness.books.counts.cleared;
        self.stand.reset_prefix_cache(false)?;
        self.quiet(
            "after a reset that the engine has not told yet",
            Known::Exactly,
        );
        self.traffic("after a reset", self.size.requests / 4)?;
        let among_requests = self.size.whole && self.parts.kind == Kind::Vllm;
        if among_requests {
            let requests = self.size.requests / 2;
            self.traffic_and(
                "with a reset among requests",
                requests,
                Patience::None,
                |stand| stand.reset_prefix_cache(true),
            )?;
        }
        let cleared = self.witness.books.counts.cleared - before;
        let expected = if among_requests { 2 } else { 1 };
        let detail = format!("AllBlocksCleared {cleared} times");
        self.report
            .check("each reset is told once", cleared == expected, &detail);
        self.probes(self.size.probes / 2, Known::Exactly)
    }

    /// Connections for events end while requests run, and come back.
    fn cut(&mut self) -> Result<()> {
        let requests = REPLAYABLE.min(self.size.requests / 4);
        self.send(requests, Patience::None, |stand| stand.detour.cut())?;
        self.quiet("while events do not come through", Known::InPart);
        self.stand.detour.mend()?;
        self.quiet("after events did not come through", Known::Exactly);
        self.probes(self.size.probes / 4, Known::Exactly)
    }

    /// The router is killed while requests run. Its clients ask again.
    fn router_restart(&mut self) -> Result<()> {
        let requests = self.size.requests / 2;
        self.traffic_and(
            "with a router that was killed",
            requests,
            Patience::AskAgain,
            |stand| {
                stand.kill_router();
                stand.start_router()
            },
        )?;
        self.probes(self.size.probes / 2, Known::Exactly)
    }

    /// Events are lost beyond what the engine can replay.
    fn loss(&mut self) -> Result<()> {
        self.stand.detour.cut()?;
        self.outrun_the_buffer()?;
        self.stand.detour.mend()?;
        let sidecar = self.stand.sidecar();
        http::until("the sidecar notices the loss", LOSS_BOUND, || {
            let page = look::metrics(&sidecar)?;
            let gaps = page.sum("baton_sidecar_view_oddities_total", &[("reason", "gap")]);
            Ok((gaps > 0).then_some(()))
        })?;
        self.quiet("after a loss beyond repair", Known::InPart);
        self.probes(self.size.probes / 4, Known::InPart)?;
        self.send(self.size.requests / 4, Patience::None, |_| Ok(()))?;
        self.quiet("while lost blocks are learnt anew", Known::InPart);
        self.probes(self.size.probes / 4, Known::InPart)?;
        self.certain_again("after a loss")
    }

    /// Has the engine publish so much that it can no longer replay what it published before.
    fn outrun_the_buffer(&mut self) -> Result<()> {
        self.witness.catch_up()?;
        let before = self.witness.heard();
        while self.witness.heard() <= before + BUFFER_STEPS {
            self.send(self.size.requests / 8, Patience::None, |_| Ok(()))?;
            self.witness.catch_up()?;
        }
        Ok(())
    }

    /// A sidecar that comes so late that the engine no longer has its first events.
    fn late_sidecar(&mut self) -> Result<()> {
        // The last reset, after which everything would be known, must not be among what is replayed.
        self.outrun_the_buffer()?;
        let requests = self.size.requests / 4;
        self.send(requests, Patience::AskAgain, |stand| {
            stand.kill_sidecar();
            stand.start_sidecar()
        })?;
        self.stand.wait_until_ready()?;
        self.quiet("with a sidecar that came late", Known::InPart);
        self.probes(self.size.probes / 4, Known::InPart)?;
        self.certain_again("after coming late")
    }

    /// The engine is killed while requests run, and another one boots in its place.
    fn engine_restart(&mut self) -> Result<()> {
        self.send(self.size.requests / 4, Patience::Leave, |stand| {
            stand.kill_engine();
            Ok(())
        })?;
        self.stand.wait_until_not_ready()?;
        self.stand.start_engine()?;
        self.stand.wait_until_ready()?;
        self.witness = Witness::join(&self.stand, &self.parts.model)?;
        self.quiet("with an engine that was started again", Known::Exactly);
        let requests = REPLAYABLE.min(self.size.requests / 4);
        self.traffic("in the engine's second life", requests)?;
        self.probes(self.size.probes / 4, Known::Exactly)
    }

    /// A sidecar is killed, and its successor learns all from the engine's replay.
    fn sidecar_restart(&mut self) -> Result<()> {
        self.stand.kill_sidecar();
        self.stand.start_sidecar()?;
        self.stand.wait_until_ready()?;
        self.quiet(
            "with a sidecar that was killed and started again",
            Known::Exactly,
        );
        self.probes(self.size.probes / 4, Known::Exactly)
    }

    /// The same with a sidecar that launched the engine itself.
    fn launched(&mut self) -> Result<()> {
        self.stand.end_sidecar()?;
        self.stand.kill_engine();
        self.stand.start_sidecar_with_engine()?;
        self.stand.wait_until_ready()?;
        self.witness = Witness::join(&self.stand, &self.parts.model)?;
        self.traffic(
            "with a sidecar that launched its engine",
            self.size.requests / 2,
        )?;
        self.probes(self.size.probes / 2, Known::Exactly)
    }

    /// Of an engine that was emptied, everything is known. The first reset comes amid reports of reused blocks, which look
    /// like further copies; a sidecar asks for no more of them after it, and the second one leaves no doubt.
    fn certain_again(&mut self, when: &str) -> Result<()> {
        for _ in 0..2 {
            let since = Instant::now();
            http::until("reports to be over", REPORTS_BOUND * 2, || {
                Ok((since.elapsed() > REPORTS_BOUND).then_some(()))
            })?;
            self.stand.reset_prefix_cache(false)?;
            self.send(self.size.requests / 8, Patience::None, |_| Ok(()))?;
        }
        self.quiet(&format!("{when}, resets and requests"), Known::Exactly);
        self.probes(self.size.probes / 4, Known::Exactly)
    }

    fn traffic(&mut self, when: &str, requests: usize) -> Result<()> {
        self.traffic_and(when, requests, Patience::None, |_| Ok(()))
    }

    fn traffic_and(
        &mut self,
        when: &str,
        requests: usize,
        patience: Patience,
        meanwhile: impl FnOnce(&mut Stand) -> Result<()>,
    ) -> Result<()> {
        self.send(requests, patience, meanwhile)?;
        self.quiet(when, Known::Exactly);
        Ok(())
    }

    /// Sends completions; something else happens meanwhile.
    fn send(
        &mut self,
        requests: usize,
        patience: Patience,
        meanwhile: impl FnOnce(&mut Stand) -> Result<()>,
    ) -> Result<()> {
        let asks: Vec<Ask> = (0..requests).map(|_| self.workload.take()).collect();
        let url = format!("{}/v1/completions", self.stand.router());
        let clients = Clients {
            url: &url,
            model: &self.parts.model,
            at_a_time: self.size.at_a_time,
            report: self.report,
        };
        let stand = &mut self.stand;
        let (served, ()) = clients.send(&asks, patience, || meanwhile(stand))?;
        if patience != Patience::Leave {
            let strict = patience == Patience::None;
            let failures = served.failures.first().cloned().unwrap_or_default();
            let ok = served.answered == requests && (!strict || served.failures.is_empty());
            if !ok {
                let detail = format!("{} of {requests}: {failures}", served.answered);
                self.report
                    .check("every client is answered", false, &detail);
            }
        }
        Ok(())
    }

    fn quiet(&mut self, when: &str, known: Known) {
        let what = match known {
            Known::Exactly => "router = sidecar = subscriber",
            Known::InPart => "router = sidecar, uncertain, and part of subscriber",
        };
        let agreed = quiet::agree(&self.stand, &mut self.witness, known);
        let fits = self.witness.books.copies() < self.parts.blocks || known == Known::InPart;
        let detail = match &agreed {
            Ok(detail) if fits => detail.clone(),
            Ok(_) => format!("more copies than blocks: {}", self.witness.books.copies()),
            Err(error) => format!("{error:#}"),
        };
        let name = format!("{what} {when}");
        self.report.check(&name, agreed.is_ok() && fits, &detail);
    }

    /// One by one: before each, everything about the one before is known.
    fn probes(&mut self, probes: usize, known: Known) -> Result<()> {
        let router = self.stand.router();
        let before = predictions::compared(&router)?;
        let mut found = Found::default();
        for _ in 0..probes {
            let ask = self.workload.probe();
            let asked = quiet::agree(&self.stand, &mut self.witness, known).and_then(|_| {
                predictions::probe(&router, &self.parts.model, &ask, known, &mut found)
            });
            self.report.request();
            if let Err(error) = asked {
                found.wrong.push(format!("{error:#}"));
                break;
            }
        }
        let after = predictions::compared(&router)?;
        let mispredicted = after[1] - before[1];
        let (name, compared) = match known {
            Known::Exactly => ("predicted = reported cached tokens", after[0] - before[0]),
            Known::InPart => ("predicted cached tokens are among those reported", 0),
        };
        let ok = found.wrong.is_empty() && mispredicted == 0 && found.probes > 0;
        let detail = format!(
            "{} probes, {} tokens predicted, {} reported; the router compared {compared}, mispredicted {mispredicted}; {}",
            found.probes,
            found.predicted,
            found.reported,
            found.wrong.join("; ")
        );
        self.report.check(name, ok, &detail);
        Ok(())
    }

    fn figures(&self) {
        let counts = &self.witness.books.counts;
        for (name, value, unit) in [
            ("the engine's last life", counts.messages, "messages"),
            ("stored in it", counts.stored, "blocks"),
            ("of these, further copies", counts.again, "blocks"),
            ("removed in it", counts.removed, "blocks"),
            (
                "of these, while another copy stayed",
                counts.removed_copies,
                "blocks",
            ),
        ] {
            self.report.figure(name, value, unit);
        }
    }
}
