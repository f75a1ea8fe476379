//! A client of the router that can leave in the middle, and that notices how an answer ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::asks::Ask;
use crate::client::{self, Answer};

/// Longest a client waits. A request has ten minutes by default; what is not answered within this is stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A request under way. Dropping it is what a client does that goes away.
#[derive(Debug)]
pub struct Call {
    connection: TcpStream,
    received: Vec<u8>,
    deadline: Instant,
}

/// How a request ended.
#[derive(Debug)]
pub enum Ended {
    /// With an answer, whole or not.
    Answered(Answer),
    /// The connection ended without one.
    Silently,
    /// Not at all.
    Hung,
}

/// What a wait for more came to.
#[derive(Debug, PartialEq, Eq)]
enum More {
    Some,
    End,
    Late,
}

impl Call {
    /// Sends a request.
    pub fn begin(router: SocketAddr, model: &str, ask: &Ask) -> Result<Self> {
        Self::begin_by(router, model, ask, &[])
    }

    /// Sends a request with further headers.
    pub fn begin_by(
        router: SocketAddr,
        model: &str,
        ask: &Ask,
        more: &[(&str, &str)],
    ) -> Result<Self> {
        let mut connection = TcpStream::connect_timeout(&router, PATIENCE)
            .with_context(|| format!("nobody listens at {router}"))?;
        let usual = [("content-type", "application/json"), ("baton-explain", "1")];
        let headers = [&usual[..], more].concat();
        let body = ask.body(model).to_string();
        let bytes = client::request("POST", "/v1/completions", &headers, body.as_bytes());
        connection.write_all(&bytes)?;
        Ok(Self {
            connection,
            received: Vec::new(),
            deadline: Instant::now() + PATIENCE,
        })
    }

    /// Waits until so many events of a stream have come.
    pub fn events(&mut self, wanted: usize) -> Result<()> {
        loop {
            let text = String::from_utf8_lossy(&self.received);
            if text.matches("data: ").count() >= wanted {
                return Ok(());
            }
            let more = self.more();
            ensure!(
                more == More::Some,
                "a stream ended before its event {wanted}"
            );
        }
    }

    /// The client waits for so much longer, from now on.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Self {
        self.deadline = Instant::now() + patience;
        self
    }

    /// Reads to the end.
    pub fn finish(mut self) -> Ended {
        loop {
            match self.more() {
                More::Some => {}
                More::Late => return Ended::Hung,
                More::End => break,
            }
        }
        Answer::parse_so_far(&self.received, true).map_or(Ended::Silently, Ended::Answered)
    }

    fn more(&mut self) -> More {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || self.connection.set_read_timeout(Some(left)).is_err() {
            return More::Late;
        }
        let mut bytes = [0; 16 << 10];
        match self.connection.read(&mut bytes) {
            Ok(0) => More::End,
            Ok(length) => {
                self.received.extend_from_slice(&bytes[..length]);
                More::Some
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                More::Late
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => More::Some,
            Err(_) => More::End,
        }
    }
}
