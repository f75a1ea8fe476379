//! The side that reads.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CHUNK, LONGEST_MESSAGE, MOST_SPANS, NOTIFY, READ};
use crate::TransferError;
use crate::pool::{Slots, Span, lock};

/// Connections to other agents, kept for the next transfer.
#[derive(Debug)]
pub(super) struct Connections {
    own: String,
    kept: Mutex<HashMap<String, Vec<TcpStream>>>,
}

impl Connections {
    /// Of the agent of this name.
    pub(super) fn new(own: String) -> Self {
        Self {
            own,
            kept: Mutex::default(),
        }
    }

    /// Reads spans into slots, and notifies the peer when they are here.
    pub(super) async fn read(
        &self,
        peer: &str,
        port: Option<u16>,
        remote: &[Span],
        into: &Slots,
        notification: Option<&[u8]>,
    ) -> Result<(), TransferError> {
        let gone = |_| TransferError::Disconnected(peer.to_owned());
        let mut stream = self.take(peer, port).await.map_err(gone)?;
        stream.write_all(&request(remote)?).await.map_err(gone)?;
        if stream.read_u8().await.map_err(gone)? != 0 {
            self.keep(peer, stream);
            return Err(TransferError::NoSuchMemory(peer.to_owned()));
        }
        fill(&mut stream, remote, into).await.map_err(gone)?;
        if let Some(message) = notification {
            stream.write_all(&notify(message)?).await.map_err(gone)?;
        }
        self.keep(peer, stream);
        Ok(())
    }

    /// Sends a notification.
    pub(super) async fn notify(
        &self,
        peer: &str,
        port: Option<u16>,
        message: &[u8],
    ) -> Result<(), TransferError> {
        let message = notify(message)?;
        let sent = async {
            let mut stream = self.take(peer, port).await?;
            stream.write_all(&message).await?;
            self.keep(peer, stream);
            io::Result::Ok(())
        };
        sent.await
            .map_err(|_| TransferError::Disconnected(peer.to_owned()))
    }

    pub(super) fn forget(&self, peer: &str) {
        lock(&self.kept).remove(peer);
    }

    async fn take(&self, peer: &str, port: Option<u16>) -> io::Result<TcpStream> {
        let kept = lock(&self.kept).get_mut(peer).and_then(Vec::pop);
        if let Some(stream) = kept.filter(is_open) {
            return Ok(stream);
        }
        let mut stream = TcpStream::connect(("127.0.0.1", port.unwrap_or(0))).await?;
        stream.set_nodelay(true)?;
        let mut hello = Vec::new();
        for name in [peer, &self.own] {
            let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
            hello.extend(length.to_le_bytes());
            hello.extend(name.as_bytes());
        }
        stream.write_all(&hello).await?;
        // Another agent that got the port of the one that is meant says nothing.
        stream.read_u8().await?;
        Ok(stream)
    }

    fn keep(&self, peer: &str, stream: TcpStream) {
        lock(&self.kept)
            .entry(peer.to_owned())
            .or_default()
            .push(stream);
    }
}

/// Whether a kept connection still has somebody at its other end: nothing is ever said there unasked.
fn is_open(stream: &TcpStream) -> bool {
    let said = stream.try_read(&mut [0]);
    said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn request(remote: &[Span]) -> Result<Vec<u8>, TransferError> {
    let count = u32::try_from(remote.len())
        .ok()
        .filter(|count| *count <= MOST_SPANS);
    let count = count.ok_or(TransferError::Refused("there are too many spans"))?;
    let mut request = vec![READ];
    request.extend(count.to_le_bytes());
    for span in remote {
        request.extend(span.address.to_le_bytes());
        request.extend((span.bytes as u64).to_le_bytes());
    }
    Ok(request)
}

async fn fill(stream: &mut TcpStream, remote: &[Span], into: &Slots) -> io::Result<()> {
    let pieces = into.scatter(remote).ok_or(io::ErrorKind::InvalidInput)?;
    let mut chunk = Vec::new();
    for piece in pieces {
        for at in (0..piece.remote.bytes).step_by(CHUNK) {
            chunk.resize((piece.remote.bytes - at).min(CHUNK), 0);
            stream.read_exact(&mut chunk).await?;
            let written = into.memory().write(piece.offset + at, &chunk);
            written.ok_or(io::ErrorKind::InvalidInput)?;
        }
    }
    Ok(())
}

fn notify(message: &[u8]) -> Result<Vec<u8>, TransferError> {
    let length = u32::try_from(message.len())
        .ok()
        .filter(|length| *length <= LONGEST_MESSAGE);
    let length = length.ok_or(TransferError::Refused("the notification is too long"))?;
    let mut bytes = vec![NOTIFY];
    bytes.extend(length.to_le_bytes());
    bytes.extend(message);
    Ok(bytes)
}
