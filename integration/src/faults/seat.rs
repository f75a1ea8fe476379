//! A router's place: the process comes and goes, the address stays, and clients know when it is worth asking.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::fleet::{Daemon, TOKEN, is_free, listens};
use crate::{client, ports};

/// What a request may take until its first token, in seconds; the routers are told so.
pub const DEADLINE_S: u64 = 10;

/// What a stream may be silent for, in seconds; the routers are told so.
pub const STALL_S: u64 = 5;

/// So long a router that has started is not used for want of workers.
const JOINS: Duration = Duration::from_secs(2);

/// Between two looks.
const GLANCE: Duration = Duration::from_millis(20);

/// A router's place.
pub struct RouterSeat {
    address: SocketAddr,
    /// Workers of each role.
    workers: usize,
    daemon: Mutex<Option<Daemon>>,
    up: AtomicBool,
    kills: AtomicU64,
}

impl RouterSeat {
    /// Nobody is there yet.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            address: ports::free(),
            workers,
            daemon: Mutex::default(),
            up: AtomicBool::new(false),
            kills: AtomicU64::new(0),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often it was ended with requests in its hands.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Acquire)
    }

    /// Whether somebody who came at this count of kills may have been cut off, or have met nobody.
    pub fn has_cut_off(&self, kills: u64) -> bool {
        !self.is_up() || self.kills() != kills
    }

    /// Starts it if it does not run.
    pub async fn start(&self) {
        let mut daemon = self.daemon.lock().await;
        if daemon.is_some() {
            return;
        }
        is_free(self.address).await;
        let command_line = format!(
            "baton-router --listen {} --token {TOKEN} --force split --request-timeout-s {DEADLINE_S} --stall-s {STALL_S} \
             --drain-s {STALL_S}",
            self.address
        );
        let words = command_line.split_whitespace().map(str::to_owned);
        *daemon = Some(Daemon::router("router", words));
        listens(self.address).await;
        let _ = timeout(JOINS, self.is_ready()).await;
        self.up.store(true, Ordering::Release);
    }

    /// Whether clients are sent to it, as whoever looks at its readiness would.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Waits until most workers have joined it.
    async fn is_ready(&self) {
        let most = (2 * self.workers - 2) as u64;
        loop {
            let answer = client::call(self.address, "GET", "/readyz", &[], "").await;
            if answer.json()["workers_ready"].as_u64() >= Some(most) {
                return;
            }
            sleep(GLANCE).await;
        }
    }

    /// Ends it as SIGKILL does.
    pub async fn kill(&self) {
        if let Some(daemon) = self.daemon.lock().await.take() {
            self.up.store(false, Ordering::Release);
            self.kills.fetch_add(1, Ordering::AcqRel);
            daemon.kill();
        }
    }

    /// Ends it as SIGTERM does. Whoever is not served in the time for that is cut off.
    pub async fn stop(&self) {
        if let Some(daemon) = self.daemon.lock().await.take() {
            let begun = tokio::time::Instant::now();
            let _ = daemon.stop().await;
            self.up.store(false, Ordering::Release);
            if begun.elapsed().as_secs() >= STALL_S {
                self.kills.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}
