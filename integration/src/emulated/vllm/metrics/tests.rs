//! Against the recorded pages, and as a sidecar reads it.

use std::collections::BTreeSet;

use baton_sidecar_vllm::metrics_page::MetricsPage;

use super::*;

const AGGREGATED: &str = include_str!("../../../../recordings/vllm/metrics_agg.txt");
const PREFILL: &str = include_str!("../../../../recordings/vllm/metrics_prefill.txt");

fn engine(connector: Connector) -> Engine {
    Engine {
        model_name: "tiny".to_owned(),
        connector,
        cache: CacheConfig {
            block_size: 32,
            num_gpu_blocks: 256,
            num_gpu_blocks_override: Some(256),
            max_model_len: 1024,
            hash_algo: "sha256".to_owned(),
            prefix_caching: true,
        },
        started: 1_796_006_723.86,
    }
}

/// What the recorded decode engine had counted.
fn recorded_counts() -> MetricsSnapshot {
    MetricsSnapshot {
        prefix_cache: Lookups {
            queries: 11_670,
            hits: 256,
        },
        external_prefix_cache: Lookups {
            queries: 11_414,
            hits: 11_092,
        },
        prompt_tokens: PromptTokens {
            local_compute: 322,
            local_cache_hit: 128,
            external_kv_transfer: 10_770,
        },
        ..MetricsSnapshot::default()
    }
}

/// Type lines, and names of samples with the names of their labels.
fn shape(page: &str) -> BTreeSet<String> {
    let of_sample = |line: &str| {
        let (sample, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let labels = labels
            .split("\",")
            .filter_map(|label| label.split_once('='));
        let labels: Vec<&str> = labels.map(|(label, _)| label).collect();
        format!("{name}{labels:?}")
    };
    let of_line = |line: &str| {
        if line.starts_with('#') {
            line.to_owned()
        } else {
            of_sample(line)
        }
    };
    page.lines().map(of_line).collect()
}

#[test]
fn families_types_and_labels_are_the_recorded_ones() {
    for (connector, recorded) in [
        (Connector::Absent, AGGREGATED),
        (Connector::Producer, PREFILL),
        (Connector::Consumer, skeleton::RECORDED),
    ] {
        let page = render(&engine(connector), &[MetricsSnapshot::default()]);
        assert_eq!(shape(&page), shape(recorded), "{connector:?}");
    }
}

#[test]
fn lines_with_the_recorded_counts_are_the_recorded_lines() {
    let page = render(&engine(Connector::Consumer), &[recorded_counts()]);
    let said = |line: &&str| {
        let families = [
            "vllm:prefix_cache_",
            "vllm:external_prefix_cache_",
            "vllm:prompt_tokens_",
            "vllm:num_requests_",
            "vllm:cache_config_info",
            "vllm:engine_sleep_state",
            "python_info",
        ];
        let of_family = families.iter().any(|family| line.starts_with(family));
        of_family && !line.contains("_created")
    };
    let recorded: Vec<&str> = skeleton::RECORDED.lines().filter(said).collect();
    assert_eq!(page.lines().filter(said).collect::<Vec<_>>(), recorded);
    assert_eq!(recorded.len(), 26);
}

/// A snapshot in which no two counts are equal.
fn busy() -> MetricsSnapshot {
    let mut snapshot = MetricsSnapshot {
        running: 3,
        waiting: Waiting {
            capacity: 4,
            deferred: 5,
        },
        kv_fetch: KvFetch {
            waiting_to_start: 6,
            in_progress: 7,
            completed_waiting: 8,
        },
        kv_cache_usage: 0.25,
        generation_tokens: 9,
        finished: Finished {
            stop: 10,
            length: 11,
            abort: 12,
            error: 13,
            repetition: 14,
        },
        preemptions: 15,
        nixl: NixlCounters {
            failed_transfers: 16,
            failed_notifications: 17,
            kv_expired_reqs: 18,
            notifications_after_expiry: 19,
        },
        ..recorded_counts()
    };
    for seconds in [0.001, 0.03, 5000.0] {
        snapshot
            .observed
            .observe(Histogram::TimeToFirstTokenSeconds, seconds);
    }
    snapshot.observed.observe(Histogram::NixlBytes, 81_920.0);
    snapshot
}

#[test]
fn every_modelled_count_has_its_sample() {
    let page = render(&engine(Connector::Consumer), &[busy()]);
    let rank = r#"engine="0","#;
    let model = r#"model_name="tiny""#;
    for (name, more, value) in [
        ("num_requests_running", "", "3.0"),
        ("num_requests_waiting", "", "9.0"),
        (
            "num_requests_waiting_by_reason",
            r#",reason="deferred""#,
            "5.0",
        ),
        (
            "num_requests_kv_fetch_by_stage",
            r#",stage="in_progress""#,
            "7.0",
        ),
        (
            "num_requests_kv_fetch_by_stage",
            r#",stage="completed_waiting""#,
            "8.0",
        ),
        ("kv_cache_usage_perc", "", "0.25"),
        ("generation_tokens_total", "", "9.0"),
        ("num_preemptions_total", "", "15.0"),
        ("nixl_num_failed_transfers_total", "", "16.0"),
        ("nixl_num_failed_notifications_total", "", "17.0"),
        ("nixl_num_kv_expired_reqs_total", "", "18.0"),
        ("nixl_num_notifications_after_expiry_total", "", "19.0"),
        ("nixl_bytes_transferred_sum", "", "81920.0"),
        ("time_to_first_token_seconds_count", "", "3.0"),
        ("time_to_first_token_seconds_sum", "", "5000.031"),
    ] {
        let line = format!("vllm:{name}{{{rank}{model}{more}}} {value}\n");
        assert!(page.contains(&line), "no {line}");
    }
    for (reason, value) in [
        ("stop", 10),
        ("length", 11),
        ("abort", 12),
        ("error", 13),
        ("repetition", 14),
    ] {
        let labels = format!(r#"{rank}finished_reason="{reason}",{model}"#);
        let line = format!("vllm:request_success_total{{{labels}}} {value}.0\n");
        assert!(page.contains(&line), "no {line}");
    }
    for (le, below) in [
        ("0.001", 1),
        ("0.02", 1),
        ("0.04", 2),
        ("2560.0", 2),
        ("+Inf", 3),
    ] {
        let labels = format!(r#"{rank}le="{le}",{model}"#);
        let line = format!("vllm:time_to_first_token_seconds_bucket{{{labels}}} {below}.0\n");
        assert!(page.contains(&line), "no {line}");
    }
}

#[test]
fn a_sidecar_reads_every_rank() {
    let engine = Engine {
        model_name: r#"an "odd" one"#.to_owned(),
        ..engine(Connector::Producer)
    };
    let text = render(&engine, &[busy(), busy()]);
    let page = MetricsPage::parse(&text);
    assert_eq!(page.sum("process_start_time_seconds"), Some(engine.started));
    assert_eq!(page.sum("vllm:num_requests_running"), Some(6.0));
    assert_eq!(page.distinct("vllm:num_requests_running", "engine"), 2);
    assert_eq!(page.distinct("vllm:cache_config_info", "engine"), 2);
    assert_eq!(
        page.label("vllm:cache_config_info", "block_size"),
        Some("32")
    );
    assert_eq!(
        page.label("vllm:cache_config_info", "kv_cache_size_tokens"),
        Some("8192")
    );
    assert!(page.has_family("vllm:nixl_"));
    let samples = text
        .lines()
        .filter(|line| line.starts_with("vllm:num_requests_running"));
    assert_eq!(samples.count(), 2);
}

#[test]
fn every_histogram_has_its_family() {
    let mut snapshot = MetricsSnapshot::default();
    let all = skeleton::families()
        .iter()
        .filter(|family| family.is_histogram());
    let all: BTreeSet<&str> = all
        .map(|family| family.name)
        .filter(|name| name.starts_with("vllm:"))
        .collect();
    let mut known = BTreeSet::new();
    for histogram in Histogram::ALL {
        snapshot.observed.observe(histogram, 1.0);
        known.insert(histogram.family());
    }
    assert_eq!(known, all);
    let page = render(&engine(Connector::Consumer), &[snapshot]);
    for family in known {
        let line = format!("{family}_count{{engine=\"0\",model_name=\"tiny\"}} 1.0\n");
        assert!(page.contains(&line), "no {line}");
    }
}

#[test]
fn floats_are_written_as_the_python_client_does() {
    for (value, written) in [
        (0.0, "0.0"),
        (21_133.0, "21133.0"),
        (999_999.5, "999999.5"),
        (8_388_608.0, "8.388608e+06"),
        (10_000_000.0, "1e+07"),
        (1_796_006_723.86, "1.79600672386e+09"),
        (0.035_294_117_647_058_81, "0.03529411764705881"),
    ] {
        assert_eq!(float(value), written);
    }
}
