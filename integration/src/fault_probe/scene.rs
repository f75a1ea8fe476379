//! What a row works with: the stand, requests whose right answers are known, and the report.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::asks::{Ask, Workload};
use super::call::{Call, Ended};
use super::look;
use super::quiet::{self, Expected, Quiet, SOON};
use super::seat::Part;
use super::stand::{Parts, Stand, Who};
use super::verdict::Verdict;
use crate::real::engine::Kind;
use crate::real::http;
use crate::real::report::Report;

/// A stage of a request is reached within this, on a busy machine too.
const STAGE_BOUND: Duration = Duration::from_secs(30);

/// Longer than a sidecar keeps an idle connection to its engine.
const CONNECTIONS_REST: Duration = Duration::from_secs(4);

/// Whom a row made wary trusts again within this.
const RECOVERY_BOUND: Duration = Duration::from_mins(2);

/// So many long prompts use all blocks of the prefill engine.
const OVERWRITTEN_BY: u32 = 3;

/// A request and what is right.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The request.
    pub ask: Ask,
    /// What an engine says that is asked alone.
    pub right: String,
}

/// What a row works with.
pub struct Scene<'a> {
    /// Who runs.
    pub stand: Stand,
    /// What is asked.
    pub workload: Workload,
    report: &'a Report,
    row: &'static str,
    /// How the answer comes that the row is about.
    kind: &'static str,
    /// What was asked in this row.
    asked: Vec<Asked>,
    stranded: i64,
    salts: u32,
}

impl<'a> Scene<'a> {
    /// Boots a stand.
    pub fn boot(parts: Parts, seed: u64, report: &'a Report) -> Result<Self> {
        let mut stand = Stand::new(parts);
        stand.boot()?;
        Ok(Self {
            stand,
            workload: Workload::new(seed),
            report,
            row: "",
            kind: "",
            asked: Vec::new(),
            stranded: 0,
            salts: 0,
        })
    }

    /// Begins a row.
    pub fn enter(&mut self, row: &'static str) -> Result<()> {
        self.row = row;
        let runs = |wanted: fn(Part) -> bool| {
            let mut workers = self.stand.workers();
            workers.any(|(_, seat)| wanted(seat.part))
        };
        if runs(|part| part == Part::Prefill) && runs(Part::decodes) {
            self.recover()?;
        }
        self.asked.clear();
        self.kind = "";
        self.stranded = self.stranded()?;
        Ok(())
    }

    /// Waits until the fleet splits requests again, whatever it has learnt to be wary of.
    fn recover(&mut self) -> Result<()> {
        let since = Instant::now();
        loop {
            let asked = self.usual(false)?;
            let ended = self.begin(&asked)?.finish();
            let verdict = Verdict::of(&ended, &asked.right);
            if verdict.is_split() {
                return Ok(());
            }
            ensure!(
                verdict.is_fair() && since.elapsed() < RECOVERY_BOUND,
                "the fleet does not recover: {verdict:?}"
            );
        }
    }

    fn stranded(&self) -> Result<i64> {
        match self.stand.seat(Who::Prefill)? {
            seat if seat.sidecar.is_some() => quiet::stranded(seat),
            _ => Ok(0),
        }
    }

    /// Has the reference answer a request, before anything happens.
    pub fn know(&mut self, ask: Ask) -> Result<Asked> {
        self.salts += 1;
        let engine = self.stand.reference()?.engine_url();
        let salt = format!("alone-{}", self.salts);
        let right = ask.answer_alone(&engine, &self.stand.parts.model, &salt)?;
        self.kind = if ask.stream { ", stream" } else { ", whole" };
        let asked = Asked { ask, right };
        self.asked.push(asked.clone());
        Ok(asked)
    }

    /// The row is about answers of all kinds.
    pub fn of_all_kinds(&mut self) {
        self.kind = "";
    }

    /// A short request.
    pub fn usual(&mut self, stream: bool) -> Result<Asked> {
        let ask = self.workload.usual(stream);
        self.know(ask)
    }

    /// A client sends a request.
    pub fn begin(&self, asked: &Asked) -> Result<Call> {
        Call::begin(self.stand.router_at(), &self.stand.parts.model, &asked.ask)
    }

    /// Something that must hold in this row.
    pub fn check(&self, what: &str, ok: bool, detail: &str) {
        self.report.check(&self.titled(what), ok, detail);
    }

    /// A number worth keeping.
    pub fn figure(&self, what: &str, value: Duration) {
        let millis = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
        self.report.figure(&self.titled(what), millis, "ms");
    }

    fn titled(&self, what: &str) -> String {
        format!("{}{}: {what}", self.row, self.kind)
    }

    /// Judges how a request ended: a client may get what is right, or an honest error.
    pub fn judge(&self, what: &str, asked: &Asked, ended: &Ended) -> Verdict {
        let verdict = Verdict::of(ended, &asked.right);
        self.check(what, verdict.is_fair(), &format!("{verdict:?}"));
        verdict
    }

    /// Judges how a request ended that nothing stood in the way of in the end: only what is right will do, by two workers.
    pub fn judge_split(&self, what: &str, asked: &Asked, ended: &Ended) {
        let verdict = Verdict::of(ended, &asked.right);
        self.check(what, verdict.is_split(), &format!("{verdict:?}"));
    }

    /// Waits until so many prompts are being computed.
    pub fn until_running(&self, prompts: i64) -> Result<()> {
        self.until_tickets("running", prompts)
    }

    /// Waits until so many prefills have begun. An engine that hands over while it computes has them claimed at once.
    pub fn until_begun(&self, prompts: i64) -> Result<()> {
        match self.stand.parts.kind {
            Kind::Vllm => self.until_running(prompts),
            Kind::Sglang => self.until_claimed(prompts),
        }
    }

    /// Waits until so many handoffs are between their legs.
    pub fn until_claimed(&self, handoffs: i64) -> Result<()> {
        self.until_tickets("claimed", handoffs)
    }

    /// Waits until the prefill's sidecar has its engine back.
    pub fn until_attached(&self) -> Result<()> {
        let sidecar = self.stand.seat(Who::Prefill)?.sidecar_url();
        self.until("prefill's sidecar has its engine back", || {
            Ok(look::page(&sidecar)?.sum("baton_sidecar_engine_up", &[]) == 1)
        })
    }

    fn until_tickets(&self, state: &str, wanted: i64) -> Result<()> {
        let sidecar = self.stand.seat(Who::Prefill)?.sidecar_url();
        let what = format!("{wanted} tickets are {state}");
        self.until(&what, || Ok(look::tickets(&sidecar, state)? == wanted))
    }

    /// Waits until somebody's sidecar has handed a decode leg to its engine.
    pub fn until_decoding(&self, who: Who) -> Result<()> {
        let sidecar = self.stand.seat(who)?.sidecar_url();
        let what = format!("a decode leg is at {who:?}");
        self.until(&what, || Ok(look::in_flight(&sidecar, "decode")? == 1))
    }

    /// Waits for a stage.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        http::until(what, STAGE_BOUND, || Ok(holds()?.then_some(())))
    }

    /// Lets sidecars give up their idle connections to engines. vLLM's server (uvicorn with uvloop, 0.32.0) closes one on which
    /// nothing came for 5 s, also when it was frozen and a request has come meanwhile.
    pub fn rest(&self) -> Result<()> {
        self.pass(CONNECTIONS_REST)
    }

    /// Lets real time pass, where that is what happens.
    pub fn pass(&self, time: Duration) -> Result<()> {
        let since = Instant::now();
        let passed = || Ok((since.elapsed() >= time).then_some(()));
        http::until("time passes", time * 2, passed)
    }

    /// How many handoffs have been settled.
    pub fn settled(&self) -> Result<i64> {
        let page = look::page(&self.stand.seat(Who::Prefill)?.sidecar_url())?;
        Ok(page.sum("baton_sidecar_tickets_ended_total", &[("end", "settled")]))
    }

    /// No handoff was settled since there were so many: the row has met the stage that it is about.
    pub fn not_settled(&self, before: i64) -> Result<()> {
        let settled = self.settled()? - before;
        let detail = format!("{settled} were settled");
        self.check("the handoff did not come to its end", settled == 0, &detail);
        Ok(())
    }

    /// A request between its legs: the router is frozen, and the ticket is on its way to it.
    pub fn held_by_router(&self, asked: &Asked) -> Result<Call> {
        let prefill = self.stand.engine(Who::Prefill)?;
        prefill.freeze()?;
        let call = self.begin(asked)?;
        self.until_running(1)?;
        self.stand.router()?.freeze()?;
        prefill.thaw()?;
        self.until_claimed(1)?;
        Ok(call)
    }

    /// A request between its legs: its decode leg is in the engine, and that is frozen.
    pub fn held_by_decode(&self, asked: &Asked) -> Result<Call> {
        self.rest()?;
        self.stand.engine(Who::Decode)?.freeze()?;
        let call = self.begin(asked)?;
        self.until_claimed(1)?;
        self.until_decoding(Who::Decode)?;
        Ok(call)
    }

    /// The same where two decode engines are there: both are frozen, and one of them has the leg.
    pub fn held_by_somebody(&mut self) -> Result<(Asked, Call, Who)> {
        let asked = self.usual(true)?;
        self.rest()?;
        for who in [Who::Decode, Who::OtherDecode] {
            self.stand.engine(who)?.freeze()?;
        }
        let call = self.begin(&asked)?;
        self.until_claimed(1)?;
        let who = self.who_decodes()?;
        Ok((asked, call, who))
    }

    /// A worker joins the fleet, if it is not in it.
    pub fn join(&mut self, who: Who) -> Result<()> {
        if self.stand.seat(who)?.sidecar.is_none() {
            self.stand.start_sidecar(who)?;
        }
        self.stand.wait_until_ready(&[who])
    }

    /// Boots a dead engine again, under a name that nobody has met.
    pub fn revive(&mut self, who: Who) -> Result<()> {
        if self.stand.seat(who)?.engine.is_none() {
            self.stand.kill_sidecar(who)?;
            self.stand.seat_mut(who)?.renew();
            self.stand.reboot(who)?;
        }
        self.join(who)
    }

    /// Has the prefill engine use all its blocks for other prompts. SGLang's answers nobody who comes alone.
    pub fn overwrite_prefill(&mut self) -> Result<()> {
        if self.stand.parts.kind == Kind::Sglang {
            return Ok(());
        }
        let engine = self.stand.seat(Who::Prefill)?.engine_url();
        for _ in 0..OVERWRITTEN_BY {
            self.salts += 1;
            let salt = format!("over-{}", self.salts);
            let ask = self.workload.long_prompt(false);
            ask.answer_alone(&engine, &self.stand.parts.model, &salt)?;
        }
        Ok(())
    }

    /// What must hold at the end of a row, for prefill and decode, whose blocks nobody needs since then.
    pub fn quiet_since(&mut self, since: Instant) -> Result<()> {
        let both = [Who::Prefill, Who::Decode];
        self.quiet(&both.map(|who| soon(who, since, SOON)))
    }

    /// What must hold at the end of a row: these are quiet in time, nothing was stranded, and whoever decodes says what is
    /// right with what it has cached.
    pub fn quiet(&mut self, expected: &[Expected]) -> Result<()> {
        self.free(expected)?;
        // What a dead engine held is gone with it, however it is counted.
        if self.stand.seat(Who::Prefill)?.engine.is_some() {
            let stranded = self.stranded()? - self.stranded;
            let detail = format!("{stranded} tickets");
            self.check("nothing was stranded", stranded <= 0, &detail);
        }
        self.nothing_foreign()
    }

    /// These have their blocks back in time.
    pub fn free(&mut self, expected: &[Expected]) -> Result<()> {
        for quiet in quiet::wait(&mut self.stand, expected)? {
            let Quiet {
                name,
                after,
                within,
            } = quiet;
            self.figure(&format!("blocks of {name} free after"), after);
            let what = format!("blocks of {name} are free, its ledger is empty");
            let detail = format!("after {after:.1?} of {within:.1?}");
            self.check(&what, after <= within, &detail);
        }
        Ok(())
    }

    /// Whoever decodes has nothing foreign in its cache. SGLang's decode engine keeps nothing that it could have wrong.
    fn nothing_foreign(&mut self) -> Result<()> {
        if self.stand.parts.kind == Kind::Sglang {
            return Ok(());
        }
        let router = self.stand.router_url();
        let model = self.stand.parts.model.clone();
        let decodes = self.stand.workers().filter(|(_, seat)| seat.part.decodes());
        let workers: Vec<(Who, &str)> = decodes.map(|(who, seat)| (who, seat.name)).collect();
        for (who, worker) in workers {
            self.stand.wait_until_ready(&[who])?;
            let mut wrong = Vec::new();
            for Asked { ask, right } in &self.asked {
                let what = format!("{worker} answers");
                let again = http::until(&what, RECOVERY_BOUND, || {
                    Ok(ask.answer_of(&router, &model, worker).ok())
                })?;
                if again != *right {
                    wrong.push(format!("{again:?} instead of {right:?}"));
                }
            }
            let what = format!("{worker} has nothing foreign in its cache");
            self.check(&what, wrong.is_empty(), &wrong.join("; "));
        }
        Ok(())
    }

    /// The decode worker that has the only decode leg.
    pub fn who_decodes(&self) -> Result<Who> {
        let mut found = None;
        self.until("somebody decodes", || {
            for (who, seat) in self.stand.workers() {
                if seat.part.decodes() && look::in_flight(&seat.sidecar_url(), "decode")? > 0 {
                    found = Some(who);
                }
            }
            Ok(found.is_some())
        })?;
        match found {
            Some(who) => Ok(who),
            None => bail!("nobody decodes"),
        }
    }
}

/// Somebody must be quiet by then.
pub fn soon(who: Who, since: Instant, within: Duration) -> Expected {
    Expected { who, since, within }
}
