//! Asking an engine: one request, its whole answer, within a bound.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::answer::Answer;

/// Longest time for one answer. The longest recorded one took ten seconds, on a machine that stood still.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A dead engine's port refuses within this; a real one's processes need a second or two to end.
const DEATH_BOUND: Duration = Duration::from_secs(30);

/// How often a condition is looked at.
pub const GLANCE: Duration = Duration::from_millis(20);

/// A request that is ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// HTTP method.
    pub method: String,
    /// Path, with the query.
    pub path: String,
    /// Headers besides the content type.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: Option<Value>,
}

impl Request {
    /// `GET path`.
    pub fn get(path: &str) -> Self {
        Self {
            method: "GET".to_owned(),
            path: path.to_owned(),
            headers: BTreeMap::new(),
            body: None,
        }
    }

    /// `POST path` with a JSON body.
    pub fn post(path: &str, body: Value) -> Self {
        Self {
            method: "POST".to_owned(),
            path: path.to_owned(),
            headers: BTreeMap::new(),
            body: Some(body),
        }
    }
}

/// Sends a request to the engine at `base` and reads the whole answer.
pub fn ask(base: &str, request: &Request) -> Result<Answer, String> {
    ask_within(base, request, PATIENCE)
}

/// Like [`ask`], within another bound.
pub fn ask_within(base: &str, request: &Request, bound: Duration) -> Result<Answer, String> {
    let url = format!("{base}{}", request.path);
    let failed = |error: ureq::Error| format!("{} {url} failed: {error}", request.method);
    let mut building = http::request::Builder::new()
        .method(request.method.as_str())
        .uri(&url);
    for (name, value) in &request.headers {
        building = building.header(name, value);
    }
    let body = request.body.as_ref().map(Value::to_string);
    let building = building.header("content-type", "application/json");
    let sent = building
        .body(body.unwrap_or_default())
        .map_err(|error| format!("{url}: {error}"))?;
    let mut answer = agent(bound).run(sent).map_err(failed)?;
    let kind = answer.headers().get("content-type");
    let kind = kind
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let body = answer.body_mut().read_to_string().map_err(failed)?;
    Ok(Answer::read(answer.status().as_u16(), kind, &body))
}

/// The body of a `GET` as text.
pub fn page(base: &str, path: &str) -> Result<String, String> {
    let url = format!("{base}{path}");
    let failed = |error: ureq::Error| format!("GET {url} failed: {error}");
    let mut answer = agent(PATIENCE).get(&url).call().map_err(failed)?;
    answer.body_mut().read_to_string().map_err(failed)
}

fn agent(bound: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(bound))
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        // A proxy of the environment is not for an engine on this machine.
        .proxy(None)
        // A connection that an engine closed while it was idle would look like a failure of the next request.
        .max_idle_connections(0)
        .build()
        .new_agent()
}

/// Looks again and again until there is something to return.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing here is async, and what is waited for keeps real time"
)]
pub fn until<T>(
    what: &str,
    bound: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, String> {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if started.elapsed() > bound {
            return Err(format!("{what}: not within {} s", bound.as_secs()));
        }
        std::thread::sleep(GLANCE);
    }
}

/// Waits until nobody listens at `address` any more.
pub fn until_refused(address: SocketAddr) -> Result<(), String> {
    until("the engine's port refuses connections", DEATH_BOUND, || {
        TcpStream::connect_timeout(&address, Duration::from_secs(1))
            .is_err()
            .then_some(())
    })
}
