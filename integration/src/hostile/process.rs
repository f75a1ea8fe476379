//! Daemons as processes of their own, whose memory and file descriptors can be looked at.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::client;
use crate::emulated::vllm::{Config, EmulatedVllm};
use crate::fleet::{TOKEN, listens};
use crate::ports;
use crate::wait::{bounded, until};

/// A daemon's process. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Soft and hard limit on file descriptors.
pub type Files = Option<(u32, u32)>;

impl Process {
    /// Starts `program`, which is `baton-test-daemon`, in this role.
    pub async fn start(program: &str, role: &str, files: Files, flags: &[&str]) -> Self {
        let address = ports::free();
        let limits = files.map_or(String::new(), |(soft, hard)| {
            format!("ulimit -Hn {hard}; ulimit -Sn {soft}; ")
        });
        let child = Command::new("sh")
            .args(["-c", &format!(r#"{limits}exec "$0" "$@""#), program])
            .args(["--listen", &address.to_string(), "--token", TOKEN])
            .args(flags)
            .env_clear()
            .env("BATON_TEST_AS", role)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        listens(address).await;
        Self { child, address }
    }

    /// A field of `/proc/PID/status`, in bytes.
    fn status(&self, field: &str) -> u64 {
        let id = self.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(field));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        kilobytes.and_then(|text| text.parse::<u64>().ok()).unwrap() << 10
    }

    /// Memory it holds now, in bytes.
    pub fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most memory it has ever held, in bytes.
    pub fn peak(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Asks it to stop, and judges how it did: in order, and with no word of a panic.
    pub async fn stop(mut self) {
        let id = i32::try_from(self.child.id().expect("it runs")).unwrap();
        let process = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        bounded("its last words", stderr.read_to_string(&mut said))
            .await
            .unwrap();
        let status = bounded("the process to end", self.child.wait()).await;
        assert!(status.unwrap().success(), "it ended badly: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// A router, a sidecar and an engine without a connector; only the engine is in this process.
pub struct Trio {
    /// The router.
    pub router: Process,
    /// The sidecar.
    pub sidecar: Process,
    /// The engine.
    pub engine: EmulatedVllm,
}

impl Trio {
    /// Starts them and waits until the worker is ready.
    pub async fn start(program: &str, files: Files, router: &[&str], sidecar: &[&str]) -> Self {
        let engine = EmulatedVllm::new(Config::new(None));
        engine.start().await;
        let router = Process::start(program, "router", files, router).await;
        let url = format!("http://{}", router.address);
        let mut flags = vec!["--worker-id", "e0", "--router", &url];
        let own = engine.sidecar_flags();
        flags.extend(own.iter().map(String::as_str));
        flags.extend(sidecar);
        let sidecar = Process::start(program, "sidecar", None, &flags).await;
        until("the worker to be ready", || async {
            let ready = client::call(router.address, "GET", "/readyz", &[], "").await;
            ready.status == 200
        })
        .await;
        Self {
            router,
            sidecar,
            engine,
        }
    }

    /// Stops all three.
    pub async fn stop(self) {
        self.sidecar.stop().await;
        self.router.stop().await;
        self.engine.kill().await;
    }
}
