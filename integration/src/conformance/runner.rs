//! Carries out a case against a target.

mod lives;
mod observe;
mod relate;
mod tickets;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::answer::Answer;
use super::cases::{Case, Part, Step};
use super::fresh::{self, Fresh};
use super::http::{self, Request};
use super::laws::exchange::{self, Exchange};
use super::mask::When;
use super::metrics::Page;
use super::recording::{self, Recording, Source};
use super::shape::{self, Difference};
use super::target::{Launched, Obstacle, Place, Role, Target};
use super::{Outcome, laws};

/// What the recorded tokenizer makes of a text.
const TOKENIZED: (&str, [u64; 4]) = ("the quick brown fox", [728, 792, 796, 761]);

/// A case under way.
pub(super) struct Runner<'a> {
    target: &'a mut Target,
    case: &'a Case,
    fresh: Fresh,
    own: BTreeMap<Role, Launched>,
    /// What was asked so far, by the recording's name.
    asked: Vec<(&'static Recording, Answer)>,
    /// Prompts that an engine has seen in this case.
    seen: BTreeSet<(Role, String)>,
    /// Prompts with what was computed of what was generated from them.
    sequences: BTreeMap<Role, Vec<Vec<u64>>>,
    counters: Option<(Page, Page)>,
    found: Vec<Difference>,
    checked: usize,
}

/// Why a case ends early.
enum Stop {
    Skip(String),
    Fail(String),
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Fail(what)
    }
}

impl From<Obstacle> for Stop {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::Lacks(what) => Self::Skip(what),
            Obstacle::Failed(what) => Self::Fail(what),
        }
    }
}

impl<'a> Runner<'a> {
    pub(super) fn new(target: &'a mut Target, case: &'a Case) -> Self {
        let mut fresh = Fresh {
            model: target.model.clone(),
            ..Fresh::default()
        };
        if case.salted {
            fresh.salt = Some(salt(&case.name));
        }
        Self {
            target,
            case,
            fresh,
            own: BTreeMap::new(),
            asked: Vec::new(),
            seen: BTreeSet::new(),
            sequences: BTreeMap::new(),
            counters: None,
            found: Vec::new(),
            checked: 0,
        }
    }

    /// Carries out all steps; the first that cannot be carried out ends the case.
    pub(super) fn run(mut self) -> Outcome {
        let done = self.prepare().and_then(|()| {
            let mut steps = self.case.steps.iter();
            steps.try_for_each(|step| self.step(step))
        });
        match done {
            Err(Stop::Skip(why)) if self.found.is_empty() => return Outcome::Skipped(why),
            Err(Stop::Skip(why) | Stop::Fail(why)) => {
                self.found.push(Difference::new("the case itself", why));
            }
            Ok(()) => {}
        }
        if self.found.is_empty() {
            Outcome::Conforms(self.checked)
        } else {
            Outcome::Differs(self.found)
        }
    }

    fn prepare(&mut self) -> Result<(), Stop> {
        let setup = self.case.setup;
        for role in &self.case.own {
            let launched = self.target.launch(setup, *role)?;
            self.own.insert(*role, launched);
        }
        let given = |role| self.target.is_given(setup, role);
        let given = [Role::Prefill, Role::Decode, Role::Aggregated]
            .into_iter()
            .any(given);
        if given && !self.case.any_flags {
            return Err(Stop::Skip(
                "needs the flags it was recorded with".to_owned(),
            ));
        }
        if let Some(wanted) = self.case.scale_out.filter(|_| given)
            && self.scale_out()? != wanted
        {
            let state = if wanted { "on" } else { "off" };
            return Err(Stop::Skip(format!("needs the scale-out endpoints {state}")));
        }
        Ok(())
    }

    fn scale_out(&mut self) -> Result<bool, Stop> {
        let place = self.engine(Role::Prefill)?;
        let probe = Request::post("/inference/v1/abort_requests", json!({"request_ids": []}));
        Ok(http::ask(&place.base, &probe)?.status == 200)
    }

    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Ask(name) => self.ask(name),
            Step::Dies(name) => {
                self.ask(name)?;
                self.has_died()
            }
            Step::NeverAnswered(name) => self.never_answered(name),
            Step::Before(role, name, part) => self.before(*role, recording::named(name), *part),
            Step::Prefill(name, part) => self.prefill(recording::named(name), *part),
            Step::PrefillAs(id, name) => self.prefill_as(id, recording::named(name)),
            Step::Change(change) => self.change(*change),
            Step::Forget => {
                self.fresh.salt = self.fresh.salt.take().map(|salt| format!("{salt}-again"));
                Ok(())
            }
            Step::Learn(name, text, id) => self.learn(recording::named(name), text, *id),
            Step::Overwrite(role) => self.overwrite(*role),
            Step::Expires => self.expires(),
            Step::Kill(role) => self.launched(*role).map(Launched::kill),
            Step::StartAgain(role, identity) => self.start_again(*role, *identity),
            Step::Interrupt(prefill, call) => self.interrupt(prefill, call),
            Step::Differ(one, other) => self.differ(one, other),
            Step::Wrong(name) => self.wrong(recording::named(name)),
            Step::Count => self.count(),
            Step::Grew(name) => self.grew(name),
            Step::Families(role, page) => self.families(*role, page),
            Step::Send(role, rank, body) => self.send_unrecorded(*role, *rank, body),
            Step::Log(role, log) => self.log(*role, *log),
            Step::Lawful(role) => self.lawful(*role, 0).map(drop),
            Step::Replay(role) => self.replay(*role),
            Step::Heard(role) => self.heard(*role),
            Step::Handshake(role) => self.handshake(*role),
        }
    }

    /// The engine of a role: the case's own, or one that cases share.
    fn engine(&mut self, role: Role) -> Result<Place, Stop> {
        match self.own.get(&role) {
            Some(own) => Ok(own.place.clone()),
            None => Ok(self.target.engine(self.case.setup, role)?),
        }
    }

    /// Sends a request and judges the exchange by the laws.
    fn send(&mut self, role: Role, request: &Request, label: &str) -> Result<Answer, Stop> {
        let place = self.engine(role)?;
        let answer =
            http::ask(&place.base, request).map_err(|error| format!("{label}: {error}"))?;
        self.judge(role, request, &answer, label);
        Ok(answer)
    }

    fn judge(&mut self, role: Role, request: &Request, answer: &Answer, label: &str) {
        let exchange = Exchange {
            request,
            answer,
            connected: role != Role::Aggregated,
        };
        self.checked += exchange::LAWS.len();
        self.break_laws(label, exchange::broken(&exchange));
        // The logs of engines that others use too are not looked at.
        if !self.case.salted {
            self.remember(role, request, answer);
        }
    }

    /// Remembers what the engine's event log must tell of.
    fn remember(&mut self, role: Role, request: &Request, answer: &Answer) {
        if answer.status != 200 {
            return;
        }
        let mut sequences = prompts_of(request);
        if sequences.is_empty() {
            let asked = fresh::tokenize_body(request);
            let tokens = asked.and_then(|body| self.tokenized(role, body).ok());
            sequences.extend(tokens.filter(|tokens| !tokens.is_empty()));
        }
        let generated = answer.tokens().unwrap_or_default();
        for (sequence, mut generated) in sequences.iter_mut().zip(generated) {
            // Nothing was computed from the last one.
            generated.pop();
            sequence.extend(generated);
        }
        self.sequences.entry(role).or_default().extend(sequences);
    }

    /// Adds what was found about something.
    fn add(&mut self, label: &str, differences: Vec<Difference>) {
        let differences = differences.into_iter();
        self.found
            .extend(differences.map(|difference| difference.of(label)));
    }

    fn break_laws(&mut self, label: &str, broken: Vec<laws::Broken>) {
        let broken = broken.into_iter();
        let told = broken.map(|(law, what)| Difference::new(format!("law: {law}"), what));
        self.add(label, told.collect());
    }

    fn ask(&mut self, name: &str) -> Result<(), Stop> {
        let recording = recording::named(name);
        let role = role_of(recording.source);
        self.history(role, recording)?;
        let request = self.fresh.request(recording);
        self.seen.insert((role, prompt_key(&request)));
        let seen = self.send(role, &request, name)?;
        self.compare(role, recording, &request, seen)
    }

    /// Compares an answer with the recorded one, and with those before it.
    fn compare(
        &mut self,
        role: Role,
        recording: &'static Recording,
        request: &Request,
        seen: Answer,
    ) -> Result<(), Stop> {
        let circumstances = self.circumstances(role)?;
        let mut expected = self.fresh.expected(recording);
        if circumstances.contains(&When::OtherTokenizer) {
            self.recount(role, request, &mut expected)?;
        }
        self.checked += 1;
        let differences = shape::answers(&expected, &seen, &circumstances);
        self.add(&recording.name, differences);
        if let Some(ticket) = seen.ticket() {
            self.fresh.ticket = ticket.clone();
        }
        self.relate(recording, &seen);
        self.asked.push((recording, seen));
        Ok(())
    }

    /// The recording says that so much of the prompt was cached, so it is sent once before, unless it was already.
    fn history(&mut self, role: Role, recording: &'static Recording) -> Result<(), Stop> {
        let cached = recording.cached_tokens().unwrap_or_default();
        // What a decode leg tells is what its prefill had cached.
        let decodes = recording.asked("kv_transfer_params")["do_remote_prefill"] == true;
        let known = (role, prompt_key(&self.fresh.request(recording)));
        if cached == 0 || decodes || !self.case.salted || self.seen.contains(&known) {
            return Ok(());
        }
        let cached = usize::try_from(cached).unwrap_or_default();
        self.before(role, recording, Part::First(cached))
    }

    fn before(&mut self, role: Role, recording: &Recording, part: Part) -> Result<(), Stop> {
        let request = tickets::plain(&self.fresh, recording, part);
        self.seen.insert((role, prompt_key(&request)));
        if part != Part::Whole {
            self.seen
                .insert((role, prompt_key(&self.fresh.request(recording))));
        }
        let answer = self.send(role, &request, "history")?;
        expect_ok("history", &answer)
    }

    fn circumstances(&mut self, role: Role) -> Result<Vec<When>, Stop> {
        let mut circumstances = Vec::new();
        if self.target.is_given(self.case.setup, role) && !self.own.contains_key(&role) {
            circumstances.push(When::OtherFlags);
        }
        if self.case.grammar {
            circumstances.push(When::Grammar);
        }
        let (text, ids) = TOKENIZED;
        let body = json!({"model": self.fresh.model, "prompt": text});
        if self.tokenized(role, body)? != ids {
            circumstances.push(When::OtherTokenizer);
        }
        Ok(circumstances)
    }

    fn tokenized(&mut self, role: Role, body: Value) -> Result<Vec<u64>, Stop> {
        let place = self.engine(role)?;
        let Ok(answer) = http::ask(&place.base, &Request::post("/tokenize", body)) else {
            // An engine that has just died cannot say, and its last answer has no count in it.
            return Ok(TOKENIZED.1.to_vec());
        };
        let tokens = answer.json().map(|document| &document["tokens"]);
        let tokens = tokens.and_then(Value::as_array).into_iter().flatten();
        Ok(tokens.filter_map(Value::as_u64).collect())
    }

    /// Expects the counts of the target's own tokenizer.
    fn recount(
        &mut self,
        role: Role,
        request: &Request,
        expected: &mut Answer,
    ) -> Result<(), Stop> {
        let Some(body) = fresh::tokenize_body(request) else {
            return Ok(());
        };
        let mut tokens = self.tokenized(role, body)?.len() as u64;
        let limit = request
            .body
            .as_ref()
            .map(|body| &body["truncate_prompt_tokens"]);
        if let Some(limit) = limit.and_then(Value::as_u64) {
            tokens = tokens.min(limit);
        }
        fresh::expect_prompt_of(tokens, expected);
        Ok(())
    }

    fn send_unrecorded(&mut self, role: Role, rank: Option<u64>, body: &Value) -> Result<(), Stop> {
        let mut body = body.clone();
        body["model"] = self.fresh.model.as_str().into();
        let mut request = Request::post("/v1/completions", body);
        let rank = rank.map(|rank| ("X-data-parallel-rank".to_owned(), rank.to_string()));
        request.headers.extend(rank);
        let answer = self.send(role, &request, "unrecorded")?;
        expect_ok("unrecorded", &answer)
    }
}

fn expect_ok(label: &str, answer: &Answer) -> Result<(), Stop> {
    if answer.status == 200 {
        return Ok(());
    }
    Err(Stop::Fail(format!(
        "{label}: status {}: {:?}",
        answer.status, answer.body
    )))
}

/// The engine that a recording is sent to.
fn role_of(source: Source) -> Role {
    match source {
        Source::Prefill => Role::Prefill,
        Source::Decode => Role::Decode,
        Source::Aggregated | Source::Dp | Source::Oot => Role::Aggregated,
    }
}

/// A salt that no other run of a case has.
fn salt(case: &str) -> String {
    format!("{case}-{}", baton_daemon::fresh::hex_id())
}

/// The prompts of token ids.
fn prompts_of(request: &Request) -> Vec<Vec<u64>> {
    let prompt = request.body.as_ref().map(|body| &body["prompt"]);
    let ids = |value: &Value| -> Option<Vec<u64>> {
        value.as_array()?.iter().map(Value::as_u64).collect()
    };
    let several = || prompt?.as_array()?.iter().map(ids).collect();
    let one = prompt.and_then(ids).map(|prompt| vec![prompt]);
    one.or_else(several).unwrap_or_default()
}

/// What makes two prompts the same to a cache.
fn prompt_key(request: &Request) -> String {
    let body = request.body.as_ref();
    let keys = ["model", "prompt", "messages", "cache_salt"];
    let parts = keys.map(|key| body.map_or(Value::Null, |body| body[key].clone()));
    Value::from(parts.to_vec()).to_string()
}
