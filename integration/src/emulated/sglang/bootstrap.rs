//! The bootstrap server of a prefill engine, by which decode finds its ranks; and how decode asks it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::process::{Life, Process};
use super::super::server::{After, Api, Connection, Request};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json; charset=utf-8";

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What it knows.
#[derive(Clone)]
pub(super) struct Bootstrap(Arc<Facts>);

struct Facts {
    process: Arc<Process>,
    page_size: u32,
    ranks: Vec<SocketAddr>,
    rooms: Mutex<HashMap<String, u64>>,
}

impl Bootstrap {
    pub(super) fn new(process: &Arc<Process>, page_size: u32, ranks: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Facts {
            process: Arc::clone(process),
            page_size,
            ranks,
            rooms: Mutex::default(),
        }))
    }

    fn topology(&self) -> Value {
        json!({
            "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": self.0.ranks.len(), "pp_size": 1,
            "page_size": self.0.page_size, "kv_cache_dtype": "auto", "follow_bootstrap_room": true,
            "enable_dsa_cache_layer_split": false, "decode_allocation_policy": "early",
            "enable_kv_cache_sharding": false, "prefill_http_port": self.0.process.address().port(),
            "target_tp_rank": null, "target_tp_ranks": null, "target_cp_ranks": null,
            "target_pp_ranks": null, "required_dst_info_num": null,
            "required_prefill_response_num": null,
        })
    }

    /// The answer to `GET /route`.
    fn find(&self, query: &str) -> (u16, &'static str, String) {
        let asked: HashMap<&str, &str> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let number = |key| asked.get(key).and_then(|text| text.parse::<i64>().ok());
        let keys = [
            "prefill_dp_rank",
            "prefill_cp_rank",
            "target_tp_rank",
            "target_pp_rank",
        ];
        let [Some(dp), Some(cp), Some(tp), Some(pp)] = keys.map(number) else {
            return (400, TEXT, "Missing inputs for bootstrap server.".to_owned());
        };
        if [dp, cp, tp, pp] == [-1; 4] {
            return (200, JSON, self.topology().to_string());
        }
        let rank = usize::try_from(dp).ok().and_then(|dp| self.0.ranks.get(dp));
        match rank.filter(|_| [cp, tp, pp] == [0; 3]) {
            Some(at) => {
                let at = json!({"rank_ip": at.ip().to_string(), "rank_port": at.port()});
                (200, JSON, at.to_string())
            }
            None => {
                let missing = format!(
                    "Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}"
                );
                (404, TEXT, missing)
            }
        }
    }

    fn register(&self, body: &Value) -> (u16, &'static str, String) {
        if let Some(rank) = body["dp_rank"].as_u64() {
            let mut rooms = self.0.rooms.lock().unwrap();
            rooms.insert(body["bootstrap_room"].to_string(), rank);
        }
        (200, TEXT, "OK".to_owned())
    }

    fn query(&self, body: &Value) -> (u16, &'static str, String) {
        let rooms = self.0.rooms.lock().unwrap();
        let asked = body["bootstrap_rooms"].as_array().into_iter().flatten();
        let known = asked.filter_map(|room| {
            let room = room.to_string();
            let rank = *rooms.get(&room)?;
            Some((room, rank.into()))
        });
        (200, JSON, Value::Object(known.collect()).to_string())
    }
}

impl Api for Bootstrap {
    fn process(&self) -> &Process {
        &self.0.process
    }

    async fn route(&self, connection: &mut Connection, _: &Arc<Life>, request: &Request) -> After {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let (status, kind, body) = match (request.method.as_str(), path) {
            ("GET", "/health") => (200, TEXT, "OK".to_owned()),
            ("GET", "/route") => self.find(query),
            ("POST", "/register_dp_rank") => self.register(&body),
            ("POST", "/query_dp_ranks") => self.query(&body),
            (_, "/route" | "/health" | "/register_dp_rank" | "/query_dp_ranks") => {
                (405, JSON, "Method not allowed".to_owned())
            }
            _ => (404, TEXT, "404: Not Found".to_owned()),
        };
        connection.answer(status, kind, body.as_bytes()).await
    }
}

/// What decode learns of a prefill engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) dp_size: u64,
    pub(super) page_size: u64,
}

/// Asks for the topology; `None` if there is no answer that makes sense.
pub(super) async fn topology(host: &str, port: u16) -> Option<Topology> {
    let query = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";
    let answer: Value = serde_json::from_slice(&get(host, port, query).await?).ok()?;
    Some(Topology {
        dp_size: answer["dp_size"].as_u64().filter(|size| *size > 0)?,
        page_size: answer["page_size"].as_u64()?,
    })
}

/// Asks where a rank is.
pub(super) async fn rank(host: &str, port: u16, rank: u64) -> Option<SocketAddr> {
    let query = format!(
        "/route?prefill_dp_rank={rank}&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"
    );
    let answer: Value = serde_json::from_slice(&get(host, port, &query).await?).ok()?;
    let ip = answer["rank_ip"].as_str()?.parse().ok()?;
    let port = u16::try_from(answer["rank_port"].as_u64()?).ok()?;
    Some(SocketAddr::new(ip, port))
}

/// Whether it is there.
pub(super) async fn is_healthy(host: &str, port: u16) -> bool {
    get(host, port, "/health").await.is_some()
}

/// The body of a 200.
async fn get(host: &str, port: u16, path: &str) -> Option<Vec<u8>> {
    tokio::time::timeout(PATIENCE, exchange(host, port, path))
        .await
        .ok()?
}

async fn exchange(host: &str, port: u16, path: &str) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect((host, port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    loop {
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            let length = head.split("content-length:").nth(1)?;
            let length: usize = length.lines().next()?.trim().parse().ok()?;
            if answer.len() >= end + 4 + length {
                let served = head.starts_with("http/1.1 200");
                return served.then(|| answer.split_off(end + 4));
            }
        }
        if stream.read_buf(&mut answer).await.ok()? == 0 {
            return None;
        }
    }
}
