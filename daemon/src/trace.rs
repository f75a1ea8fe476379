//! W3C trace context: one trace through client, router, sidecar and engine, a span of its own for each leg.

use std::fmt::Write;

use http::{HeaderMap, HeaderName, HeaderValue};
use rand::Rng;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest `tracestate` that is passed on, in bytes: as much as the W3C recommendation asks for. It comes from clients and
/// goes into the heads of our own requests, which peers refuse if they are too long.
const MAX_STATE: usize = 512;

/// Where a request stands in its trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    sampled: bool,
    state: Option<HeaderValue>,
}

impl TraceContext {
    /// The context of a request that arrived: a new span in the sender's trace, or in a new trace if it has none that is
    /// valid.
    pub fn arriving(headers: &HeaderMap) -> Self {
        let parent = headers
            .get(TRACEPARENT)
            .and_then(|value| parse(value.to_str().ok()?));
        let mut states = headers.get_all(TRACESTATE).iter();
        let state = match (states.next(), states.next()) {
            (Some(state), None) if parent.is_some() && state.len() <= MAX_STATE => {
                Some(state.clone())
            }
            _ => None,
        };
        let (trace, sampled) = parent.unwrap_or_else(|| (rand::rng().random(), false));
        Self {
            trace,
            span: fresh_span(),
            sampled,
            state,
        }
    }

    /// A span below this one, for a leg.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            span: fresh_span(),
            ..self.clone()
        }
    }

    /// Puts the context on a request that leaves.
    pub fn apply(&self, headers: &mut HeaderMap) {
        let flags = u8::from(self.sampled);
        let text = format!("00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span);
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(TRACEPARENT, value);
        }
        if let Some(state) = &self.state {
            headers.insert(TRACESTATE, state.clone());
        }
    }

    /// The trace's id for log lines.
    pub fn trace_id(&self) -> String {
        let mut text = String::with_capacity(32);
        let _ = write!(text, "{:032x}", self.trace);
        text
    }
}

fn fresh_span() -> u64 {
    rand::rng().random_range(1..=u64::MAX)
}

/// Trace id and sampled flag of a valid `traceparent`.
fn parse(text: &str) -> Option<(u128, bool)> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let known_length = parts.next().is_none() || version != "00";
    let lengths = [version, trace, span, flags].map(str::len) == [2, 32, 16, 2];
    let lower_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !known_length
        || !lengths
        || version == "ff"
        || ![version, trace, span, flags].into_iter().all(lower_hex)
    {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16)
        .ok()
        .filter(|trace| *trace != 0)?;
    u64::from_str_radix(span, 16)
        .ok()
        .filter(|span| *span != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some((trace, flags & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arriving(traceparent: &'static str) -> TraceContext {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(traceparent));
        headers.insert(TRACESTATE, HeaderValue::from_static("vendor=1"));
        TraceContext::arriving(&headers)
    }

    #[test]
    fn continues_a_trace_with_a_span_of_its_own() {
        let context = arriving("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut headers = HeaderMap::new();
        context.child().apply(&mut headers);
        let sent = headers[TRACEPARENT].to_str().unwrap();
        assert!(
            sent.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && sent.ends_with("-01"),
            "{sent}"
        );
        assert!(!sent.contains("00f067aa0ba902b7"));
        assert_eq!(headers[TRACESTATE], "vendor=1");
    }

    #[test]
    fn a_state_that_is_too_long_or_not_one_is_dropped() {
        let parent =
            HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        for (states, kept) in [
            (vec!["x".repeat(MAX_STATE)], true),
            (vec!["x".repeat(MAX_STATE + 1)], false),
            (vec!["a=1".to_owned(), "b=2".to_owned()], false),
        ] {
            let mut arrived = HeaderMap::from_iter([(TRACEPARENT, parent.clone())]);
            for state in &states {
                arrived.append(TRACESTATE, state.parse().unwrap());
            }
            let mut sent = HeaderMap::new();
            TraceContext::arriving(&arrived).apply(&mut sent);
            assert_eq!(sent.contains_key(TRACESTATE), kept, "{states:?}");
        }
    }

    #[test]
    fn starts_a_new_trace_when_the_senders_is_invalid() {
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            let context = arriving(bad);
            assert_ne!(
                context.trace_id(),
                "4bf92f3577b34da6a3ce929d0e0e4736",
                "{bad}"
            );
            assert_eq!(context.state, None, "{bad}");
        }
    }
}
