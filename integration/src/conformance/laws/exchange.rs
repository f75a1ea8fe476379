//! Laws of one exchange: a request and its answer.

use serde_json::Value;

use super::super::answer::{Answer, Body, Frame, choices_of};
use super::super::http::Request;
use super::{BLOCK_SIZE, Broken};

/// A law: what is wrong with an exchange under it, if anything is.
type Law = fn(&Exchange) -> Option<String>;

/// All laws of exchanges, by name.
pub const LAWS: &[(&str, Law)] = &[
    ("an error tells its status in OpenAI's shape", error_shape),
    (
        "a stream ends with [DONE], alike after an error",
        stream_ends,
    ),
    ("every frame of a stream has the same id", one_id),
    ("a total is the sum of prompt and completion", usage_sums),
    ("as many token ids as the usage says", token_ids_are_counted),
    (
        "the prompt's token ids are the prompt's",
        prompt_is_repeated,
    ),
    (
        "an answer that ended by length has that length",
        length_is_reached,
    ),
    ("as many choices as were asked for", choices_are_counted),
    (
        "cached tokens are whole blocks, fewer than the prompt",
        cached_is_whole_blocks,
    ),
    (
        "decode repeats what prefill had cached",
        decode_repeats_cached,
    ),
    ("logprobs for every token", logprobs_are_counted),
    (
        "a ticket where one is due, with the keys of its kind",
        ticket_keys,
    ),
    (
        "a ticket names the blocks of its computed tokens",
        ticket_blocks,
    ),
    (
        "a ticket's request id is the answer's id, with a suffix",
        ticket_id,
    ),
];

/// A request as it was sent, and what came back.
pub struct Exchange<'a> {
    /// The request.
    pub request: &'a Request,
    /// The answer.
    pub answer: &'a Answer,
    /// Whether the engine has a connector that hands KV over.
    pub connected: bool,
}

/// Everything that is wrong with an exchange.
pub fn broken(exchange: &Exchange) -> Vec<Broken> {
    let judged = LAWS.iter().map(|(name, law)| (*name, law(exchange)));
    judged
        .filter_map(|(name, what)| Some((name, what?)))
        .collect()
}

impl Exchange<'_> {
    fn asked(&self, key: &str) -> &Value {
        static NULL: Value = Value::Null;
        self.request.body.as_ref().map_or(&NULL, |body| &body[key])
    }

    fn is_generation(&self) -> bool {
        ["/v1/completions", "/v1/chat/completions"].contains(&self.request.path.as_str())
    }

    /// The document of an unary answer that has choices.
    fn generated(&self) -> Option<&Value> {
        let document = self.answer.json()?;
        (self.answer.status == 200 && document["choices"].is_array()).then_some(document)
    }

    fn used(&self, key: &str) -> Option<u64> {
        self.answer.usage()?[key].as_u64()
    }

    fn prompts(&self) -> u64 {
        match self.asked("prompt").as_array() {
            Some(prompts) if prompts.first().is_some_and(Value::is_array) => prompts.len() as u64,
            _ => 1,
        }
    }

    /// Tokens of the first prompt, which is the one that a ticket is for.
    fn first_prompt(&self) -> Option<u64> {
        match self.asked("prompt")[0].as_array() {
            Some(first) => Some(first.len() as u64),
            None => self.used("prompt_tokens"),
        }
    }

    fn cached(&self) -> Option<u64> {
        self.answer.usage()?["prompt_tokens_details"]["cached_tokens"].as_u64()
    }
}

fn unless(holds: bool, what: impl FnOnce() -> String) -> Option<String> {
    (!holds).then(what)
}

fn error_shape(exchange: &Exchange) -> Option<String> {
    let documents = exchange.answer.documents();
    let error = documents
        .iter()
        .map(|document| &document["error"])
        .find(|error| !error.is_null());
    let Some(error) = error else {
        let failed = exchange.answer.status >= 400;
        return failed.then(|| format!("{} without an error", exchange.answer.status));
    };
    let code = error["code"].as_u64();
    let stream = matches!(exchange.answer.body, Body::Stream(_));
    let told = stream || code == Some(u64::from(exchange.answer.status));
    let shaped = error["message"].is_string() && error["type"].is_string();
    unless(told && shaped && error.get("param").is_some(), || {
        error.to_string()
    })
}

fn stream_ends(exchange: &Exchange) -> Option<String> {
    let Body::Stream(frames) = &exchange.answer.body else {
        return None;
    };
    let done = frames.iter().filter(|frame| **frame == Frame::Done).count();
    unless(done == 1 && frames.last() == Some(&Frame::Done), || {
        format!("{done} times, last {:?}", frames.last())
    })
}

fn one_id(exchange: &Exchange) -> Option<String> {
    let documents = exchange.answer.documents();
    let mut ids: Vec<&Value> = documents.iter().map(|document| &document["id"]).collect();
    ids.retain(|id| !id.is_null());
    ids.dedup();
    unless(ids.len() <= 1, || format!("{ids:?}"))
}

fn usage_sums(exchange: &Exchange) -> Option<String> {
    for usage in exchange
        .answer
        .documents()
        .iter()
        .map(|document| &document["usage"])
    {
        let count = |key: &str| usage[key].as_u64();
        let sum = count("prompt_tokens").zip(count("completion_tokens"));
        if sum.map(|(prompt, completion)| prompt + completion) != count("total_tokens") {
            return Some(usage.to_string());
        }
    }
    None
}

fn token_ids_are_counted(exchange: &Exchange) -> Option<String> {
    let ids: Vec<Vec<u64>> = exchange.answer.tokens()?;
    let ids: usize = ids.iter().map(Vec::len).sum();
    let used = exchange.used("completion_tokens")?;
    unless(ids as u64 == used, || {
        format!("{ids} ids, {used} tokens used")
    })
}

fn prompt_is_repeated(exchange: &Exchange) -> Option<String> {
    let documents = exchange.answer.documents();
    let first = documents.first()?;
    let told = [
        &first["prompt_token_ids"],
        &first["choices"][0]["prompt_token_ids"],
    ];
    let told = told.iter().find_map(|ids| ids.as_array())?;
    let used = exchange.used("prompt_tokens");
    let asked = exchange.asked("prompt").as_array();
    let asked = asked.filter(|ids| ids.iter().all(Value::is_u64));
    // What is truncated loses its beginning.
    let same = asked.is_none_or(|asked| asked.ends_with(told));
    // Of a batch, the usage counts all prompts.
    let counted = exchange.prompts() > 1 || used.is_none_or(|used| used == told.len() as u64);
    unless(same && counted, || {
        format!(
            "{} ids, usage {used:?}, the prompt itself: {same}",
            told.len()
        )
    })
}

fn length_is_reached(exchange: &Exchange) -> Option<String> {
    let document = exchange.generated()?;
    let mut reasons = choices_of(document).map(|choice| &choice["finish_reason"]);
    let chat = exchange.request.path.ends_with("/chat/completions");
    let limits = ["max_completion_tokens", "max_tokens"];
    let mut limits = limits[usize::from(!chat)..]
        .iter()
        .map(|key| exchange.asked(key).as_u64());
    let limit = limits.find_map(|limit| limit)?;
    if !reasons.all(|reason| reason == "length") {
        return None;
    }
    let expected = limit * choices_of(document).count() as u64;
    let used = exchange.used("completion_tokens")?;
    unless(used == expected, || {
        format!("{used} tokens instead of {expected}")
    })
}

fn choices_are_counted(exchange: &Exchange) -> Option<String> {
    let document = exchange.generated().filter(|_| exchange.is_generation())?;
    let expected = exchange.asked("n").as_u64().unwrap_or(1) * exchange.prompts();
    let indices: Vec<Option<u64>> = choices_of(document)
        .map(|choice| choice["index"].as_u64())
        .collect();
    let wanted: Vec<Option<u64>> = (0..expected).map(Some).collect();
    unless(indices == wanted, || {
        format!("{indices:?} instead of {expected}")
    })
}

fn cached_is_whole_blocks(exchange: &Exchange) -> Option<String> {
    let cached = exchange.cached()?;
    let prompt = exchange.used("prompt_tokens")?;
    // The last token is always computed: its logits are what is sampled from.
    let fits = cached.is_multiple_of(BLOCK_SIZE) && cached < prompt.max(1);
    let created = &exchange.answer.usage()?["prompt_tokens_details"]["created_cache_tokens"];
    // Chat alone tells it.
    let created = created.as_u64().unwrap_or_default();
    let created_fits = created.is_multiple_of(BLOCK_SIZE) && cached + created <= prompt;
    unless(fits && created_fits, || {
        format!("{cached} and {created} of {prompt}")
    })
}

fn decode_repeats_cached(exchange: &Exchange) -> Option<String> {
    let ticket = exchange.asked("kv_transfer_params");
    let ticket = match exchange.answer.ticket() {
        Some(own) => own,
        None => Some(ticket).filter(|ticket| ticket["do_remote_prefill"] == true)?,
    };
    let told = ticket["remote_prefill_cached_tokens"].as_u64()?;
    let cached = exchange.cached()?;
    unless(cached == told, || format!("{cached} instead of {told}"))
}

fn logprobs_are_counted(exchange: &Exchange) -> Option<String> {
    let document = exchange.generated()?;
    let prompt = exchange.used("prompt_tokens")?;
    let echoed = if exchange.asked("echo") == true {
        prompt
    } else {
        0
    };
    for choice in choices_of(document) {
        let expected = choice["token_ids"].as_array().map(|ids| ids.len() as u64);
        let lists = [
            "content",
            "tokens",
            "token_logprobs",
            "top_logprobs",
            "text_offset",
        ];
        for list in lists
            .iter()
            .filter_map(|list| choice["logprobs"][list].as_array())
        {
            let expected = expected.map(|expected| expected + echoed);
            if expected.is_some_and(|expected| list.len() as u64 != expected) {
                return Some(format!("{} for {expected:?} tokens", list.len()));
            }
        }
        let prompts = [&choice["prompt_logprobs"], &document["prompt_logprobs"]];
        for list in prompts.iter().filter_map(|list| list.as_array()) {
            // The first token of a prompt has no predecessor.
            if list.len() as u64 != prompt || !list[0].is_null() {
                return Some(format!("{} for {prompt} prompt tokens", list.len()));
            }
        }
    }
    None
}

/// What every ticket has; one of an answer with a single token tells the prefix hit, too.
const TICKET_KEYS: [&str; 13] = [
    "dcp_size",
    "do_remote_decode",
    "do_remote_prefill",
    "pp_size",
    "remote_block_ids",
    "remote_blocks_expiry_time",
    "remote_engine_id",
    "remote_host",
    "remote_num_tokens",
    "remote_port",
    "remote_request_id",
    "tp_size",
    "transfer_mode",
];

fn ticket_keys(exchange: &Exchange) -> Option<String> {
    let document = exchange.generated().filter(|_| exchange.is_generation())?;
    let ticket = &document["kv_transfer_params"];
    let aborted = choices_of(document).any(|choice| choice["finish_reason"] == "abort");
    let beam = exchange.asked("use_beam_search") == true;
    let asked = exchange.asked("kv_transfer_params")["do_remote_decode"] == true;
    if !asked || aborted || beam || !exchange.connected {
        return unless(ticket.is_null(), || format!("none is due: {ticket}"));
    }
    let Some(keys) = ticket.as_object() else {
        return Some("there is none".to_owned());
    };
    let mut keys: Vec<&str> = keys.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let told_hit = keys.contains(&"remote_prefill_cached_tokens");
    keys.retain(|key| *key != "remote_prefill_cached_tokens");
    let single = exchange.used("completion_tokens")? == choices_of(document).count() as u64;
    unless(keys == TICKET_KEYS && told_hit == single, || {
        ticket.to_string()
    })
}

fn ticket_blocks(exchange: &Exchange) -> Option<String> {
    let ticket = exchange
        .answer
        .ticket()
        .filter(|_| exchange.is_generation())?;
    let choices = choices_of(exchange.generated()?).count() as u64;
    let generated = exchange.used("completion_tokens")? / choices.max(1);
    // The last token was sampled, and nothing was computed from it.
    let computed = exchange.first_prompt()? + generated.saturating_sub(1);
    let told = ticket["remote_num_tokens"].as_u64();
    let groups = ticket["remote_block_ids"].as_array()?;
    let sizes: Vec<usize> = groups
        .iter()
        .map(|group| group.as_array().map_or(0, Vec::len))
        .collect();
    let blocks = usize::try_from(computed.div_ceil(BLOCK_SIZE)).ok()?;
    unless(told == Some(computed) && sizes == [blocks], || {
        format!("{sizes:?} blocks and {told:?} tokens for {computed}")
    })
}

fn ticket_id(exchange: &Exchange) -> Option<String> {
    let document = exchange.generated().filter(|_| exchange.is_generation())?;
    let told = exchange.answer.ticket()?["remote_request_id"].as_str()?;
    // Of several children, one is named.
    let own = told.strip_prefix("1_").unwrap_or(told);
    let id = document["id"].as_str()?;
    let chat = exchange.request.path.ends_with("/chat/completions");
    let part = if chat { "-" } else { "-0-" };
    let suffix = own
        .strip_prefix(id)
        .and_then(|rest| rest.strip_prefix(part));
    let random = suffix.is_some_and(|suffix| {
        suffix.len() == 8 && suffix.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    unless(random, || format!("{told} for {id}"))
}
