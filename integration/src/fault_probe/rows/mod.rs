//! What is done to whom, row by row, and what must hold after each.

mod crowd;
mod decode;
mod lease;
mod left;
mod prefill;
mod router;

use anyhow::Result;

use super::scene::Scene;
use super::stand::Parts;
use crate::real::report::Report;

/// Something that happens in the middle of a handoff.
pub struct Row {
    /// What it is called.
    pub name: &'static str,
    /// Part of the short cut.
    pub smoke: bool,
    run: fn(&mut Scene<'_>) -> Result<()>,
}

/// All rows, in an order in which few engines have to boot again: the last ones leave dead engines behind.
pub const ROWS: &[Row] = &[
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
pub fn count(whole: bool) -> u64 {
    ROWS.iter().filter(|row| whole || row.smoke).count() as u64
}

/// Boots a stand and runs the rows. One that cannot be run to its end is reported, and the rest goes on if it can.
pub fn run(parts: Parts, only: &[String], seed: u64, report: &Report) -> Result<()> {
    let whole = parts.whole;
    let mut scene = Scene::boot(parts, seed, report)?;
    let wanted = |row: &&Row| match only {
        [] => whole || row.smoke,
        parts => parts.iter().any(|part| row.name.contains(part.as_str())),
    };
    for row in ROWS.iter().filter(wanted) {
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
