//! Flags that the sidecars of all engines share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use baton_daemon::Exit;
use baton_daemon::config::Common;
use baton_daemon::http::base_url;
use baton_proto::WorkerId;

use crate::labels;

/// Flags that the sidecars of all engines share.
#[derive(Debug, Clone, clap::Args)]
pub struct CoreArgs {
    /// Name of this worker, unique in the fleet, the same after a restart.
    #[arg(
        long,
        value_name = "ID",
        env = "BATON_WORKER_ID",
        default_value = "worker-0"
    )]
    pub worker_id: WorkerId,
    /// Where routers reach this sidecar. Keep it on a private network: whoever holds the token can use the engine.
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "BATON_SIDECAR_LISTEN",
        default_value = "127.0.0.1:9100"
    )]
    pub listen: SocketAddr,
    /// Base URL that routers are told, if it differs from http://LISTEN.
    #[arg(long, value_name = "URL", env = "BATON_ADVERTISE")]
    pub advertise: Option<String>,
    /// Routers to register with, as base URLs; repeat the flag or separate with commas.
    #[arg(long, value_name = "URL", env = "BATON_ROUTERS", value_delimiter = ',')]
    pub router: Vec<String>,
    /// Topology label of this worker, such as `zone=a`; repeat or separate with commas.
    #[arg(long, value_name = "NAME=VALUE", env = "BATON_TOPOLOGY", value_delimiter = ',', value_parser = labels::label)]
    pub topology: Vec<(String, String)>,
    /// File of further labels, a line each: NAME=VALUE or NAME="VALUE", as Kubernetes mounts a pod's labels. It is read
    /// again when the engine restarts.
    #[arg(long, value_name = "FILE", env = "BATON_TOPOLOGY_FILE")]
    pub topology_file: Option<PathBuf>,
    /// Most legs in the engine at a time.
    #[arg(
        long,
        value_name = "N",
        env = "BATON_MAX_CONCURRENCY",
        default_value_t = 1024
    )]
    pub max_concurrency: usize,
    /// Most legs waiting to be admitted; beyond it the answer is 503.
    #[arg(
        long,
        value_name = "N",
        env = "BATON_MAX_QUEUE",
        default_value_t = 1024
    )]
    pub max_queue: usize,
    /// Largest request body, in MiB.
    #[arg(
        long,
        value_name = "MIB",
        env = "BATON_MAX_BODY_MIB",
        default_value_t = 32
    )]
    pub max_body_mib: usize,
    /// Longest silence of the engine inside a stream, in seconds, before the stream is given up.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_STALL_S",
        default_value_t = 60
    )]
    pub stall_s: u64,
    /// How long the engine may make no progress on what it was given before it is suspect, in seconds, at the least. The
    /// bound is learnt from its own silences and its own pace, each six times over.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_PROGRESS_FLOOR_S",
        default_value_t = 15,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    pub progress_floor_s: u64,
    /// Longest time for work to finish when asked to stop, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_DRAIN_S",
        default_value_t = 120
    )]
    pub drain_s: u64,
    /// Longest time for a launched engine to start, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_BOOT_S",
        default_value_t = 900
    )]
    pub boot_s: u64,
    /// Reset the engine's prefix cache when it is idle and not all that it holds is known. vLLM allows it with
    /// VLLM_SERVER_DEV_MODE=1.
    #[arg(long, env = "BATON_RESET_UNCERTAIN_CACHE")]
    pub reset_uncertain_cache: bool,
    /// Write what the engine says of its KV cache to this file, for baton-replay. The tokens of all prompts are in it.
    #[arg(long, value_name = "FILE", env = "BATON_RECORD")]
    pub record: Option<PathBuf>,
    /// Configuration file and logs.
    #[command(flatten)]
    pub common: Common,
}

impl CoreArgs {
    /// Base URL that routers are told.
    pub fn address(&self) -> String {
        self.advertise
            .clone()
            .unwrap_or_else(|| format!("http://{}", self.listen))
    }

    /// What cannot work, found before anything is started.
    pub fn check(&self) -> Result<(), Exit> {
        if self.listen.ip().is_unspecified() && self.advertise.is_none() && !self.router.is_empty()
        {
            let listen = self.listen;
            return Err(Exit::usage(format!(
                "routers cannot reach {listen}: say with --advertise http://HOST:PORT where they can"
            )));
        }
        if let Some(file) = &self.topology_file {
            labels::of_file(file).map_err(Exit::usage)?;
        }
        let urls = self.router.iter().chain(&self.advertise);
        let bad = urls.into_iter().find(|url| base_url(url).is_none());
        bad.map_or(Ok(()), |url| {
            Err(Exit::usage(format!(
                "{url:?} must look like http://10.0.0.1:8000"
            )))
        })
    }

    /// Labels by name. What flags say goes before what the file says.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let file = self.topology_file.as_deref();
        let file = file.map_or_else(|| Ok(BTreeMap::new()), labels::of_file);
        let mut labels = file.unwrap_or_else(|why| {
            tracing::warn!(%why, "labels are missing");
            BTreeMap::new()
        });
        labels.extend(self.topology.iter().cloned());
        labels
    }

    /// Largest request body in bytes.
    pub fn max_body(&self) -> usize {
        self.max_body_mib << 20
    }

    /// Longest silence inside a stream.
    pub fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_s)
    }

    /// How long the engine may always make no progress.
    pub fn progress_floor(&self) -> Duration {
        Duration::from_secs(self.progress_floor_s)
    }

    /// Longest time to finish.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }
}
