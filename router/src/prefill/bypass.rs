//! What a plan needs to know of a request, and which requests are local by nature.
//!
//! The reasons were seen on a real engine (vLLM 0.32.0): with `n` > 1 only one child's KV is handed over and the others
//! strand; beam search hands over nothing; prompt logprobs and echo with logprobs make decode compute the prompt again;
//! and with `max_tokens` 1 nothing is left to decode. A request that is malformed in such a key is local as well: one
//! engine judges it, and no prefill is spent. Where no engine could serve it alone, one of a single token is split all the
//! same.

use baton_proto::json::RawObject;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use serde_json::Value;

use crate::tokens::{Known, Tokenised};
use crate::view::{BYTES_PER_TOKEN, Prompt, Text, counted_token_ids};

/// What a plan needs to know of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The model it names.
    pub model: Option<String>,
    /// Why it is not split, if so.
    pub local: Option<&'static str>,
    /// It would not be served rightly if it were split.
    pub whole: bool,
    /// Its prompt's length in tokens, as well as it can be told without a tokenizer.
    pub prompt_tokens: u64,
    /// That of the longest, if it has several.
    pub longest_prompt: u64,
    /// Its prompt in tokens, if that is known.
    pub prompt: Option<Prompt>,
    /// Its text, where no files make tokens of it.
    pub text: Option<Text>,
    /// What is known of its prompt.
    pub known: Known,
    /// Why no more is.
    pub because: Option<&'static str>,
}

/// The facts of a request of whose prompt this is known.
pub fn facts(request: &ClientRequest, tokenised: Tokenised) -> Facts {
    let object = request.object();
    let prompt = tokenised.prompt;
    let known = prompt.as_ref().map(Prompt::tokens);
    let longest = prompt.as_ref().map(Prompt::longest);
    let by_bytes = || request.body().len() as u64 / BYTES_PER_TOKEN;
    let prompt_tokens = known
        .or_else(|| counted_token_ids(&object))
        .unwrap_or_else(by_bytes);
    let whole = whole_reason(request.route(), &object).or(tokenised.local);
    Facts {
        model: object.get_as("model"),
        local: whole.or_else(|| needless(request.route(), &object)),
        whole: whole.is_some(),
        prompt_tokens: prompt_tokens.max(1),
        longest_prompt: longest.unwrap_or(prompt_tokens).max(1),
        prompt,
        text: tokenised.text,
        known: tokenised.known,
        because: tokenised.because,
    }
}

/// Why nothing would come of splitting it.
fn needless(route: Route, object: &RawObject<'_>) -> Option<&'static str> {
    let one_token = |key: &str| {
        object
            .get_set(key)
            .is_some_and(|raw| number(raw).is_none_or(|limit| limit <= 1.0))
    };
    // Chat lets max_completion_tokens win, completions ignore it.
    let limit = match route {
        Route::ChatCompletions if object.get_set("max_completion_tokens").is_some() => {
            "max_completion_tokens"
        }
        _ => "max_tokens",
    };
    one_token(limit).then_some("at most one token is wanted")
}

/// Why only one engine alone can serve it.
fn whole_reason(route: Route, object: &RawObject<'_>) -> Option<&'static str> {
    if matches!(route, Route::PassThrough(_)) {
        return Some("this route is not split");
    }
    let more_than_one = |key: &str| {
        object
            .get_set(key)
            .is_some_and(|raw| number(raw) != Some(1.0))
    };
    let is_on = |key: &str| {
        object
            .get_set(key)
            .is_some_and(|raw| !matches!(raw, "false" | "0"))
    };
    let reasons = [
        (more_than_one("n"), "several choices are wanted"),
        (more_than_one("best_of"), "several choices are wanted"),
        (is_on("use_beam_search"), "beam search is not split"),
        (
            object.get_set("prompt_logprobs").is_some(),
            "logprobs of the prompt are wanted",
        ),
        (
            is_on("echo") && asks_logprobs(object, route),
            "the prompt is echoed with logprobs",
        ),
        (
            is_on("echo") && route == Route::ChatCompletions,
            "the prompt is echoed",
        ),
        (
            route == Route::Completions && !is_one_prompt(object),
            "it is a batch, or has no prompt",
        ),
        (
            object.get_set("prompt_embeds").is_some(),
            "prompt embeddings are not split",
        ),
        (object.get_set("suffix").is_some(), "a suffix is not split"),
    ];
    reasons
        .into_iter()
        .find_map(|(holds, reason)| holds.then_some(reason))
}

fn asks_logprobs(object: &RawObject<'_>, route: Route) -> bool {
    match route {
        Route::Completions => object.get_set("logprobs").is_some(),
        _ => object.get_set("logprobs").is_some_and(|raw| raw != "false"),
    }
}

fn number(raw: &str) -> Option<f64> {
    serde_json::from_str(raw).ok()
}

/// One text, or one list of token ids.
fn is_one_prompt(object: &RawObject<'_>) -> bool {
    let Some(raw) = object.get_set("prompt") else {
        return false;
    };
    if raw.starts_with('"') {
        return true;
    }
    // A list of numbers is one prompt. Only its first item is looked at: an engine refuses mixed lists.
    let first = raw
        .strip_prefix('[')
        .map(str::trim_start)
        .and_then(|items| items.bytes().next());
    first.is_some_and(|byte| byte.is_ascii_digit())
}

/// The facts in JSON, for a dry run.
pub fn shown(facts: &Facts) -> Value {
    serde_json::json!({
        "model": facts.model,
        "prompt_tokens_estimated": facts.prompt_tokens,
        "prompt_tokens_known": facts.prompt.is_some(),
        "prompt_by": facts.known.word(),
        "prompt_by_because": facts.because,
        "local_because": facts.local,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(route: Route, body: &str) -> Facts {
        let request = ClientRequest::new(route, body.to_owned().into()).unwrap();
        let tokenised = Tokenised {
            prompt: Prompt::given(&request),
            ..Tokenised::default()
        };
        facts(&request, tokenised)
    }

    #[test]
    fn ordinary_requests_may_be_split() {
        for (route, body) in [
            (
                Route::Completions,
                r#"{"model":"m","prompt":"hello","max_tokens":16}"#,
            ),
            (Route::Completions, r#"{"model":"m","prompt":[1,2,3]}"#),
            (
                Route::Completions,
                r#"{"prompt":"x","n":1,"best_of":1,"echo":true,"logprobs":null}"#,
            ),
            (
                Route::Completions,
                r#"{"prompt":"x","max_completion_tokens":1}"#,
            ),
            (
                Route::ChatCompletions,
                r#"{"messages":[],"max_tokens":1,"max_completion_tokens":5}"#,
            ),
            (
                Route::ChatCompletions,
                r#"{"messages":[],"logprobs":true,"top_logprobs":3,"max_tokens":null}"#,
            ),
        ] {
            assert_eq!(of(route, body).local, None, "{body}");
        }
    }

    #[test]
    fn what_cannot_be_split_is_local_and_says_why() {
        for (route, body, part) in [
            (
                Route::Completions,
                r#"{"prompt":"x","max_tokens":1}"#,
                "one token",
            ),
            (
                Route::Completions,
                r#"{"prompt":"x","max_tokens":0}"#,
                "one token",
            ),
            (
                Route::Completions,
                r#"{"prompt":"x","max_tokens":"many"}"#,
                "one token",
            ),
            (
                Route::ChatCompletions,
                r#"{"messages":[],"max_completion_tokens":1,"max_tokens":9}"#,
                "one token",
            ),
            (Route::Completions, r#"{"prompt":"x","n":2}"#, "several"),
            (Route::Completions, r#"{"prompt":"x","n":"2"}"#, "several"),
            (
                Route::Completions,
                r#"{"prompt":"x","use_beam_search":true}"#,
                "beam",
            ),
            (
                Route::Completions,
                r#"{"prompt":"x","prompt_logprobs":0}"#,
                "logprobs of the prompt",
            ),
            (
                Route::Completions,
                r#"{"prompt":"x","echo":true,"logprobs":0}"#,
                "echoed with",
            ),
            (
                Route::ChatCompletions,
                r#"{"messages":[],"echo":true}"#,
                "echoed",
            ),
            (Route::Completions, r#"{"prompt":["a","b"]}"#, "batch"),
            (Route::Completions, r#"{"prompt":[[1,2],[3]]}"#, "batch"),
            (Route::Completions, r#"{"prompt":[]}"#, "batch"),
            (Route::Completions, r#"{"model":"m"}"#, "batch"),
            (
                Route::PassThrough("/v1/embeddings"),
                r#"{"input":"x"}"#,
                "route",
            ),
        ] {
            let reason = of(route, body)
                .local
                .unwrap_or_else(|| panic!("{body} was split"));
            assert!(reason.contains(part), "{body}: {reason}");
        }
    }

    #[test]
    fn prompts_of_token_ids_are_counted() {
        assert_eq!(
            of(Route::Completions, r#"{"prompt":[ 1, 2,3]}"#).prompt_tokens,
            3
        );
        assert_eq!(
            of(Route::Completions, r#"{"prompt":"12345678901234567890"}"#).prompt_tokens,
            8
        );
    }
}
