//! Flags of `baton-router`.

use std::net::SocketAddr;
use std::time::Duration;

use baton_daemon::config::Common;
use baton_daemon::run::Arguments;

/// The router: one OpenAI-compatible address in front of all workers.
///
/// Workers are not listed here: their sidecars register themselves (`--router http://THIS:8000` there), with the same
/// BATON_TOKEN. Clients use http://THIS:8000/v1; operators look at /fleet, /metrics, /livez, /readyz and POST /v1/plan.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "baton-router", version, verbatim_doc_comment)]
pub struct RouterArgs {
    /// Where clients and sidecars reach the router.
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "BATON_LISTEN",
        default_value = "127.0.0.1:8000"
    )]
    pub listen: SocketAddr,
    /// Key that clients must present as a bearer token; repeat or separate with commas. Without any, clients need none.
    #[arg(
        long,
        value_name = "KEY",
        env = "BATON_API_KEYS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub api_key: Vec<String>,
    /// Which plans are made: the cheaper of both, or one kind only. What cannot be split is local even with `split`, and
    /// a request whose split failed twice is served locally.
    #[arg(long, value_name = "KIND", env = "BATON_FORCE", default_value = "auto")]
    pub force: Force,
    /// Longest time from a request's arrival to its first token, or to the whole answer if not streamed, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_REQUEST_TIMEOUT_S",
        default_value_t = 600
    )]
    pub request_timeout_s: u64,
    /// Longest silence inside a stream, in seconds, before it is given up.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_STALL_S",
        default_value_t = 75
    )]
    pub stall_s: u64,
    /// Longest time a client may take to send a request's head or its body, stay idle, or read nothing of its answer, in
    /// seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_CLIENT_TIMEOUT_S",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub client_timeout_s: u64,
    /// Most requests at a time; beyond it the answer is 503.
    #[arg(
        long,
        value_name = "N",
        env = "BATON_MAX_REQUESTS",
        default_value_t = 8192
    )]
    pub max_requests: usize,
    /// Largest request body, in MiB.
    #[arg(
        long,
        value_name = "MIB",
        env = "BATON_MAX_BODY_MIB",
        default_value_t = 32
    )]
    pub max_body_mib: usize,
    /// Longest time for open requests to finish when asked to stop, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_DRAIN_S",
        default_value_t = 120
    )]
    pub drain_s: u64,
    /// How long a worker whose KV events are missing or uncertain is believed to hold the prompts that it computed, in
    /// seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_APPROXIMATE_TTL_S",
        default_value_t = 120
    )]
    pub approximate_ttl_s: u64,
    /// Configuration file and logs.
    #[command(flatten)]
    pub common: Common,
}

/// Which plans are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Force {
    /// The cheaper one.
    Auto,
    /// Prefill and decode on different workers, wherever that is possible at all.
    Split,
    /// One worker for everything.
    Local,
}

impl Arguments for RouterArgs {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl RouterArgs {
    /// Longest time to the first token.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.request_timeout_s)
    }

    /// Longest time a client may keep its connection waiting.
    pub fn client_timeout(&self) -> Duration {
        Duration::from_secs(self.client_timeout_s)
    }

    /// Longest silence inside a stream.
    pub fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_s)
    }

    /// How long a prompt that was computed counts where no events tell. At most a day: nobody's cache is that patient.
    pub fn approximate_ttl(&self) -> Duration {
        Duration::from_secs(self.approximate_ttl_s.min(24 * 3600))
    }

    /// Largest request body in bytes.
    pub fn max_body(&self) -> usize {
        self.max_body_mib << 20
    }
}
