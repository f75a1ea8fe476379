//! What is done to whom, row by row, and what must hold after each.

mod crowd;
mod decode;
mod lease;
mod left;
mod prefill;
mod rooms;
mod router;

use anyhow::Result;

use super::scene::Scene;
use super::stand::Parts;
use crate::real::engine::Kind;
use crate::real::report::Report;

/// Something that happens in the middle of a handoff.
pub struct Row {
    /// What it is called.
    pub name: &'static str,
    /// Part of the short cut.
    pub smoke: bool,
    run: fn(&mut Scene<'_>) -> Result<()>,
}

/// All rows of an engine, in an order in which few have to boot again: the last ones leave dead engines behind.
const fn rows(kind: Kind) -> &'static [Row] {
    match kind {
        Kind::Vllm => VLLM,
        Kind::Sglang => SGLANG,
    }
}

const VLLM: &[Row] = &[
    row("no fault", left::nobody),
    row(
        "client gone while its prompt is computed",
        left::while_computing,
    ),
    row("client gone right after the ticket", left::after_the_ticket),
    row(
        "client gone while decode waits for its KV",
        left::while_fetching,
    )
    .in_smoke(),
    row("client gone in the answer", left::in_the_answer),
    row("decode frozen for longer than the lease", decode::frozen).in_smoke(),
    row(
        "prefill frozen while it computes",
        prefill::frozen_computing,
    ),
    row("prefill frozen between the legs", prefill::frozen_between),
    row(
        "prefill's sidecar killed with an answer unread",
        prefill::sidecar_killed,
    )
    .in_smoke(),
    row("lease run out, blocks given to others", lease::run_out),
    row("router killed while tickets are claimed", router::killed),
    row("decode saturated, prefill pool full", crowd::crowd),
    row(
        "decode killed before its first token",
        decode::killed_before,
    ),
    row("decode killed in the answer", decode::killed_in_answer),
    row("prefill killed between the legs", prefill::killed).in_smoke(),
    row(
        "prefill restarted under its engine id between the legs",
        prefill::reborn,
    ),
];

const SGLANG: &[Row] = &[
    row("no fault", left::nobody),
    row("client gone before a leg is done", rooms::left_early),
    row("client gone while decode stands still", rooms::left_late),
    row("client gone in the answer", left::in_the_answer),
    row("prompt that prefill refuses alone", rooms::prefill_refuses).in_smoke(),
    row("prompt that decode refuses alone", rooms::decode_refuses),
    row("more requests than decode has places for", rooms::crowd),
    row("decode frozen", decode::frozen),
    row(
        "prefill frozen while it computes",
        prefill::frozen_computing,
    ),
    row("prefill frozen between the legs", prefill::frozen_between),
    row("prefill not where its sidecar says", rooms::nobody_there),
    row(
        "prefill's sidecar killed between the legs",
        rooms::sidecar_killed,
    ),
    row("router killed while tickets are claimed", router::killed),
    row(
        "decode killed before its first token",
        decode::killed_before,
    ),
    row("decode killed in the answer", decode::killed_in_answer),
    row(
        "prefill killed in the answer",
        rooms::prefill_killed_in_answer,
    ),
    row("prefill killed between the legs", prefill::killed).in_smoke(),
];

const fn row(name: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Row {
    Row {
        name,
        smoke: false,
        run,
    }
}

impl Row {
    const fn in_smoke(mut self) -> Self {
        self.smoke = true;
        self
    }
}

/// How many rows there are.
pub fn count(kind: Kind, whole: bool) -> u64 {
    rows(kind).iter().filter(|row| whole || row.smoke).count() as u64
}

/// Boots a stand and runs the rows. One that cannot be run to its end is reported, and the rest goes on if it can.
pub fn run(parts: Parts, only: &[String], seed: u64, report: &Report) -> Result<()> {
    let (kind, whole) = (parts.kind, parts.whole);
    let mut scene = Scene::boot(parts, seed, report)?;
    let wanted = |row: &&Row| match only {
        [] => whole || row.smoke,
        parts => parts.iter().any(|part| row.name.contains(part.as_str())),
    };
    for row in rows(kind).iter().filter(wanted) {
        let ran = scene.enter(row.name).and_then(|()| (row.run)(&mut scene));
        if let Err(error) = ran {
            scene.check("runs to its end", false, &format!("{error:#}"));
            scene.stand.thaw_all()?;
            scene.stand.check_running()?;
        }
        report.request();
    }
    Ok(())
}
