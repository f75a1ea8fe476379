//! The engine's HTTP/1.1 server, written on the socket itself: a server that misbehaves is made of bytes.

use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::process::{Life, Process};
use super::script::{End, Http, Piece, RawAnswer};

/// Which path is answered by what.
pub(super) trait Api: Clone + Send + Sync + 'static {
    /// Whose it is.
    fn process(&self) -> &Process;

    /// Answers a request.
    fn route(
        &self,
        connection: &mut Connection,
        life: &Arc<Life>,
        request: &Request,
    ) -> impl Future<Output = After> + Send;
}

/// A request as it came.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// One connection.
pub(super) struct Connection {
    stream: TcpStream,
    ahead: Vec<u8>,
    /// Where what is sent is remembered, if it is.
    sent: Option<Arc<Mutex<Vec<u8>>>>,
}

/// Whether a connection goes on.
pub(super) enum After {
    /// The next request may come.
    KeepAlive,
    /// It ends in order.
    Close,
    /// It ends with a reset.
    Reset,
}

/// Serves one life of the engine.
pub(super) async fn serve(api: impl Api, life: Arc<Life>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            () = life.death.dead.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { return };
        let _ = stream.set_nodelay(true);
        let (api, life) = (api.clone(), Arc::clone(&life));
        tokio::spawn(async move {
            let mut connection = Connection {
                stream,
                ahead: Vec::new(),
                sent: None,
            };
            let after = tokio::select! {
                () = life.death.dead.cancelled() => After::Reset,
                after = connection.serve(&api, &life) => after,
            };
            if matches!(after, After::Reset) {
                let _ = connection.stream.set_zero_linger();
            }
        });
    }
}

impl Connection {
    async fn serve(&mut self, api: &impl Api, life: &Arc<Life>) -> After {
        loop {
            self.sent = None;
            let Some(request) = self.read().await else {
                return After::Close;
            };
            let mode = *api.process().http_mode.lock().unwrap();
            let after = match mode {
                Http::MuteTokenizer if request.path == "/tokenize" => {
                    self.gone().await;
                    After::Close
                }
                Http::Normal | Http::SlowHealth(_) | Http::MuteTokenizer => {
                    api.route(self, life, &request).await
                }
                Http::Garbage => {
                    self.write(b"\x00\x01\x02 I am not an HTTP server\r\n\r\n")
                        .await;
                    After::Close
                }
                Http::Mute => {
                    self.gone().await;
                    After::Close
                }
                Http::OtherServer => {
                    let page = "<html><body>It works!</body></html>";
                    self.answer(200, "text/html", page.as_bytes()).await
                }
            };
            if !matches!(after, After::KeepAlive) {
                return after;
            }
        }
    }

    /// A whole JSON answer.
    pub(super) async fn json(&mut self, status: u16, body: &serde_json::Value) -> After {
        self.answer(status, "application/json", body.to_string().as_bytes())
            .await
    }

    /// A whole answer.
    pub(super) async fn answer(&mut self, status: u16, content_type: &str, body: &[u8]) -> After {
        let mut bytes = head(status, content_type, Some(body.len()));
        bytes.extend_from_slice(body);
        if self.write(&bytes).await {
            After::KeepAlive
        } else {
            After::Close
        }
    }

    /// Writes bytes; whether somebody still takes them.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> bool {
        if let Some(sent) = &self.sent {
            sent.lock().unwrap().extend_from_slice(bytes);
        }
        self.stream.write_all(bytes).await.is_ok()
    }

    /// A scripted answer; `None` if the peer went away before its end. What is repeated is not remembered.
    pub(super) async fn play(&mut self, answer: &RawAnswer) -> Option<After> {
        for piece in &answer.pieces {
            match piece {
                Piece::Bytes(bytes) => {
                    self.write(bytes).await.then_some(())?;
                    tokio::task::yield_now().await;
                }
                Piece::Repeated(bytes, times) => {
                    for _ in 0..*times {
                        self.stream.write_all(bytes).await.ok()?;
                    }
                }
                Piece::Gate(gate) => {
                    tokio::select! {
                        () = self.gone() => return None,
                        () = gate.pass() => {}
                    }
                }
            }
        }
        match answer.end {
            End::Keep => Some(After::KeepAlive),
            End::Close => Some(After::Close),
            End::Reset => Some(After::Reset),
            End::Hang => {
                self.gone().await;
                None
            }
        }
    }

    /// What is sent from now on is remembered here.
    pub(super) fn record(&mut self, sent: Arc<Mutex<Vec<u8>>>) {
        self.sent = Some(sent);
    }

    /// Resolves when the peer has gone.
    pub(super) async fn gone(&mut self) {
        let mut piece = [0; 1024];
        loop {
            match self.stream.read(&mut piece).await {
                Ok(0) | Err(_) => return,
                // A request that comes too early waits.
                Ok(count) => self.ahead.extend_from_slice(&piece[..count]),
            }
        }
    }

    async fn read(&mut self) -> Option<Request> {
        let end = loop {
            if let Some(end) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            self.more().await?;
        };
        let head = String::from_utf8_lossy(&self.ahead[..end]).into_owned();
        self.ahead.drain(..end + 4);
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length: usize = headers
            .iter()
            .find(|(name, _)| name == "content-length")
            .map_or(0, |(_, value)| value.parse().unwrap_or(0));
        while self.ahead.len() < length {
            self.more().await?;
        }
        let body = self.ahead.drain(..length).collect();
        Some(Request {
            method,
            path,
            headers,
            body,
        })
    }

    async fn more(&mut self) -> Option<()> {
        self.ahead.reserve(16 << 10);
        match self.stream.read_buf(&mut self.ahead).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(()),
        }
    }
}

/// Head of an answer; without a length the body is chunked.
pub(super) fn head(status: u16, content_type: &str, length: Option<usize>) -> Vec<u8> {
    let framing = match length {
        Some(length) => format!("content-length: {length}"),
        None => "transfer-encoding: chunked".to_owned(),
    };
    let kind = match content_type {
        "" => String::new(),
        kind => format!("content-type: {kind}\r\n"),
    };
    format!("HTTP/1.1 {status} Status\r\nserver: uvicorn\r\n{kind}{framing}\r\n\r\n").into_bytes()
}
