//! A client's connection, kept alive: one request at a time, read with as little work as can be, for the load generator
//! shares the machine with what it measures.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection and its buffers, which are used again for every answer.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    body: Vec<u8>,
}

/// Where an answer's body is, and how it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Bytes of the head.
    length: usize,
    /// Bytes of the body; `None` if it comes in chunks.
    body: Option<usize>,
}

impl Connection {
    /// Connects.
    pub async fn open(peer: SocketAddr) -> Result<Self> {
        let connected = TcpStream::connect(peer).await;
        let stream = connected.with_context(|| format!("cannot connect to {peer}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            received: Vec::with_capacity(64 << 10),
            body: Vec::new(),
        })
    }

    /// Sends a request; the status and the body of its answer.
    pub async fn ask(&mut self, request: &[u8]) -> Result<(u16, &[u8])> {
        self.stream.write_all(request).await?;
        self.received.clear();
        self.body.clear();
        let head = loop {
            self.more().await?;
            if let Some(head) = head(&self.received)? {
                break head;
            }
        };
        match head.body {
            Some(length) => self.read_whole(head.length, length).await,
            None => self.read_chunks(head.length).await,
        }
        .context("an answer's body")?;
        Ok((head.status, &self.body))
    }

    async fn read_whole(&mut self, start: usize, length: usize) -> Result<()> {
        while self.received.len() < start + length {
            self.more().await?;
        }
        ensure!(self.received.len() == start + length, "is too long");
        self.body.extend_from_slice(&self.received[start..]);
        Ok(())
    }

    async fn read_chunks(&mut self, start: usize) -> Result<()> {
        let mut at = start;
        loop {
            match chunk(&self.received[at..])? {
                Some(0) => break,
                Some(taken) => {
                    let data = data(&self.received[at..at + taken]);
                    self.body.extend_from_slice(data);
                    at += taken;
                }
                None => self.more().await?,
            }
        }
        ensure!(self.received[at..].len() == LAST_CHUNK.len(), "is too long");
        Ok(())
    }

    async fn more(&mut self) -> Result<()> {
        self.received.reserve(16 << 10);
        let count = self.stream.read_buf(&mut self.received).await?;
        ensure!(count > 0, "the connection was closed before the answer");
        Ok(())
    }
}

/// The end of a chunked body. Nobody here sends trailers.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The head, once it is whole.
fn head(received: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(received)? else {
        return Ok(None);
    };
    let header = |name: &str| {
        let found = response
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| std::str::from_utf8(header.value).ok())
    };
    let body = match (header("content-length"), header("transfer-encoding")) {
        (Some(length), None) => Some(length.parse().context("a content-length is no number")?),
        (None, Some("chunked")) => None,
        other => bail!("an answer's body has no end: {other:?}"),
    };
    Ok(Some(Head {
        status: response.code.unwrap_or_default(),
        length,
        body,
    }))
}

/// Bytes of the chunk at the start of `received`, framing included; 0 for the last one, `None` while it is not whole.
fn chunk(received: &[u8]) -> Result<Option<usize>> {
    let Some(line) = memchr::memmem::find(received, b"\r\n") else {
        ensure!(received.len() < 20, "has a chunk without a length");
        return Ok(None);
    };
    let digits = std::str::from_utf8(&received[..line]).unwrap_or_default();
    let length = usize::from_str_radix(digits, 16).context("has a chunk without a length")?;
    let whole = line + 2 + length + 2;
    if received.len() < whole {
        return Ok(None);
    }
    ensure!(received[whole - 2..whole] == *b"\r\n", "has a broken chunk");
    Ok(Some(if length == 0 { 0 } else { whole }))
}

/// The data of a whole chunk.
fn data(chunk: &[u8]) -> &[u8] {
    let start = memchr::memmem::find(chunk, b"\r\n").map_or(0, |line| line + 2);
    &chunk[start..chunk.len() - 2]
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Asks a peer that answers with these bytes, a few at a time, and then closes.
    async fn answer(bytes: &'static [u8], cut: usize) -> Result<(u16, Vec<u8>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = listener.local_addr().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            stream.read_exact(&mut [0; 3]).await.unwrap();
            for piece in bytes.chunks(cut) {
                // The asker may have gone already, of a bad answer.
                if stream.write_all(piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        let ask = async {
            let mut connection = Connection::open(peer).await?;
            let (status, body) = connection.ask(b"ask").await?;
            Ok((status, body.to_vec()))
        };
        tokio::join!(serve, ask).1
    }

    #[tokio::test]
    async fn reads_both_framings_however_they_are_cut() {
        let whole = b"HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nhello";
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n02\r\nlo\r\n0\r\n\r\n";
        for cut in [1, 7, 1000] {
            assert_eq!(answer(whole, cut).await.unwrap(), (503, b"hello".to_vec()));
            assert_eq!(
                answer(chunked, cut).await.unwrap(),
                (200, b"hello".to_vec())
            );
        }
    }

    #[tokio::test]
    async fn what_is_not_one_whole_answer_is_an_error() {
        for bad in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\nhel\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nmore",
            b"",
        ] {
            assert!(
                answer(bad, 1000).await.is_err(),
                "{}",
                String::from_utf8_lossy(bad)
            );
        }
    }
}
