//! Somebody who listens where an engine should, and is none: what it says is bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Zeros that follow what it says, at most, in each connection.
pub const FLOOD: u64 = 1 << 30;

/// What it says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    /// A whole handshake of ZMTP 3.0 without security, as a socket of this type.
    Zmtp(&'static str),
    /// None: what it says comes at once.
    None,
}

/// A listener that says the same to everybody, and then zeros for as long as somebody takes them.
#[derive(Debug)]
pub struct Stranger {
    address: SocketAddr,
    seen: Arc<Seen>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    said: AtomicU64,
    ended: AtomicU64,
    most: AtomicU64,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Stranger {
    /// Begins to listen.
    pub async fn start(greeting: Greeting, says: Vec<u8>, floods: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Seen>::default();
        let noted = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (says, seen) = (says.clone(), Arc::clone(&noted));
                tokio::spawn(async move {
                    // Whoever does not hear it out has met it, too.
                    let _ = talk(stream, greeting, &says, floods, &seen).await;
                    seen.ended.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self {
            address,
            seen,
            accepting,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// In how many connections it has said all but the zeros.
    pub fn said(&self) -> u64 {
        self.seen.said.load(Ordering::Relaxed)
    }

    /// How many connections were ended by the other side.
    pub fn ended(&self) -> u64 {
        self.seen.ended.load(Ordering::Relaxed)
    }

    /// Most zeros that were taken from it in one connection.
    pub fn most_taken(&self) -> u64 {
        self.seen.most.load(Ordering::Relaxed)
    }
}

async fn talk(
    mut stream: TcpStream,
    greeting: Greeting,
    says: &[u8],
    floods: bool,
    seen: &Seen,
) -> std::io::Result<()> {
    if let Greeting::Zmtp(kind) = greeting {
        stream.write_all(&handshake(kind)).await?;
        read_handshake(&mut stream).await?;
    }
    stream.write_all(says).await?;
    seen.said.fetch_add(1, Ordering::Relaxed);
    let (mut from, mut to) = stream.split();
    let zeros = async {
        let mut taken = 0;
        while floods
            && taken < FLOOD
            && let Ok(more) = to.write(&[0; 16 << 10]).await
        {
            taken += more as u64;
            seen.most.fetch_max(taken, Ordering::Relaxed);
        }
    };
    let mut buffer = [0; 1024];
    let heard = async { while from.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    tokio::join!(zeros, heard);
    Ok(())
}

/// Reads the other side's greeting, its `READY`, and what it says next: a subscription, or a question.
async fn read_handshake(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 64]).await?;
    for _ in 0..2 {
        let [_, size] = [stream.read_u8().await?, stream.read_u8().await?];
        stream.read_exact(&mut vec![0; size.into()]).await?;
    }
    Ok(())
}

fn handshake(kind: &str) -> Vec<u8> {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend(u32::try_from(kind.len()).unwrap().to_be_bytes());
    ready.extend(kind.as_bytes());
    let command = [4, u8::try_from(ready.len()).unwrap()];
    [&greeting[..], &command, &ready].concat()
}

/// A frame that is as long as it says.
pub fn frame(body: &[u8], more: bool) -> Vec<u8> {
    let head = [u8::from(more), u8::try_from(body.len()).unwrap()];
    [&head[..], body].concat()
}

/// The head of a frame of so many bytes, which is the last one of its message.
pub fn head(size: u64) -> Vec<u8> {
    [&[2][..], &size.to_be_bytes()].concat()
}
