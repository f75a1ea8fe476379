//! Bounded HTTP calls: to clients' side of the router, to its operators' side, and to engines.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The longest completion takes some seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
const GLANCE: Duration = Duration::from_millis(50);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The router's plan, if it was asked to explain.
    pub plan: Option<String>,
    /// Body.
    pub text: String,
}

impl Answer {
    /// The body of a 200 as JSON.
    pub fn json(&self) -> Result<Value> {
        ensure!(
            self.status == 200,
            "answered with {}: {}",
            self.status,
            self.text
        );
        serde_json::from_str(&self.text).context("not JSON")
    }
}

/// An agent that any number of threads may use.
pub fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        // A proxy of the environment is not for this machine's own loopback device.
        .proxy(None)
        // A connection that was closed while it was idle would look like a failure of the next request.
        .max_idle_connections(0)
        .build()
        .new_agent()
}

/// GET, with a bearer token if there is one.
pub fn get(url: &str, token: Option<&str>) -> Result<Answer> {
    let mut request = agent().get(url);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let answer = request.call();
    read(answer.with_context(|| format!("GET {url} failed"))?)
}

/// POSTs JSON and asks the router to explain.
pub fn post(agent: &ureq::Agent, url: &str, body: &Value) -> Result<Answer> {
    let request = agent
        .post(url)
        .header("content-type", "application/json")
        .header("baton-explain", "1");
    let answer = request.send(body.to_string());
    read(answer.with_context(|| format!("POST {url} failed"))?)
}

/// Reads an answer to its end.
pub fn read(mut answer: http::Response<ureq::Body>) -> Result<Answer> {
    let plan = answer.headers().get("baton-plan");
    let plan = plan.and_then(|plan| plan.to_str().ok()).map(str::to_owned);
    let text = answer.body_mut().read_to_string();
    Ok(Answer {
        status: answer.status().as_u16(),
        plan,
        text: text.context("an answer broke off")?,
    })
}

/// Looks again and again until there is something to return; an error of `look` ends it at once.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing here is async, and what is waited for keeps real time"
)]
pub fn until<T>(
    what: &str,
    bound: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if started.elapsed() > bound {
            bail!("{what}: not within {} s", bound.as_secs());
        }
        std::thread::sleep(GLANCE);
    }
}
