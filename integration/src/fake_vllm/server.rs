//! The fake's HTTP/1.1 server, written on the socket itself: a server that misbehaves is made of bytes.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{BLOCKS, FakeVllm, Http, Life, MODEL, answers, generate, model};

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
    sent: Arc<Mutex<Vec<u8>>>,
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
pub(super) async fn serve(engine: FakeVllm, life: Arc<Life>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            () = life.dead.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { return };
        let _ = stream.set_nodelay(true);
        let (engine, life) = (engine.clone(), Arc::clone(&life));
        tokio::spawn(async move {
            let mut connection = Connection {
                stream,
                ahead: Vec::new(),
                sent: Arc::default(),
            };
            let after = tokio::select! {
                () = life.dead.cancelled() => After::Reset,
                after = connection.serve(&engine, &life) => after,
            };
            if matches!(after, After::Reset) {
                let _ = connection.stream.set_zero_linger();
            }
        });
    }
}

impl Connection {
    async fn serve(&mut self, engine: &FakeVllm, life: &Arc<Life>) -> After {
        loop {
            self.sent = Arc::default();
            let Some(request) = self.read().await else {
                return After::Close;
            };
            let mode = *engine.inner.http_mode.lock().unwrap();
            let after = match mode {
                Http::Normal => self.route(engine, life, request).await,
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

    async fn route(&mut self, engine: &FakeVllm, life: &Arc<Life>, request: Request) -> After {
        let config = engine.config();
        let open = matches!(request.path.as_str(), "/health" | "/metrics" | "/version");
        let bearer = config.api_key.map(|key| format!("Bearer {key}"));
        let admitted = bearer.is_none_or(|bearer| {
            request
                .headers
                .iter()
                .any(|(name, value)| name == "authorization" && *value == bearer)
        });
        if !open && !admitted {
            let body = json!({"error": "Unauthorized"});
            return self.json(401, &body).await;
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/health") => self.answer(200, "application/json", b"").await,
            ("GET", "/version") => self.json(200, &json!({"version": "0.32.0"})).await,
            ("GET", "/v1/models") => self.json(200, &answers::models()).await,
            ("GET", "/metrics") => {
                let page = metrics(engine, life);
                self.answer(
                    200,
                    "text/plain; version=0.0.4; charset=utf-8",
                    page.as_bytes(),
                )
                .await
            }
            ("POST", "/tokenize") => self.tokenize(engine, &request).await,
            ("POST", "/v1/completions" | "/v1/chat/completions") => {
                generate::generate(self, engine, life, &request).await
            }
            ("POST", "/v1/embeddings") => {
                generate::note(engine, &request).ended(super::Fate::Answered);
                let body = json!({"object": "list", "model": MODEL, "data": [
                    {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]},
                ]});
                self.json(200, &body).await
            }
            _ => self.json(404, &json!({"detail": "Not Found"})).await,
        }
    }

    async fn tokenize(&mut self, engine: &FakeVllm, request: &Request) -> After {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let tokens = if body["prompt"].is_null() {
            model::chat_tokens(&body["messages"])
        } else {
            model::prompt_tokens(&body["prompt"])
        };
        let Some(tokens) = tokens else {
            return self
                .json(400, &answers::error(400, "BadRequestError", "no prompt"))
                .await;
        };
        let offset = engine.config().token_offset;
        let tokens: Vec<u32> = tokens.iter().map(|token| token + offset).collect();
        let body = json!({"count": tokens.len(), "max_model_len": 1024, "tokens": tokens, "token_strs": null});
        self.json(200, &body).await
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
        self.sent.lock().unwrap().extend_from_slice(bytes);
        self.stream.write_all(bytes).await.is_ok()
    }

    /// What is sent from now on belongs to this request.
    pub(super) fn record(&mut self, sent: &Arc<Mutex<Vec<u8>>>) {
        self.sent = Arc::clone(sent);
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
    format!(
        "HTTP/1.1 {status} Status\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\n{framing}\r\n\r\n"
    )
    .into_bytes()
}

fn metrics(engine: &FakeVllm, life: &Life) -> String {
    use std::sync::atomic::Ordering::Relaxed;
    let config = engine.config();
    let (running, pulled) = (
        life.running.load(Relaxed),
        life.transferred_tokens.load(Relaxed),
    );
    let mut page = format!(
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n\
         # TYPE process_start_time_seconds gauge\n\
         process_start_time_seconds {}\n\
         vllm:cache_config_info{{block_size=\"{}\",engine=\"0\",num_gpu_blocks=\"{BLOCKS}\",prefix_caching_hash_algo=\"sha256\"}} 1.0\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"{MODEL}\"}} {running}.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"{MODEL}\"}} 0.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"{MODEL}\"}} 0.0\n\
         vllm:prompt_tokens_by_source_total{{engine=\"0\",model_name=\"{MODEL}\",source=\"external_kv_transfer\"}} {pulled}.0\n",
        life.started, config.block_size
    );
    if config.role.is_some() {
        let _ = write!(
            page,
            "vllm:nixl_bytes_transferred_count{{engine=\"0\",model_name=\"{MODEL}\"}} 0.0\n\
             vllm:nixl_num_kv_expired_reqs_total{{engine=\"0\",model_name=\"{MODEL}\"}} 0.0\n"
        );
    }
    page
}
