//! The inventory of metrics, written from the registries themselves: every family with its type, labels and help.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use baton_daemon::metrics::Registry;
use baton_proto::load::Transport;
use baton_proto::{Error, ErrorKind, Source, Stage};
use baton_router::metrics::Metrics as RouterMetrics;
use baton_router::prefill::Waste;
use baton_router::queue::REFUSED;
use baton_router::tokens::{ASKED, COMPARISONS, Known, PROMPTS};
use baton_router::view::Resync;
use baton_sidecar_core::metrics::{Metrics as SidecarMetrics, TicketEnd, TicketState};
use baton_sidecar_core::mirror::Mirror;
use baton_sidecar_core::mirror::oddity::Oddity as MirrorOddity;
use baton_sidecar_vllm::events::oddity::Oddity;

/// The inventory page.
pub fn inventory() -> String {
    let mut page = String::from(
        "# Telemetry\n\n\
         Written by `baton-integration` from the registries; do not edit. A test compares it, and\n\
         `BATON_BLESS_DOCS=1 cargo test -p baton-integration --test telemetry` writes it anew.\n\n\
         Both daemons serve these families as OpenMetrics text at `/metrics`. Counters are shown with their suffix `_total`.\n\
         Every label has a bounded set of values, listed below.\n",
    );
    let mut values = BTreeMap::new();
    for (title, registry) in [("Router", router()), ("Sidecar", sidecar())] {
        let families = families(&registry.page());
        let registered = format!("{registry:?}").matches("Descriptor {").count();
        assert_eq!(
            families.len(),
            registered,
            "a family of the {title} has no sample here: raise it in {}",
            file!()
        );
        section(&mut page, title, &families);
        for (label, seen) in families.into_iter().flat_map(|family| family.labels) {
            values
                .entry(label)
                .or_insert_with(BTreeSet::new)
                .extend(seen);
        }
    }
    page.push_str("\n## Labels\n\n| label | values |\n|---|---|\n");
    for (label, values) in values {
        let list: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        let _ = writeln!(page, "| `{label}` | {} |", list.join(" "));
    }
    page
}

struct Family {
    name: String,
    kind: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

fn section(page: &mut String, title: &str, families: &[Family]) {
    let _ = write!(
        page,
        "\n## {title}\n\n| family | type | labels | what |\n|---|---|---|---|\n"
    );
    for family in families {
        let suffix = if family.kind == "counter" {
            "_total"
        } else {
            ""
        };
        let labels: Vec<String> = family
            .labels
            .keys()
            .map(|label| format!("`{label}`"))
            .collect();
        let _ = writeln!(
            page,
            "| `{}{suffix}` | {} | {} | {} |",
            family.name,
            family.kind,
            labels.join(" "),
            family.help.trim_end_matches('.')
        );
    }
}

/// A router's registry in which every family has every sample it can have.
fn router() -> Registry {
    let (metrics, mut registry) = (RouterMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    for plan in ["local", "split", "none"] {
        metrics.request_ended(plan, None);
        for kind in ErrorKind::ALL {
            metrics.request_ended(plan, Some(*kind));
        }
    }
    for plan in ["local", "split"] {
        metrics.first_token(plan, 0.0);
    }
    for stage in Stage::ALL {
        for kind in ErrorKind::ALL {
            metrics.attempt_failed(&Error::new(*kind, Source::Engine, *stage, ""));
        }
    }
    for known in PROMPTS {
        metrics.prompt(known);
    }
    for outcome in COMPARISONS {
        metrics.parity(outcome);
    }
    for known in Known::ALL {
        metrics.prompt_known(known);
    }
    for outcome in ASKED {
        metrics.asked(outcome);
    }
    metrics.tokens_told(0.0);
    metrics.waited(0.0);
    for reason in REFUSED {
        metrics.refused(reason);
    }
    for granted in [true, false] {
        metrics.retry(granted);
    }
    for cause in Waste::ALL {
        metrics.wasted(cause, 0.0);
    }
    metrics.workers(&[]);
    metrics.views(&[], 0);
    for reason in Resync::ALL {
        metrics.resynchronised(reason);
    }
    registry
}

/// The same for a sidecar.
fn sidecar() -> Registry {
    let (metrics, mut registry) = (SidecarMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    for state in [
        TicketState::Running,
        TicketState::Claimed,
        TicketState::Leaving,
    ] {
        metrics.tickets.moved(None, Some(state));
    }
    for end in [
        TicketEnd::Settled,
        TicketEnd::Released,
        TicketEnd::Lapsed,
        TicketEnd::Voided,
    ] {
        metrics.tickets.ended(end);
    }
    for stage in [Stage::Prefill, Stage::Decode, Stage::Generate] {
        metrics.in_flight(stage);
        metrics.first_token(stage, 0.0);
        metrics.leg_ended(stage, None);
        for kind in ErrorKind::ALL {
            metrics.leg_ended(stage, Some(*kind));
        }
    }
    metrics.view.show(&Mirror::new("", None));
    for reason in MirrorOddity::ALL {
        metrics.view.odd(reason, 0);
    }
    for reason in Oddity::ALL {
        metrics.view.strange(reason.name(), 0);
    }
    for answered in [true, false] {
        metrics.view.replayed(answered);
    }
    metrics.transfers.transport(Some(Transport::Memory));
    registry
}

/// Families of an OpenMetrics page. A bucket's border is no label of ours.
fn families(page: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in page.lines() {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.push(Family {
                name: name.to_owned(),
                kind: String::new(),
                help: help.to_owned(),
                labels: BTreeMap::new(),
            });
        } else if let Some((_, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            let family = families.last_mut().expect("HELP comes before TYPE");
            kind.clone_into(&mut family.kind);
        } else if let Some((_, rest)) = line.split_once('{') {
            let labels = rest.split_once('}').map_or("", |(labels, _)| labels);
            let family = families.last_mut().expect("samples come after HELP");
            for (label, value) in labels.split(',').filter_map(|pair| pair.split_once('=')) {
                if label != "le" {
                    family
                        .labels
                        .entry(label.to_owned())
                        .or_default()
                        .insert(value.trim_matches('"').to_owned());
                }
            }
        }
    }
    families
}
