//! Flags of `baton-router`.

use std::net::SocketAddr;
use std::time::Duration;

use baton_daemon::config::Common;
use baton_daemon::run::Arguments;
use baton_planner::{Level, Policy, Topology};
use http::HeaderName;

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
    /// How workers are chosen: by predicted seconds, or, to compare, in turn, by load or by cached prefix alone.
    #[arg(
        long,
        value_name = "POLICY",
        env = "BATON_POLICY",
        default_value = "cost"
    )]
    pub policy: PolicyFlag,
    /// How much chance is in the choice: 0 always takes the cheapest plan; with 0.5 one that costs half as much again is
    /// taken e times more seldom.
    #[arg(
        long,
        value_name = "SHARE",
        env = "BATON_TEMPERATURE",
        default_value_t = 0.0,
        value_parser = share
    )]
    pub temperature: f64,
    /// Header by which requests of one session are known; they stay with the worker that computed their last prompt.
    #[arg(long, value_name = "NAME", env = "BATON_SESSION_HEADER")]
    pub session_header: Option<HeaderName>,
    /// How many seconds dearer a session's own worker may be before another one is taken.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_SESSION_WORTH_S",
        default_value_t = 0.1,
        value_parser = share
    )]
    pub session_worth_s: f64,
    /// Have sidecars measure the ways between their hosts when two workers meet: a few reads of 16 MiB, one pair at a time.
    /// What engines need for their own transfers replaces it.
    #[arg(
        long,
        value_name = "BOOL",
        env = "BATON_MEASURE_LINKS",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    pub measure_links: bool,
    /// Longest time that a request may have to wait for work before its own, or for room in a worker, in seconds. If it would
    /// be longer, or its time would be over before, it is refused at once with 503 and told when to try again.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_MAX_WAIT_S",
        default_value_t = 120
    )]
    pub max_wait_s: u64,
    /// Most requests that wait in the router because whoever should serve them has no room: no place among its sequences, or no
    /// KV blocks. They are given to a worker when there is room, first come, first served. Beyond so many, those of the model
    /// with most of them are refused with 503. 0 lets engines queue all requests themselves.
    #[arg(
        long,
        value_name = "N",
        env = "BATON_MAX_QUEUED",
        default_value_t = 1024
    )]
    pub max_queued: usize,
    /// How many of a hundred requests may be tried again after a failure, beyond a reserve of 256. More are told the error,
    /// so that a pool that fails is not given several times its load.
    #[arg(
        long,
        value_name = "PERCENT",
        env = "BATON_RETRY_PERCENT",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(0..=1000)
    )]
    pub retry_percent: u32,
    /// Where KV may and should move.
    #[command(flatten)]
    pub topology: TopologyArgs,
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
    /// How long the router goes on letting requests in when asked to stop, in seconds, while /readyz says that it stops: the
    /// time that a load balancer takes to look.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BATON_LINGER_S",
        default_value_t = 3
    )]
    pub linger_s: u64,
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
    /// Longest time that a request waits for an engine to tell its prompt's tokens, in milliseconds, where they cannot be made
    /// from the model's files; a tenth of the prompt's predicted computing at most. What is not told in time is placed by its
    /// text. 0 asks nobody.
    #[arg(
        long,
        value_name = "MILLISECONDS",
        env = "BATON_TOKENIZE_WAIT_MS",
        default_value_t = 250,
        value_parser = clap::value_parser!(u64).range(0..=10_000)
    )]
    pub tokenize_wait_ms: u64,
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

/// How workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PolicyFlag {
    /// By predicted seconds.
    Cost,
    /// In turn.
    RoundRobin,
    /// Those with the fewest sequences.
    LeastLoaded,
    /// Those that have most of the prompt.
    Prefix,
}

impl From<PolicyFlag> for Policy {
    fn from(flag: PolicyFlag) -> Self {
        match flag {
            PolicyFlag::Cost => Self::Cost,
            PolicyFlag::RoundRobin => Self::RoundRobin,
            PolicyFlag::LeastLoaded => Self::LeastLoaded,
            PolicyFlag::Prefix => Self::Prefix,
        }
    }
}

/// Where KV may and should move.
#[derive(Debug, Clone, clap::Args)]
pub struct TopologyArgs {
    /// Links between workers with the same label of this name, nearest first: NAME=GIGABYTES_PER_SECOND[:MILLISECONDS].
    /// They count until transfers were measured. Given once, they replace nvlink_domain=200:0.2, host=50:0.5, rack=25:1
    /// and zone=10:2. Workers have labels by their sidecars' --topology.
    #[arg(
        long = "topology-level",
        value_name = "LEVEL",
        env = "BATON_TOPOLOGY_LEVELS",
        value_delimiter = ','
    )]
    pub levels: Vec<Level>,
    /// Label in which two workers must agree to hand over. A worker without it hands over to nobody.
    #[arg(
        long = "topology-require",
        value_name = "NAME",
        env = "BATON_TOPOLOGY_REQUIRE",
        value_delimiter = ','
    )]
    pub require: Vec<String>,
    /// Label in which two workers should agree, and the seconds that it is worth: NAME=SECONDS.
    #[arg(
        long = "topology-prefer",
        value_name = "RULE",
        env = "BATON_TOPOLOGY_PREFER",
        value_delimiter = ',',
        value_parser = preference
    )]
    pub prefer: Vec<(String, f64)>,
}

/// A number from 0 on.
fn share(text: &str) -> Result<f64, String> {
    let read = text.parse::<f64>().ok();
    let sane = read.filter(|share| (0.0..=1e6).contains(share));
    sane.ok_or_else(|| "it must be a number from 0 on".to_owned())
}

fn preference(text: &str) -> Result<(String, f64), String> {
    let read = text.split_once('=').and_then(|(name, seconds)| {
        let seconds: f64 = seconds.trim().parse().ok()?;
        let sane = !name.trim().is_empty() && (0.0..=3600.0).contains(&seconds);
        sane.then(|| (name.trim().to_owned(), seconds))
    });
    read.ok_or_else(|| "a preference looks like rack=0.5, that is NAME=SECONDS".to_owned())
}

impl TopologyArgs {
    /// As plans use it.
    pub fn topology(&self) -> Topology {
        let levels = if self.levels.is_empty() {
            Topology::default()
        } else {
            Topology::new(self.levels.clone())
        };
        let require = |topology: Topology, name: &String| topology.require(name);
        let prefer =
            |topology: Topology, (name, seconds): &(String, f64)| topology.prefer(name, *seconds);
        let required = self.require.iter().fold(levels, require);
        self.prefer.iter().fold(required, prefer)
    }
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

    /// Longest time that a request may have to wait for others.
    pub fn max_wait(&self) -> Duration {
        Duration::from_secs(self.max_wait_s)
    }

    /// How long requests are let in after the router was asked to stop.
    pub fn linger(&self) -> Duration {
        Duration::from_secs(self.linger_s)
    }

    /// Longest silence inside a stream.
    pub fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_s)
    }

    /// How long a prompt that was computed counts where no events tell. At most a day: nobody's cache is that patient.
    pub fn approximate_ttl(&self) -> Duration {
        Duration::from_secs(self.approximate_ttl_s.min(24 * 3600))
    }

    /// Longest wait for an engine to tell a prompt's tokens.
    pub fn tokenize_wait(&self) -> Duration {
        Duration::from_millis(self.tokenize_wait_ms)
    }

    /// Largest request body in bytes.
    pub fn max_body(&self) -> usize {
        self.max_body_mib << 20
    }
}
