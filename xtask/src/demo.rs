//! `demo`: emulated engines under a mixed load, or one pair of real ones and a handful of streamed chats.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::client::{self, Chat};
use crate::cluster::{Cluster, DECODE_0, PREFILL_0, ROUTER};
use crate::engines::{self, MODEL};
use crate::system::{self, Missing, Need};
use crate::{DemoArgs, DemoEngine, EngineKind, namespace, workspace};

/// The demo of emulated engines; a part of the integration crate.
const EMULATED: &str = "baton-demo";

/// Where logs go below target/.
const LOGS: &str = "demo";

/// Builds what is needed, and shows it.
pub(crate) fn run(args: &DemoArgs, missing: Missing) -> Result<()> {
    let shown = match args.engine {
        DemoEngine::Vllm => None,
        DemoEngine::Emulated => Some("vllm"),
        DemoEngine::Sglang => Some("sglang"),
        DemoEngine::Trtllm => Some("trtllm"),
        DemoEngine::Mixed => Some("mixed"),
    };
    if let Some(engines) = shown {
        return emulated(args, engines, missing);
    }
    if args.requests.is_some() || args.seed.is_some() {
        bail!("--requests and --seed are for emulated engines");
    }
    if namespace::is_inside() {
        namespace::prepare()?;
        return run_inside(args);
    }
    system::ensure_present(&[Need::Libclang, Need::Ip, Need::Namespaces], missing)?;
    engines::install(EngineKind::Vllm, missing)?;
    workspace::build_release()?;
    namespace::enter()
}

/// Becomes the demo, so that a Ctrl-C reaches it and nobody else.
fn emulated(args: &DemoArgs, engines: &str, missing: Missing) -> Result<()> {
    system::ensure_present(&system::BUILD, missing)?;
    workspace::build_release()?;
    let logs = workspace::logs_directory(args.keep_logs.as_deref(), LOGS)?;
    let mut command = Command::new(workspace::release_binary(EMULATED));
    command.args(["--engines", engines, "--logs"]).arg(logs);
    let requests = args.requests.map(|requests| requests.to_string());
    let seed = args.seed.map(|seed| seed.to_string());
    for (flag, value) in [("--requests", requests), ("--seed", seed)] {
        command.args(value.iter().flat_map(|value| [flag, value]));
    }
    Err(command.exec()).context("could not start the demo")
}

fn run_inside(args: &DemoArgs) -> Result<()> {
    let logs = workspace::logs_directory(args.keep_logs.as_deref(), LOGS)?;
    let mut cluster = Cluster::new(engines::installed(EngineKind::Vllm)?, &logs);
    // On idle engines of one machine moving KV never pays, and the router would rightly move none.
    cluster.start_router("split")?;
    cluster.launch(&PREFILL_0, 9101)?;
    cluster.launch(&DECODE_0, 9102)?;
    cluster.wait_until_ready(&[PREFILL_0, DECODE_0])?;
    let script = engines::client("demo.py");
    let arguments = ["--router", ROUTER, "--model", MODEL].map(str::to_owned);
    let outcome = client::run("streamed chats", &cluster.python(), &script, &arguments)?;
    print_table(&outcome.chats);
    println!(
        "Every prompt was split, by --force split; without it the router moves KV only where that is faster."
    );
    ensure!(
        outcome.chats.iter().all(|chat| chat.error.is_none()),
        "a chat failed; logs are in {}",
        logs.display()
    );
    Ok(())
}

fn print_table(chats: &[Chat]) {
    let header = [
        "prompt",
        "tokens in/out",
        "plan",
        "KV moved",
        "TTFT",
        "total",
    ]
    .map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header)
        .chain(chats.iter().map(row))
        .collect();
    let widths: [usize; 6] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    for row in &rows {
        let cells: Vec<_> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
}

fn row(chat: &Chat) -> [String; 6] {
    let count = |tokens: Option<u64>| tokens.map_or("-".to_owned(), |tokens| tokens.to_string());
    let milliseconds =
        |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.0} ms"));
    [
        format!("{}...", chat.prompt.trim()),
        format!(
            "{}/{}",
            count(chat.prompt_tokens),
            count(chat.completion_tokens)
        ),
        chat.error.clone().unwrap_or_else(|| chat.plan.clone()),
        chat.kv_bytes
            .map_or("-".to_owned(), |bytes| format!("{} KiB", bytes / 1024)),
        milliseconds(chat.ttft_ms),
        milliseconds(chat.total_ms),
    ]
}
