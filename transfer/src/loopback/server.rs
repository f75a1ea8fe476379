//! The side that is read.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{CHUNK, LONGEST_MESSAGE, Link, MOST_SPANS, NOTIFY, READ, Regions};
use crate::Notification;
use crate::inbox::Inbox;
use crate::pool::Span;
use crate::raw::Memory;

/// What a connection needs to know of its agent.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) regions: Arc<Regions>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) link: Arc<Link>,
    pub(super) ended: CancellationToken,
}

impl Server {
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let ended = self.ended.clone();
        let accepting = async {
            while let Ok((stream, _)) = listener.accept().await {
                let server = Arc::clone(&self);
                tokio::spawn(async move {
                    let ended = server.ended.clone();
                    // However it ends, the peer sees that it did.
                    let _ = ended.run_until_cancelled(server.serve_peer(stream)).await;
                });
            }
        };
        ended.run_until_cancelled(accepting).await;
    }

    async fn serve_peer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let meant = read_short(&mut stream).await?;
        let peer = String::from_utf8_lossy(&read_short(&mut stream).await?).into_owned();
        if meant != self.name.as_bytes() {
            return Ok(());
        }
        stream.write_u8(1).await?;
        loop {
            match stream.read_u8().await? {
                READ => self.give(&mut stream).await?,
                NOTIFY => self.inbox.put(Notification {
                    agent: peer.clone(),
                    message: read_message(&mut stream).await?,
                }),
                _ => return Ok(()),
            }
        }
    }

    async fn give(&self, stream: &mut TcpStream) -> io::Result<()> {
        let count = stream.read_u32_le().await?;
        if count > MOST_SPANS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut found: Option<Vec<(Arc<Memory>, usize, usize)>> = Some(Vec::new());
        for _ in 0..count {
            let span = read_span(stream).await?;
            let place = self.regions.find(&span);
            found = found.zip(place).map(|(mut found, (memory, offset))| {
                found.push((memory, offset, span.bytes));
                found
            });
        }
        let Some(found) = found else {
            return stream.write_u8(1).await;
        };
        stream.write_u8(0).await?;
        let mut chunk = Vec::new();
        for (memory, offset, bytes) in found {
            for at in (0..bytes).step_by(CHUNK) {
                chunk.resize((bytes - at).min(CHUNK), 0);
                memory
                    .read(offset + at, &mut chunk)
                    .ok_or(io::ErrorKind::InvalidInput)?;
                self.link.carry(chunk.len()).await;
                stream.write_all(&chunk).await?;
            }
        }
        Ok(())
    }
}

async fn read_span(stream: &mut TcpStream) -> io::Result<Span> {
    Ok(Span {
        address: stream.read_u64_le().await?,
        bytes: usize::try_from(stream.read_u64_le().await?).unwrap_or(usize::MAX),
        device: 0,
    })
}

async fn read_short(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(stream.read_u16_le().await?)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await?;
    if length > LONGEST_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
