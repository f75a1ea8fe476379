//! Prefills that were not recorded themselves, and what is done to their tickets.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Runner, Stop, expect_ok, role_of};
use crate::conformance::cases::{Part, TicketChange};
use crate::conformance::fresh::Fresh;
use crate::conformance::http::{self, Request};
use crate::conformance::metrics::Page;
use crate::conformance::recording::{self, Recording};
use crate::conformance::target::Role;
use crate::ports;

/// Block ids that no engine has.
const FAR: u64 = 1_000_000;

/// Tokens of a prompt that overwrites others, which fit into every recorded context.
const FILLING: u64 = 1000;

/// A call that comes too late has interrupted nothing; then it is tried again, so often.
const INTERRUPTS: usize = 8;

/// A prefill lease of two seconds has ended by then.
const LEASE_BOUND: Duration = Duration::from_secs(30);

/// A first token that is whole text is found within so many prompts.
const LEARNT_WITHIN: u64 = 64;

/// A plain request for one token with the prompt of a recorded one, or with a part of it.
pub(super) fn plain(fresh: &Fresh, recording: &Recording, part: Part) -> Request {
    let recorded = fresh.request(recording);
    let asked = recorded.body.unwrap_or_default();
    let mut body = json!({"max_tokens": 1, "temperature": 0, "return_token_ids": true});
    let kept = [
        "model",
        "prompt",
        "messages",
        "cache_salt",
        "add_generation_prompt",
        "continue_final_message",
        "tools",
        "truncate_prompt_tokens",
    ];
    for key in kept {
        if let Some(value) = asked.get(key) {
            body[key] = value.clone();
        }
    }
    // Tokens in, tokens out is asked for in the ordinary way: the cache is the same.
    if let Some(ids) = asked.get("token_ids") {
        body["prompt"] = ids.clone();
    }
    if let Some(ids) = body.get_mut("prompt").and_then(Value::as_array_mut) {
        cut(ids, part);
    }
    let chat = body.get("messages").is_some();
    let path = if chat {
        "/v1/chat/completions"
    } else {
        "/v1/completions"
    };
    Request::post(path, body)
}

fn cut(ids: &mut Vec<Value>, part: Part) {
    let other = |id: u64| 50 + (id.saturating_sub(50) + 7) % 900;
    match part {
        Part::Whole => {}
        Part::First(tokens) => ids.truncate(tokens),
        Part::Longer(tokens) => {
            let more = (ids.len()..tokens).map(|at| Value::from(other(at as u64 * 3)));
            ids.extend(more.collect::<Vec<_>>());
        }
        Part::Other => {
            for id in ids {
                *id = other(id.as_u64().unwrap_or_default()).into();
            }
        }
    }
}

impl Runner<'_> {
    pub(super) fn prefill(&mut self, recording: &Recording, part: Part) -> Result<(), Stop> {
        let mut request = plain(&self.fresh, recording, part);
        if let Some(body) = &mut request.body {
            body["kv_transfer_params"] =
                json!({"do_remote_decode": true, "do_remote_prefill": false});
        }
        let answer = self.send(Role::Prefill, &request, "prefill")?;
        expect_ok("prefill", &answer)?;
        let ticket = answer
            .ticket()
            .ok_or_else(|| "prefill gave no ticket".to_owned())?;
        self.fresh.ticket = ticket.clone();
        Ok(())
    }

    pub(super) fn prefill_as(&mut self, id: &str, recording: &Recording) -> Result<(), Stop> {
        let own = self.name(id);
        let mut request = self.fresh.request(recording);
        request.headers.insert("X-Request-Id".to_owned(), own);
        let answer = self.send(Role::Prefill, &request, "prefill")?;
        expect_ok("prefill", &answer)?;
        let ticket = answer
            .ticket()
            .ok_or_else(|| "prefill gave no ticket".to_owned())?;
        self.fresh.ticket = ticket.clone();
        Ok(())
    }

    /// A fresh id in place of a recorded one, of the same length.
    fn name(&mut self, recorded: &str) -> String {
        let own: String = baton_daemon::fresh::hex_id()
            .chars()
            .take(recorded.len())
            .collect();
        self.fresh.ids.insert(recorded.to_owned(), own.clone());
        own
    }

    pub(super) fn change(&mut self, change: TicketChange) -> Result<(), Stop> {
        let ticket = &mut self.fresh.ticket;
        match change {
            TicketChange::Without(key) => {
                ticket.as_object_mut().and_then(|ticket| ticket.remove(key));
            }
            TicketChange::OutOfRange => {
                for id in ticket["remote_block_ids"][0]
                    .as_array_mut()
                    .into_iter()
                    .flatten()
                {
                    *id = (FAR + id.as_u64().unwrap_or_default()).into();
                }
            }
            TicketChange::TooFewBlocks => {
                let ids = ticket["remote_block_ids"][0].as_array_mut();
                ids.ok_or_else(|| "the ticket has no blocks".to_owned())?
                    .truncate(2);
            }
            TicketChange::UnknownRequest => {
                ticket["remote_request_id"] = "cmpl-does-not-exist".into();
            }
            TicketChange::WrongEngine => ticket["remote_engine_id"] = "someone-else".into(),
            TicketChange::DeadPort => {
                ticket["remote_engine_id"] = baton_daemon::fresh::hex_id().into();
                ticket["remote_port"] = ports::free().port().into();
            }
        }
        Ok(())
    }

    /// Finds a prompt whose answer begins with whole text, and takes that for what the recorded stops were.
    pub(super) fn learn(&mut self, recording: &Recording, text: &str, id: u64) -> Result<(), Stop> {
        for shift in 0..LEARNT_WITHIN {
            self.fresh.shift = shift;
            let mut request = plain(&self.fresh, recording, Part::Whole);
            if let Some(body) = &mut request.body {
                // The cache must not know the prompt afterwards.
                body["cache_salt"] = super::salt("learn").into();
            }
            let answer = self.send(Role::Aggregated, &request, "learn")?;
            let said = answer.texts().into_iter().next().unwrap_or_default();
            let first = answer
                .tokens()
                .and_then(|choices| choices.first()?.first().copied());
            let whole = !said.trim().is_empty() && !said.contains(char::REPLACEMENT_CHARACTER);
            if let Some(first) = first.filter(|_| whole) {
                let longer = json!(format!("{text}zz")).to_string();
                let stops = [
                    (json!(text).to_string(), json!(said)),
                    (longer, json!(format!("{said}zz"))),
                    (json!(id).to_string(), json!(first)),
                ];
                self.fresh.stops = stops.into();
                return Ok(());
            }
        }
        Err(Stop::Fail("no answer began with whole text".to_owned()))
    }

    /// Sends other prompts until each block has held something else.
    pub(super) fn overwrite(&mut self, role: Role) -> Result<(), Stop> {
        let place = self.engine(role)?;
        let page = Page::read(&http::page(&place.base, "/metrics")?);
        let blocks = page.label("vllm:cache_config_info", "num_gpu_blocks");
        let blocks: u64 = blocks
            .and_then(|blocks| blocks.parse().ok())
            .ok_or_else(|| "the metrics do not tell the number of blocks".to_owned())?;
        for number in 0..=blocks / (FILLING / super::laws::BLOCK_SIZE) {
            let prompt: Vec<u64> = (0..FILLING)
                .map(|at| 50 + (at * 7 + number) % 900)
                .collect();
            let body = json!({"model": self.fresh.model, "prompt": prompt, "max_tokens": 1,
                "cache_salt": super::salt("overwrite")});
            let answer = self.send(role, &Request::post("/v1/completions", body), "overwrite")?;
            expect_ok("overwrite", &answer)?;
        }
        Ok(())
    }

    pub(super) fn expires(&mut self) -> Result<(), Stop> {
        let place = self.engine(Role::Prefill)?;
        self.checked += 1;
        let expired = http::until("a prefill lease ends", LEASE_BOUND, || {
            let page = Page::read(&http::page(&place.base, "/metrics").ok()?);
            let expired = page.sum("vllm:nixl_num_kv_expired_reqs_total", &[]);
            (expired >= 1.0).then_some(())
        });
        Ok(expired?)
    }

    pub(super) fn interrupt(&mut self, prefill: &str, call: &str) -> Result<(), Stop> {
        let recorded = recording::named(prefill);
        let role = role_of(recorded.source);
        let place = self.engine(role)?;
        let id = recorded
            .headers
            .values()
            .next()
            .cloned()
            .unwrap_or_default();
        for attempt in 1..=INTERRUPTS {
            self.fresh.salt = Some(super::salt(prefill));
            self.name(&id);
            let request = self.fresh.request(recorded);
            let (answered, answer) = sync_channel(1);
            let (base, sent) = (place.base.clone(), request.clone());
            std::thread::spawn(move || answered.send(http::ask(&base, &sent)));
            let running = until_running(&place.base);
            self.ask(call)?;
            let answer = match answer.recv_timeout(http::PATIENCE) {
                Ok(answer) => answer?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(Stop::Fail(format!("{prefill} was never answered")));
                }
            };
            let late = reason(&answer) != reason(&recorded.answer) && attempt < INTERRUPTS;
            if running.is_ok() && !late {
                self.judge(role, &request, &answer, prefill);
                return self.compare(role, recorded, &request, answer);
            }
        }
        Err(Stop::Fail(format!("{prefill} was never seen running")))
    }
}

fn reason(answer: &crate::conformance::answer::Answer) -> Option<&Value> {
    Some(&answer.json()?["choices"][0]["finish_reason"])
}

/// Waits until the engine counts a running request.
fn until_running(base: &str) -> Result<(), String> {
    http::until("a request runs", Duration::from_secs(2), || {
        let page = Page::read(&http::page(base, "/metrics").ok()?);
        (page.sum("vllm:num_requests_running", &[]) >= 1.0).then_some(())
    })
}
