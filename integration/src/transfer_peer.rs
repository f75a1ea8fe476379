//! A process with one agent: what it does for each line that it is told, and [`Process`], which tells it.
//!
//! ```text
//! start NAME                                    → started METADATA ADDRESS (in hexadecimal); a new agent, with new memory
//! fill BYTE                                     → filled
//! meet METADATA                                 → met NAME
//! read NAME ADDRESS BYTES MILLISECONDS [TEXT]   → read BYTE, if all that came is this byte
//! tell NAME TEXT                                → told
//! hear                                          → heard NAME TEXT
//! pool                                          → pool AVAILABLE QUARANTINED
//! retire                                        → retired: its memory is registered no longer
//! listening                                     → listening ADDRESS...: where this process accepts TCP
//! ```
//! Answers begin with `= `; any of them may be `error` and a sentence.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_transfer::{Agent, AgentConfig, Fabric, Library, Metadata, Peer, Pool, Slots, Span};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Runtime;

use crate::conformance::wire::{hex, unhex};
use crate::wait::{bounded, until};

/// Begins an answer. UCX writes to standard output, too.
const ANSWER: &str = "= ";

/// Bytes that an agent gives to be read.
pub const HELD: usize = 4 << 20;

/// Bytes that it can read into, in this many slots.
pub const SLOT: usize = 1 << 20;
const SLOTS: usize = 4;

/// Answers each line of standard input until there are no more.
pub fn run() -> Result<()> {
    let fabric = match std::env::var_os("BATON_NIXL_LIB") {
        None => Fabric::loopback(),
        Some(path) => Fabric::nixl(&Library::find(Some(Path::new(&path)), &[])?)?,
    };
    let runtime = Runtime::new()?;
    let mut one = None;
    for line in std::io::stdin().lines() {
        let answer = runtime.block_on(answer(&mut one, fabric, &line?));
        let answer = answer.unwrap_or_else(|error| format!("error {error:#}"));
        println!("{ANSWER}{answer}");
    }
    // An agent of the loopback fabric ends on its runtime.
    runtime.block_on(async { drop(one) });
    Ok(())
}

async fn answer(one: &mut Option<One>, fabric: Fabric, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match (one, &words[..]) {
        (one, ["start", name]) => {
            let (started, answer) = One::start(fabric, name).await?;
            *one = Some(started);
            Ok(answer)
        }
        (Some(one), words) => one.answer(words).await,
        (None, _) => bail!("nothing was started"),
    }
}

/// An agent, memory that it gives to be read, and memory to read into.
struct One {
    agent: Agent,
    held: Option<Slots>,
    pool: Pool,
    peers: HashMap<String, Peer>,
}

impl One {
    async fn start(fabric: Fabric, name: &str) -> Result<(Self, String)> {
        let agent = Agent::start(&fabric, AgentConfig::new(name)).await?;
        let held = agent.register(HELD, 1).await?.take(1).context("a slot")?;
        let pool = agent.register(SLOT, SLOTS).await?;
        let metadata = hex(agent.metadata().await?.bytes());
        let answer = format!("started {metadata} {:x}", held.span(0).address);
        let one = Self {
            agent,
            held: Some(held),
            pool,
            peers: HashMap::new(),
        };
        Ok((one, answer))
    }

    async fn answer(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["fill", byte] => {
                let bytes = vec![byte.parse()?; HELD];
                let held = self.held.as_mut().context("it is retired")?;
                held.write(0, 0, &bytes);
                Ok("filled".to_owned())
            }
            ["meet", metadata] => {
                let metadata = Metadata::parse(&unhex(metadata).context("not hexadecimal")?)?;
                let peer = self.agent.meet(&metadata).await?;
                let name = peer.name().to_owned();
                self.peers.insert(name.clone(), peer);
                Ok(format!("met {name}"))
            }
            ["read", name, address, bytes, deadline, text @ ..] => {
                let span = Span {
                    address: u64::from_str_radix(address, 16)?,
                    bytes: bytes.parse()?,
                    device: 0,
                };
                let deadline = Duration::from_millis(deadline.parse()?);
                self.read(name, span, deadline, text.first().copied()).await
            }
            ["tell", name, text] => {
                self.agent.notify(self.peer(name)?, text.as_bytes()).await?;
                Ok("told".to_owned())
            }
            ["hear"] => {
                let heard = self.agent.notifications().await?;
                let [heard] = &heard[..] else {
                    bail!("several came: {heard:?}");
                };
                let text = String::from_utf8_lossy(&heard.message);
                Ok(format!("heard {} {text}", heard.agent))
            }
            ["pool"] => {
                let (available, quarantined) = (self.pool.available(), self.pool.quarantined());
                Ok(format!("pool {available} {quarantined}"))
            }
            ["retire"] => {
                self.held = None;
                Ok("retired".to_owned())
            }
            ["listening"] => Ok(format!("listening {}", listening()?.join(" "))),
            _ => bail!("what is {words:?}?"),
        }
    }

    async fn read(
        &self,
        name: &str,
        span: Span,
        deadline: Duration,
        text: Option<&str>,
    ) -> Result<String> {
        let slots = self
            .pool
            .take(span.bytes.div_ceil(SLOT))
            .context("no slots")?;
        let told = text.map(str::as_bytes);
        let peer = self.peer(name)?;
        let spans = [span];
        let read = self.agent.read(peer, &spans, slots, told, deadline);
        let read = read.await.map_err(|failed| failed.error)?.to_vec();
        let read = &read[..span.bytes];
        let same = vec![read[0]; span.bytes];
        ensure!(read == same, "it is different bytes");
        Ok(format!("read {}", read[0]))
    }

    fn peer(&self, name: &str) -> Result<&Peer> {
        self.peers.get(name).context("it was not met")
    }
}

/// Where this process listens: its sockets among those of its network namespace that do.
fn listening() -> Result<Vec<String>> {
    const LISTEN: &str = "0A";
    let mut own = HashSet::new();
    for descriptor in std::fs::read_dir("/proc/self/fd")?.flatten() {
        // The one that reads the folder is gone by then.
        let Ok(target) = std::fs::read_link(descriptor.path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        own.extend(
            target
                .strip_prefix("socket:[")
                .map(|inode| inode.trim_end_matches(']').to_owned()),
        );
    }
    let mut addresses = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in std::fs::read_to_string(table)?.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields.get(3) == Some(&LISTEN)
                && fields.get(9).is_some_and(|inode| own.contains(*inode))
            {
                addresses.push(fields[1].to_owned());
            }
        }
    }
    Ok(addresses)
}

/// Such a process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    asked: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// What an agent told of itself when it was started.
#[derive(Debug, Clone)]
pub struct Started {
    /// Its name.
    pub name: String,
    /// Its metadata.
    pub metadata: Vec<u8>,
    /// Where the memory is that it gives to be read, in hexadecimal.
    pub address: String,
}

impl Process {
    /// Starts it, over this fabric and with these variables.
    pub fn spawn(program: &str, nixl: Option<&Path>, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        match nixl {
            None => command.env_remove("BATON_NIXL_LIB"),
            Some(library) => command.env("BATON_NIXL_LIB", library),
        };
        command
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        Self {
            asked: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    /// Tells it a line, and what it answers.
    pub async fn ask(&mut self, line: &str) -> String {
        self.asked
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
        let short = &line[..line.len().min(60)];
        let answer = async {
            while let Some(line) = self.answers.next_line().await.unwrap() {
                if let Some(answer) = line.strip_prefix(ANSWER) {
                    return answer.to_owned();
                }
            }
            panic!("the process ended at {short:?}");
        };
        bounded(short, answer).await
    }

    /// Starts an agent in it.
    pub async fn start(&mut self, name: &str) -> Started {
        let answer = self.ask(&format!("start {name}")).await;
        let words: Vec<&str> = answer.split(' ').collect();
        let ["started", metadata, address] = words[..] else {
            panic!("{answer}");
        };
        Started {
            name: name.to_owned(),
            metadata: unhex(metadata).unwrap(),
            address: address.to_owned(),
        }
    }

    /// Has its agent meet one.
    pub async fn meet(&mut self, metadata: &[u8]) -> String {
        self.ask(&format!("meet {}", hex(metadata))).await
    }

    /// Has its agent read from another one's memory.
    pub async fn read(&mut self, from: &Started, bytes: usize, deadline: Duration) -> String {
        let Started { name, address, .. } = from;
        let deadline = deadline.as_millis();
        self.ask(&format!("read {name} {address} {bytes} {deadline}"))
            .await
    }

    /// Stops it where it is, all of its threads.
    pub async fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id().unwrap());
        until("all threads to stand still", || async {
            let threads = std::fs::read_dir(&tasks).unwrap().flatten();
            threads.map(|thread| thread.path()).all(|thread| {
                // The state follows the name, which is in parentheses.
                let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_none_or(|(_, rest)| rest.starts_with('T'))
            })
        })
        .await;
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
    }

    /// Kills it, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Ends it in its own way, which must not take long.
    pub async fn finish(self) {
        let Self {
            mut child, asked, ..
        } = self;
        drop(asked);
        let status = bounded("the process to end", child.wait()).await.unwrap();
        assert!(status.success(), "{status}");
    }
}
