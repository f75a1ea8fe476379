//! A report as a person reads it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};

use super::report::{
    Chain, Content, EventReport, Exchange, Handshakes, Http, RankReport, RankSummary, Report,
    Summary, View,
};

/// Gaps that are shown.
const SHOWN_GAPS: usize = 5;

pub(super) fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    match &report.content {
        Content::KvEvents(events) => {
            writeln!(out, "{}: KV events", report.file)?;
            event_report(out, events)?;
        }
        Content::ReplaySocket(socket) => {
            writeln!(out, "{}: exchanges with a replay socket", report.file)?;
            for each in &socket.exchanges {
                exchange(out, each)?;
            }
        }
        Content::Http(exchanges) => {
            writeln!(out, "{}: requests and answers", report.file)?;
            http(out, exchanges)?;
        }
        Content::Handshakes(all) => {
            writeln!(out, "{}: handshakes", report.file)?;
            handshakes(out, all)?;
        }
    }
    if report.damaged > 0 {
        row(
            out,
            "damaged",
            format!("{} could not be read", report.damaged),
        )?;
    }
    Ok(())
}

/// A line. What a recording says may hold anything, so nothing of it reaches a terminal that the terminal would obey.
fn row(out: &mut impl Write, name: &str, value: impl Display) -> io::Result<()> {
    let shown = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    let line = format!("  {name:<12} {value}");
    writeln!(out, "{}", line.chars().map(shown).collect::<String>())
}

fn event_report(out: &mut impl Write, report: &EventReport) -> io::Result<()> {
    summary(out, &report.summary)?;
    view(out, &report.view)
}

fn summary(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let span = match (summary.first_time, summary.last_time) {
        (Some(first), Some(last)) => format!(", {:.3} s from {first:.3}", last - first),
        _ => String::new(),
    };
    row(out, "messages", format!("{}{span}", summary.messages))?;
    row(
        out,
        "topics",
        counts(&summary.topics, |topic| format!("{topic:?}")),
    )?;
    for rank in &summary.ranks {
        row(out, &format!("rank {}", rank.rank), sequence(rank))?;
    }
    if summary.after_until > 0 {
        let later = number(summary.after_until, "later message");
        row(out, "not applied", later)?;
    }
    blocks(out, summary)?;
    let namespaces = summary.namespaces.iter();
    let namespaces =
        namespaces.map(|of| format!("{} {}", namespace(&of.lora, &of.salt), of.sequences));
    row(out, "sequences", list(namespaces))?;
    if !summary.counted.is_empty() {
        row(out, "decoder", named(&summary.counted))?;
    }
    Ok(())
}

fn blocks(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    row(out, "events", named(&summary.events))?;
    let (stored, tokens) = (summary.stored_blocks, summary.tokens);
    let removed = summary.removed_blocks;
    row(
        out,
        "blocks",
        format!("{stored} stored with {tokens} tokens, {removed} removed"),
    )?;
    let sizes = counts(&summary.block_sizes, |size| format!("{size} tokens"));
    row(out, "block size", sizes)?;
    row(out, "hashes", named(&summary.hash_forms))
}

fn sequence(rank: &RankSummary) -> String {
    let mut parts = vec![
        number(rank.messages, "message"),
        format!("sequence {} to {}", rank.first_seq, rank.last_seq),
    ];
    if rank.restarts > 0 {
        parts.push(format!(
            "{} of the engine",
            number(rank.restarts, "restart")
        ));
    }
    if rank.older > 0 {
        parts.push(number(rank.older, "older message"));
    }
    let gaps = rank.gaps.iter().take(SHOWN_GAPS);
    let gaps = list(gaps.map(|gap| format!("{} after {}", gap.missing, gap.after)));
    parts.push(match rank.gaps.len() {
        0 => "no gap".to_owned(),
        1..=SHOWN_GAPS => format!("{} missing ({gaps})", rank.missing),
        _ => format!("{} missing ({gaps}, …)", rank.missing),
    });
    parts.join(", ")
}

fn view(out: &mut impl Write, view: &View) -> io::Result<()> {
    let hint = if view.model.is_empty() {
        " (--model gives it a name)"
    } else {
        ""
    };
    writeln!(out, "view of a sidecar, model {:?}{hint}", view.model)?;
    if view.ranks.is_empty() {
        row(out, "holds", "nothing")?;
    }
    for rank in &view.ranks {
        rank_report(out, rank)?;
    }
    Ok(())
}

fn rank_report(out: &mut impl Write, rank: &RankReport) -> io::Result<()> {
    let certain = if rank.certain {
        "certain".to_owned()
    } else {
        format!("uncertain: {}", rank.doubts.join(", "))
    };
    row(out, &format!("rank {}", rank.rank), certain)?;
    for tier in &rank.tiers {
        let name = format!("  {:?}", tier.tier).to_lowercase();
        let held = number(tier.blocks, "block");
        row(out, &name, format!("{held}, digest {}", tier.digest))?;
    }
    if rank.tiers.is_empty() {
        row(out, "  holds", "nothing")?;
    }
    if rank.unconfirmed > 0 {
        let what = "from before something was lost";
        let blocks = number(rank.unconfirmed, "block");
        row(out, "  unconfirmed", format!("{blocks} {what}"))?;
    }
    if rank.unreachable > 0 {
        let what = "behind one that is not there";
        let blocks = number(rank.unreachable, "block");
        row(out, "  unreachable", format!("{blocks} {what}"))?;
    }
    if !rank.counted.is_empty() {
        row(out, "  counted", named(&rank.counted))?;
    }
    for (place, chain) in rank.longest_chains.iter().enumerate() {
        let name = if place == 0 { "  longest" } else { "" };
        row(out, name, chain_text(chain))?;
    }
    Ok(())
}

fn chain_text(chain: &Chain) -> String {
    let tokens: Vec<String> = chain.first_tokens.iter().map(u32::to_string).collect();
    let (blocks, of) = (chain.blocks, namespace(&chain.lora, &chain.salt));
    format!(
        "{}, {} tokens, {of}: {} …",
        number(blocks, "block"),
        chain.tokens,
        tokens.join(" ")
    )
}

fn exchange(out: &mut impl Write, exchange: &Exchange) -> io::Result<()> {
    writeln!(out, "exchange {:?}", exchange.label)?;
    let asked = exchange.asked_from.map_or_else(
        || "something else".to_owned(),
        |seq| format!("from {seq} on"),
    );
    let end = if exchange.ended {
        ", then the end marker"
    } else {
        ", no end marker"
    };
    row(out, "asked", asked)?;
    row(
        out,
        "answered",
        format!(
            "{}{end}",
            number(exchange.events.summary.messages, "message")
        ),
    )?;
    if exchange.strange > 0 {
        row(
            out,
            "strange",
            format!("{} answers that are none", exchange.strange),
        )?;
    }
    if exchange.events.summary.messages > 0 {
        event_report(out, &exchange.events)?;
    }
    Ok(())
}

fn http(out: &mut impl Write, http: &Http) -> io::Result<()> {
    row(out, "exchanges", http.exchanges)?;
    for route in &http.routes {
        let parts = [
            (route.with_transfer_params, "with kv_transfer_params"),
            (route.without_transfer_params, "without"),
            (
                route.asked_with_transfer_params,
                "asked with kv_transfer_params",
            ),
            (route.streams, "streams"),
            (route.errors, "with an error inside"),
        ];
        let parts = parts.into_iter().filter(|(number, _)| *number > 0);
        let parts = list(parts.map(|(number, what)| format!("{number} {what}")));
        row(
            out,
            &route.status.to_string(),
            format!("{} {}: {parts}", route.exchanges, route.path),
        )?;
    }
    row(
        out,
        "finished by",
        counts(&http.finish_reasons, Clone::clone),
    )
}

fn handshakes(out: &mut impl Write, all: &Handshakes) -> io::Result<()> {
    for engine in &all.engines {
        let shape = format!(
            "{} blocks of {} tokens, {} KV bytes a token",
            engine.blocks, engine.block_size, engine.bytes_per_token
        );
        row(
            out,
            &engine.name,
            format!(
                "engine {}, agent {}, {shape}",
                engine.engine_id, engine.agent
            ),
        )?;
    }
    for pair in &all.pairs {
        let verdict = match &pair.mismatch {
            None => "can hand over".to_owned(),
            Some(mismatch) => format!("cannot hand over: {mismatch}"),
        };
        row(
            out,
            "pair",
            format!("{} to {} {verdict}", pair.prefill, pair.decode),
        )?;
    }
    Ok(())
}

/// A number of things, in the singular if there is one.
fn number(of: u64, what: &str) -> String {
    let end = if of == 1 { "" } else { "s" };
    format!("{of} {what}{end}")
}

fn namespace(lora: &str, salt: &str) -> String {
    match (lora.is_empty(), salt.is_empty()) {
        (true, true) => "base".to_owned(),
        (false, true) => format!("LoRA {lora:?}"),
        (true, false) => format!("salt {salt:?}"),
        (false, false) => format!("LoRA {lora:?} with salt {salt:?}"),
    }
}

fn counts<K>(counts: &BTreeMap<K, u64>, name: impl Fn(&K) -> String) -> String {
    list(
        counts
            .iter()
            .map(|(key, count)| format!("{} {count}", name(key))),
    )
}

fn named(all: &BTreeMap<&'static str, u64>) -> String {
    counts(all, |name| (*name).to_owned())
}

fn list(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        return "none".to_owned();
    }
    parts.join(", ")
}
