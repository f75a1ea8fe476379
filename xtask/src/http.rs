//! Small, bounded HTTP calls to processes of this run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

/// A probe or a page of metrics that takes longer is a fault of its own.
const TIMEOUT: Duration = Duration::from_secs(10);

fn agent() -> ureq::Agent {
    // A proxy of the environment is not for a loopback device that nobody else can reach.
    ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent()
}

/// True if a GET is answered with 200.
pub(crate) fn is_ok(url: &str) -> bool {
    agent()
        .get(url)
        .call()
        .is_ok_and(|answer| answer.status() == 200)
}

/// The body of a GET that must be answered with 200.
pub(crate) fn get(url: &str, token: Option<&str>) -> Result<String> {
    let mut request = agent().get(url);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut answer = request
        .call()
        .with_context(|| format!("GET {url} failed"))?;
    if answer.status() != 200 {
        bail!("GET {url} was answered with {}", answer.status());
    }
    answer
        .body_mut()
        .read_to_string()
        .with_context(|| format!("GET {url} broke off"))
}

/// The JSON body of a GET.
pub(crate) fn get_json<T: DeserializeOwned>(url: &str, token: Option<&str>) -> Result<T> {
    serde_json::from_str(&get(url, token)?)
        .with_context(|| format!("GET {url} gave unexpected JSON"))
}

/// A POST without a body; the status of the answer.
pub(crate) fn post(url: &str, token: &str) -> Result<u16> {
    let request = agent()
        .post(url)
        .header("authorization", format!("Bearer {token}"));
    let answer = request
        .send_empty()
        .with_context(|| format!("POST {url} failed"))?;
    Ok(answer.status().as_u16())
}

/// Asks again and again until there is an answer; an error of `ask` ends the wait at once.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing here is async, and what is waited for keeps real time"
)]
pub(crate) fn wait_for<T>(
    what: &str,
    bound: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = ask()? {
            return Ok(found);
        }
        if start.elapsed() > bound {
            bail!("{what}: not within {} s", bound.as_secs());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
