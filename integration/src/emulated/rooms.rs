//! Where the two legs of a handoff meet: rooms of a prefill rank, and the line between the two engines.
//!
//! The real engines talk there in messages that nobody else has to know (SGLang over ZeroMQ, TensorRT-LLM over its agents); these
//! ones say one line of JSON at a time. A line that ends says that the other engine is gone.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use baton_transfer::{Agent, Metadata};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use super::core::{Core, HeldKv};
use super::process::Death;
use super::reach::Regions;
use super::transfer;

/// Lines of one room that wait at most.
const LINES: usize = 16;

/// What decode is told that does not wait.
const NOBODY: &str = "there is no such request";

/// What is said on a line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// Decode: this is about that room.
    Room {
        room: u64,
        /// Decode waits until prefill is there, too; else it is told at once that nobody is.
        waits: bool,
    },
    /// Prefill: the KV is here.
    Kv(Kv),
    /// Either: it comes to nothing, and why.
    Failed(String),
}

/// Where the KV of a prompt is, and what comes with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Kv {
    metadata: Vec<u8>,
    bases: Vec<u64>,
    block_len_bytes: u64,
    pages: u64,
    /// Under which id prefill holds it.
    pub(super) id: String,
    /// In which pages.
    pub(super) blocks: Vec<u32>,
    /// Prompt tokens that prefill had cached.
    pub(super) cached: usize,
    /// What prefill said.
    pub(super) first_token: u32,
}

impl Kv {
    pub(super) fn new(regions: &Regions, held: &HeldKv, cached: usize, first_token: u32) -> Self {
        Self {
            metadata: regions.metadata.bytes().to_vec(),
            bases: regions.bases.clone(),
            block_len_bytes: regions.block_len_bytes,
            pages: regions.blocks,
            id: held.request_id.clone(),
            blocks: held.blocks.clone(),
            cached,
            first_token,
        }
    }

    /// The memory that it is in; `None` if that makes no sense.
    pub(super) fn regions(&self) -> Option<Regions> {
        Some(Regions {
            metadata: Metadata::parse(&self.metadata).ok()?,
            bases: self.bases.clone(),
            block_len_bytes: self.block_len_bytes,
            blocks: self.pages,
        })
    }
}

/// One end of a line.
#[derive(Debug)]
pub(super) struct Line {
    heard: Lines<BufReader<OwnedReadHalf>>,
    said: OwnedWriteHalf,
}

impl Line {
    fn over(stream: TcpStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            heard: BufReader::new(read).lines(),
            said: write,
        }
    }

    /// A line to a rank of prefill, about a room.
    pub(super) async fn to(address: SocketAddr, room: u64, waits: bool) -> Option<Self> {
        let stream = TcpStream::connect(address).await.ok()?;
        let mut line = Self::over(stream);
        line.say(&Word::Room { room, waits }).await;
        Some(line)
    }

    /// Says something; nobody may hear it.
    pub(super) async fn say(&mut self, word: &Word) {
        let mut text = serde_json::to_vec(word).expect("a word is writable");
        text.push(b'\n');
        let _ = self.said.write_all(&text).await;
    }

    /// What the other end says next; `None` if it is gone.
    pub(super) async fn hear(&mut self) -> Option<Word> {
        let text = self.heard.next_line().await.ok()??;
        serde_json::from_str(&text).ok()
    }
}

/// The rooms of a prefill rank.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    open: Mutex<HashMap<u64, Room>>,
    /// Who waits for KV to arrive, by the id under which it is held.
    arrivals: Mutex<HashMap<String, oneshot::Sender<()>>>,
}

#[derive(Debug)]
struct Room {
    came: mpsc::Sender<Line>,
    /// Until prefill's leg is there.
    waits: Option<mpsc::Receiver<Line>>,
}

impl Default for Room {
    fn default() -> Self {
        let (came, waits) = mpsc::channel(LINES);
        let waits = Some(waits);
        Self { came, waits }
    }
}

/// A room that prefill's leg is in. It is closed when that ends.
#[derive(Debug)]
pub(super) struct Entered {
    rooms: Arc<Rooms>,
    room: u64,
    lines: mpsc::Receiver<Line>,
}

impl Rooms {
    /// The rooms of a rank, and where decode calls. They close with its process.
    pub(super) async fn open(
        agent: &Agent,
        core: &Arc<Core>,
        death: &Arc<Death>,
    ) -> (Arc<Self>, SocketAddr) {
        let rooms = Arc::new(Self::default());
        tokio::spawn(transfer::listen(
            agent.clone(),
            Arc::clone(core),
            Arc::clone(&rooms),
        ));
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("the kernel has a port");
        let address = listener.local_addr().expect("it is bound");
        let (listening, dead) = (Arc::clone(&rooms), death.dead.clone());
        tokio::spawn(async move {
            let listen = Arc::clone(&listening).listen(listener);
            dead.run_until_cancelled(listen).await;
            listening.close();
        });
        (rooms, address)
    }

    /// Prefill's leg is there. `None` if another one is.
    pub(super) fn enter(self: &Arc<Self>, room: u64) -> Option<Entered> {
        let mut open = self.open.lock().unwrap();
        let lines = open.entry(room).or_default().waits.take()?;
        Some(Entered {
            rooms: Arc::clone(self),
            room,
            lines,
        })
    }

    /// Whether either leg is there.
    pub(super) fn is_open(&self, room: u64) -> bool {
        self.open.lock().unwrap().contains_key(&room)
    }

    fn is_entered(&self, room: u64) -> bool {
        let open = self.open.lock().unwrap();
        open.get(&room).is_some_and(|room| room.waits.is_none())
    }

    fn came(&self, room: u64, line: Line) {
        let mut open = self.open.lock().unwrap();
        // Nobody takes a second line of a room: whoever is at its other end waits. Beyond those that find room, they are hung
        // up on.
        let _ = open.entry(room).or_default().came.try_send(line);
    }

    /// Resolves when the KV of this id has arrived where it was sent.
    pub(super) fn arrival(&self, id: &str) -> oneshot::Receiver<()> {
        let (arrived, arrival) = oneshot::channel();
        self.arrivals.lock().unwrap().insert(id.to_owned(), arrived);
        arrival
    }

    /// A notification of decode's agent, `ID:1`.
    pub(super) fn notified(&self, message: &[u8]) {
        let id = str::from_utf8(message).unwrap_or_default();
        let id = id.strip_suffix(":1").unwrap_or(id);
        if let Some(arrived) = self.arrivals.lock().unwrap().remove(id) {
            let _ = arrived.send(());
        }
    }

    /// Takes lines for good.
    async fn listen(self: Arc<Self>, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let rooms = Arc::clone(&self);
            let mut line = Line::over(stream);
            tokio::spawn(async move {
                let Some(Word::Room { room, waits }) = line.hear().await else {
                    return;
                };
                if waits || rooms.is_entered(room) {
                    rooms.came(room, line);
                } else {
                    line.say(&Word::Failed(NOBODY.to_owned())).await;
                }
            });
        }
    }

    /// Hangs up everywhere.
    fn close(&self) {
        self.open.lock().unwrap().clear();
    }
}

impl Entered {
    /// Resolves when decode's leg is there, too.
    pub(super) async fn decode(&mut self) -> Line {
        match self.lines.recv().await {
            Some(line) => line,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.rooms.open.lock().unwrap().remove(&self.room);
    }
}
