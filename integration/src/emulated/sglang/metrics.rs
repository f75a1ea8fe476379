//! `/metrics`: the families of the recorded page that somebody could want, by their names and labels.

use std::fmt::Write as _;

use super::super::core::Stats;
use super::super::process::Life;
use super::config::{Config, Mode};

/// The page's content type.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a family is, and which label sets it has.
#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    /// Of requests, by whether they were streamed: the emulated engine counts them as if none was.
    Counter,
}

/// The page of a life.
pub(super) fn page(config: &Config, life: &Life) -> String {
    let ranks: Vec<Stats> = life.ranks.iter().map(|rank| rank.core.stats()).collect();
    let mut page = String::new();
    for (name, kind, of) in FAMILIES {
        let word = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let _ = writeln!(page, "# HELP sglang:{name} {name}");
        let _ = writeln!(page, "# TYPE sglang:{name} {word}");
        for (rank, stats) in ranks.iter().enumerate() {
            let labels = labels(config, *kind, rank);
            let _ = writeln!(page, "sglang:{name}{{{labels}}} {:?}", of(config, stats));
        }
    }
    page
}

fn labels(config: &Config, kind: Kind, rank: usize) -> String {
    let engine = match config.mode {
        Mode::Null => "unified",
        mode => mode.name(),
    };
    let name = &config.served_model_name;
    let dp = match config.dp_size {
        1 => String::new(),
        _ => format!("dp_rank=\"{rank}\","),
    };
    match kind {
        Kind::Gauge => format!(
            "{dp}engine_type=\"{engine}\",model_name=\"{name}\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\""
        ),
        Kind::Counter => {
            format!("{dp}engine_type=\"{engine}\",is_streaming=\"false\",model_name=\"{name}\"")
        }
    }
}

type Family = (&'static str, Kind, fn(&Config, &Stats) -> f64);

const FAMILIES: &[Family] = &[
    ("max_total_num_tokens", Kind::Gauge, |config, _| {
        tokens(config, config.pages as usize)
    }),
    ("page_size", Kind::Gauge, |config, _| {
        f64::from(config.page_size)
    }),
    ("num_pages", Kind::Gauge, |config, _| {
        f64::from(config.pages)
    }),
    ("context_len", Kind::Gauge, |config, _| {
        count(config.context_length)
    }),
    ("num_running_reqs", Kind::Gauge, |_, stats| {
        count(stats.running)
    }),
    ("num_queue_reqs", Kind::Gauge, |_, stats| {
        count(stats.waiting)
    }),
    ("cache_hit_rate", Kind::Gauge, |_, stats| {
        part(stats.cache_hits, stats.cache_queries)
    }),
    ("token_usage", Kind::Gauge, |_, stats| {
        count(stats.blocks_used) / count(stats.blocks.max(1))
    }),
    ("num_used_tokens", Kind::Gauge, |config, stats| {
        tokens(config, stats.blocks_used)
    }),
    ("kv_used_tokens", Kind::Gauge, |config, stats| {
        tokens(config, stats.blocks_used)
    }),
    (
        "num_prefill_inflight_queue_reqs",
        Kind::Gauge,
        |config, stats| {
            count(if config.mode == Mode::Prefill {
                stats.waiting
            } else {
                0
            })
        },
    ),
    ("num_decode_transfer_queue_reqs", Kind::Gauge, |_, stats| {
        count(stats.fetching)
    }),
    ("prompt_tokens_total", Kind::Counter, |_, stats| {
        total(stats.prompt_tokens)
    }),
    ("generation_tokens_total", Kind::Counter, |_, stats| {
        total(stats.generated_tokens)
    }),
    ("num_requests_total", Kind::Counter, |_, stats| {
        total(stats.finished.values().sum())
    }),
];

fn tokens(config: &Config, pages: usize) -> f64 {
    count(pages) * f64::from(config.page_size)
}

fn count(count: usize) -> f64 {
    total(count as u64)
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn total(count: u64) -> f64 {
    count as f64
}

fn part(some: u64, of: u64) -> f64 {
    total(some) / total(of.max(1))
}
