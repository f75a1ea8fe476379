//! Recorded requests and answers.

use std::collections::BTreeMap;
use std::io::Write;

use baton_daemon::http::sse;
use serde_json::Value;

use super::input::Input;
use super::report::{Http, Route};
use super::{Damaged, Failure};

const PARAMS: &str = "kv_transfer_params";

/// One exchange, in whichever of the forms it was recorded.
struct Exchange {
    path: String,
    status: u64,
    /// The client's body, where it was recorded.
    request: Option<Value>,
    answer: Answer,
}

enum Answer {
    Whole(Value),
    /// The events of a stream.
    Stream(Vec<Value>),
    Unrecorded,
}

pub(super) fn read<W: Write>(
    input: &mut Input,
    damaged: &mut Damaged<'_, W>,
) -> Result<Http, Failure> {
    let mut http = Http::default();
    let mut routes = BTreeMap::new();
    while let Some(line) = input.next_line()? {
        let recorded = serde_json::from_slice(&line.text)
            .map_err(|error| format!("no line of requests and answers: {error}"));
        match recorded.and_then(|recorded: Value| exchange(&recorded)) {
            Ok(exchange) => count(&mut http, &mut routes, &exchange),
            Err(what) => damaged.note(line.number, what)?,
        }
    }
    http.routes = routes.into_values().collect();
    Ok(http)
}

/// Reads `{path, status, answer | stream}`, `{request, response}`, or `{path, engine_status, body}`, where the body is the
/// client's.
fn exchange(recorded: &Value) -> Result<Exchange, String> {
    let (head, status, request, answer) = match (recorded.get("request"), recorded.get("response"))
    {
        (Some(request), Some(response)) => {
            let answer = body(response.get("body").cloned());
            (
                request,
                response.get("status"),
                request.get("body").cloned(),
                answer,
            )
        }
        _ => {
            let answer = body(recorded.get("answer").or(recorded.get("stream")).cloned());
            let status = recorded.get("status").or(recorded.get("engine_status"));
            (recorded, status, recorded.get("body").cloned(), answer)
        }
    };
    let path = head.get("path").and_then(Value::as_str);
    let (Some(path), Some(status)) = (path, status.and_then(Value::as_u64)) else {
        return Err("an exchange without a path or without a status".to_owned());
    };
    Ok(Exchange {
        path: path.to_owned(),
        status,
        request,
        answer,
    })
}

/// An answer: text is a stream as it came over the wire.
fn body(recorded: Option<Value>) -> Answer {
    match recorded {
        None | Some(Value::Null) => Answer::Unrecorded,
        Some(Value::String(text)) => Answer::Stream(
            sse::events(text.as_bytes())
                .filter_map(sse::data)
                .filter_map(|data| serde_json::from_slice(&data).ok())
                .collect(),
        ),
        Some(whole) => Answer::Whole(whole),
    }
}

fn count(http: &mut Http, routes: &mut BTreeMap<(String, u64), Route>, exchange: &Exchange) {
    http.exchanges += 1;
    let route = routes
        .entry((exchange.path.clone(), exchange.status))
        .or_insert_with(|| Route {
            path: exchange.path.clone(),
            status: exchange.status,
            exchanges: 0,
            streams: 0,
            with_transfer_params: 0,
            without_transfer_params: 0,
            asked_with_transfer_params: 0,
            errors: 0,
        });
    route.exchanges += 1;
    route.asked_with_transfer_params +=
        u64::from(exchange.request.as_ref().is_some_and(has_params));
    let parts = match &exchange.answer {
        Answer::Unrecorded => return,
        Answer::Whole(whole) => std::slice::from_ref(whole),
        Answer::Stream(events) => {
            route.streams += 1;
            events
        }
    };
    if parts.iter().any(has_params) {
        route.with_transfer_params += 1;
    } else {
        route.without_transfer_params += 1;
    }
    route.errors += u64::from(parts.iter().any(|part| part.get("error").is_some()));
    let choices = parts
        .iter()
        .filter_map(|part| part.get("choices")?.as_array());
    let reasons = choices
        .flatten()
        .filter_map(|choice| choice.get("finish_reason")?.as_str());
    for reason in reasons {
        *http.finish_reasons.entry(reason.to_owned()).or_default() += 1;
    }
}

fn has_params(body: &Value) -> bool {
    body.get(PARAMS).is_some_and(|params| !params.is_null())
}
