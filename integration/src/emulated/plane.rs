//! The data plane: KV bytes from one engine's memory to another's, block by block, over loopback TCP.
//!
//! It stands where NIXL stands. As there, whoever knows the right agent name may read any block at any time, whoever it
//! belongs to; nobody checks that the KV is still the right one; and a notification has no answer.
//!
//! ```text
//! hello:   agent name (u16 length)              → 1 if it is this agent, else the connection ends
//! read:    'R', count (u32), block ids (u32)    → 0, then the blocks; or 1 if one of them does not exist
//! notify:  'N', message (u16 length)            → nothing
//! ```
//! Numbers are little-endian.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::pool::BlockId;

const READ: u8 = b'R';
const NOTIFY: u8 = b'N';

/// More than any engine has.
const MAX_BLOCKS: u32 = 1 << 20;

/// Serves the blocks of one rank under this agent name until the process dies.
pub async fn serve(listener: TcpListener, agent: String, core: Arc<Core>, dead: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = dead.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((mut stream, _)) = accepted else {
            return;
        };
        let (agent, core, dead) = (agent.clone(), Arc::clone(&core), dead.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = dead.cancelled() => {}
                _ = serve_peer(&mut stream, &agent, &core) => {}
            }
        });
    }
}

async fn serve_peer(stream: &mut TcpStream, agent: &str, core: &Core) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if read_short(stream).await? != agent.as_bytes() {
        return Ok(());
    }
    stream.write_u8(1).await?;
    loop {
        match stream.read_u8().await? {
            READ => serve_read(stream, core).await?,
            NOTIFY => core.notified(&read_short(stream).await?),
            _ => return Ok(()),
        }
    }
}

async fn serve_read(stream: &mut TcpStream, core: &Core) -> io::Result<()> {
    let count = stream.read_u32_le().await?;
    if count > MAX_BLOCKS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut ids = vec![0; count as usize * 4];
    stream.read_exact(&mut ids).await?;
    let ids: Vec<BlockId> = ids
        .as_chunks()
        .0
        .iter()
        .map(|id| u32::from_le_bytes(*id))
        .collect();
    if ids.iter().any(|id| core.read_block(*id).is_none()) {
        return stream.write_u8(1).await;
    }
    stream.write_u8(0).await?;
    for id in ids {
        let block = core.read_block(id).unwrap_or_default();
        core.link().carry(block.len()).await;
        stream.write_all(&block).await?;
    }
    Ok(())
}

async fn read_short(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16_le().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Why KV did not come.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It cannot be reached, or went away on the way.
    #[error("the holder of the KV is gone: {0}")]
    Gone(#[from] io::Error),
    /// Somebody else is there now.
    #[error("the holder of the KV is another agent now")]
    OtherAgent,
    /// It has no such block.
    #[error("the holder of the KV has no such block")]
    NoSuchBlock,
    /// Handshake: no answer, nonsense, or an engine that does not fit.
    #[error("the handshake failed: {0}")]
    Handshake(String),
}

/// Connections to the planes of other engines, kept for the next transfer.
#[derive(Debug, Default)]
pub struct Connections(Mutex<HashMap<(SocketAddr, String), Vec<TcpStream>>>);

impl Connections {
    /// Reads blocks of `block_bytes` and sends `notification` when they are here.
    pub async fn read(
        &self,
        address: SocketAddr,
        agent: &str,
        ids: &[BlockId],
        block_bytes: usize,
        notification: &str,
    ) -> Result<Vec<u8>, Failure> {
        let mut stream = self.take(address, agent).await?;
        let mut request = vec![READ];
        request.extend_from_slice(&u32::try_from(ids.len()).unwrap_or(u32::MAX).to_le_bytes());
        request.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        stream.write_all(&request).await?;
        if stream.read_u8().await? != 0 {
            return Err(Failure::NoSuchBlock);
        }
        let mut blocks = vec![0; ids.len() * block_bytes];
        stream.read_exact(&mut blocks).await?;
        stream.write_all(&notify(notification.as_bytes())).await?;
        self.keep(address, agent, stream);
        Ok(blocks)
    }

    /// Sends a notification.
    pub async fn notify(
        &self,
        address: SocketAddr,
        agent: &str,
        message: &[u8],
    ) -> Result<(), Failure> {
        let mut stream = self.take(address, agent).await?;
        stream.write_all(&notify(message)).await?;
        self.keep(address, agent, stream);
        Ok(())
    }

    async fn take(&self, address: SocketAddr, agent: &str) -> Result<TcpStream, Failure> {
        let kept = {
            let mut kept = self.0.lock().unwrap();
            kept.get_mut(&(address, agent.to_owned()))
                .and_then(Vec::pop)
        };
        if let Some(stream) = kept.filter(is_open) {
            return Ok(stream);
        }
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut hello = short(agent.as_bytes());
        stream.write_all(&hello).await?;
        hello.resize(1, 0);
        match stream.read_exact(&mut hello).await {
            Ok(_) => Ok(stream),
            Err(_) => Err(Failure::OtherAgent),
        }
    }

    fn keep(&self, address: SocketAddr, agent: &str, stream: TcpStream) {
        let mut kept = self.0.lock().unwrap();
        kept.entry((address, agent.to_owned()))
            .or_default()
            .push(stream);
    }
}

/// Whether a kept connection still has somebody at its other end: nothing is ever said there unasked.
fn is_open(stream: &TcpStream) -> bool {
    let said = stream.try_read(&mut [0]);
    said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn notify(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![NOTIFY];
    bytes.extend(short(message));
    bytes
}

fn short(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let mut message = length.to_le_bytes().to_vec();
    message.extend_from_slice(&bytes[..usize::from(length)]);
    message
}
