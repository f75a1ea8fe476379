//! What may differ between a recording and what is seen, listed once, each with its reason.
//!
//! Everything that is not listed must be equal: statuses, key sets, types, nullness, finish reasons, usage, flags.

use std::fmt;
use std::sync::LazyLock;

/// A place in a JSON document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A key of an object.
    Key(String),
    /// An index of an array.
    Index(usize),
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(out, ".{key}"),
            Self::Index(index) => write!(out, "[{index}]"),
        }
    }
}

/// How far two values may differ. Only `null` is like `null`, except where nothing is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Any string for a string.
    Text,
    /// Any string for a string, or none at all on either side.
    TextIfAny,
    /// Any number for a number.
    Number,
    /// Strings that are equal once each run of hexadecimal digits that could be random is reduced to its length.
    SameShape,
    /// Strings that are equal once each run of digits is reduced to one `#`.
    SameButDigits,
    /// A list of numbers of any length.
    Numbers,
    /// A list of any length, each element like one of the recorded elements.
    Each,
    /// An object with any keys, each value like one of the recorded values.
    Map,
    /// Not looked at, and may be absent.
    Ignored,
}

/// When a mask applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// If the target's tokenizer is not the recorded one.
    OtherTokenizer,
    /// If the target's engines were started with other flags than the recorded ones.
    OtherFlags,
    /// In cases whose answer a grammar shapes.
    Grammar,
    /// In a frame of a stream that is not its last one of its kind.
    Chunk,
}

/// A masked place.
#[derive(Debug, Clone, Copy)]
pub struct Mask {
    /// Path: keys and indices divided by `.`, `*` for any one, `**` in front for any number.
    pub at: &'static str,
    /// What may differ there.
    pub rule: Rule,
    /// When.
    pub when: When,
    /// Why it may differ.
    pub why: &'static str,
}

const RANDOM_ID: &str = "ids are drawn anew for each request";
const TIME: &str = "a time of day";
const CONFIG_DIGEST: &str = "ends in a digest of the engine's configuration";
const TEXT: &str = "text is the model's, and weights differ";
const HELD_BACK: &str = "text is the model's; a token that ends within a character adds none";
const SAMPLED: &str = "ids are the model's, and weights differ; how many there are is a law";
const LOGITS: &str = "what the model thinks, and weights differ; how much of it there is is a law";
const PROMPT: &str = "repeats the prompt, which may be another one; that it does so is a law";
const PLACE: &str = "ports, names and paths of one run";
const POOL: &str =
    "which blocks are free depends on what ran before; how many are named is compared";
const TOKENIZER: &str = "another tokenizer cuts other tokens; that the count is theirs is a law";
const FLAGS: &str = "an engine that runs already has its own limits";
const DETAILS: &str = "told with --enable-prompt-tokens-details only; the number is a law";
const GRAMMAR: &str = "where a grammar lets an answer end depends on the tokens that were drawn";
const CHUNKS: &str =
    "tokens that come faster than they are sent share a chunk; the sum is compared";
const PROCESS: &str = "addresses, names and sizes of one process";
const LAYERS: &str = "another model has other layers; that every region is described is a law";

pub(super) const fn mask(at: &'static str, rule: Rule, when: When, why: &'static str) -> Mask {
    Mask {
        at,
        rule,
        when,
        why,
    }
}

pub(super) const fn always(at: &'static str, rule: Rule, why: &'static str) -> Mask {
    mask(at, rule, When::Always, why)
}

/// All masks. The first one that fits a place counts.
pub const MASKS: &[Mask] = &[
    // Ids, times, names of a run.
    always("**.id", Rule::SameShape, RANDOM_ID),
    always("**.request_id", Rule::SameShape, RANDOM_ID),
    always("**.remote_request_id", Rule::SameShape, RANDOM_ID),
    always("**.created", Rule::Number, TIME),
    always("**.system_fingerprint", Rule::SameShape, CONFIG_DIGEST),
    always("data.*.root", Rule::Text, PLACE),
    always("*.endpoint", Rule::Text, PLACE),
    always("*.replay_endpoint", Rule::Text, PLACE),
    // What a model says.
    always("choices.*.text", Rule::Text, TEXT),
    always("choices.*.message.content", Rule::Text, TEXT),
    always("choices.*.delta.content", Rule::TextIfAny, HELD_BACK),
    always("choices.*.token_ids", Rule::Numbers, SAMPLED),
    always("choices.*.prompt_token_ids", Rule::Numbers, PROMPT),
    always("prompt_token_ids", Rule::Numbers, PROMPT),
    // What it thinks: completions.
    always("choices.*.logprobs.text_offset", Rule::Numbers, LOGITS),
    always("choices.*.logprobs.token_logprobs", Rule::Each, LOGITS),
    always("choices.*.logprobs.token_logprobs.*", Rule::Number, LOGITS),
    always("choices.*.logprobs.tokens", Rule::Each, LOGITS),
    always("choices.*.logprobs.tokens.*", Rule::Text, LOGITS),
    always("choices.*.logprobs.top_logprobs", Rule::Each, LOGITS),
    always("choices.*.logprobs.top_logprobs.*", Rule::Map, LOGITS),
    always("choices.*.logprobs.top_logprobs.*.*", Rule::Number, LOGITS),
    // Chat.
    always("choices.*.logprobs.content", Rule::Each, LOGITS),
    always("choices.*.logprobs.**.token", Rule::Text, LOGITS),
    always("choices.*.logprobs.**.logprob", Rule::Number, LOGITS),
    always("choices.*.logprobs.**.bytes", Rule::Numbers, LOGITS),
    // Both.
    always("**.prompt_logprobs", Rule::Each, LOGITS),
    always("**.prompt_logprobs.*", Rule::Map, LOGITS),
    always("**.prompt_logprobs.*.*.logprob", Rule::Number, LOGITS),
    always("**.prompt_logprobs.*.*.rank", Rule::Number, LOGITS),
    always("**.prompt_logprobs.*.*.decoded_token", Rule::Text, LOGITS),
    // A prefill's ticket.
    always(
        "kv_transfer_params.remote_block_ids.*.*",
        Rule::Number,
        POOL,
    ),
    always("kv_transfer_params.remote_engine_id", Rule::Text, PLACE),
    always("kv_transfer_params.remote_host", Rule::Text, PLACE),
    always("kv_transfer_params.remote_port", Rule::Number, PLACE),
    // The handshake.
    always(
        "handshake.compatibility_hash",
        Rule::SameShape,
        CONFIG_DIGEST,
    ),
    always("handshake.metadata.engine_id", Rule::Text, PLACE),
    always("handshake.metadata.agent_metadata", Rule::Text, PROCESS),
    always("handshake.metadata.num_blocks", Rule::Number, PROCESS),
    always(
        "handshake.metadata.kv_caches_base_addr",
        Rule::Numbers,
        PROCESS,
    ),
    always("handshake.metadata.block_lens", Rule::Numbers, LAYERS),
    always("handshake.metadata.block_strides", Rule::Numbers, LAYERS),
    always("handshake.metadata.ssm_sizes", Rule::Numbers, LAYERS),
    always(
        "handshake.metadata.region_num_blocks",
        Rule::Numbers,
        LAYERS,
    ),
    always("handshake.metadata.region_group_ids", Rule::Numbers, LAYERS),
    always("handshake.metadata.region_names", Rule::Each, LAYERS),
    always(
        "handshake.metadata.region_names.*",
        Rule::SameButDigits,
        LAYERS,
    ),
    always("handshake.metadata.region_mem_types", Rule::Each, LAYERS),
    // Events; hashes are compared too, by renaming them.
    always("event.token_ids", Rule::Numbers, SAMPLED),
    // Engines that are not as the recorded ones were.
    mask("prompt", Rule::Text, When::OtherTokenizer, TOKENIZER),
    mask("count", Rule::Number, When::OtherTokenizer, TOKENIZER),
    mask("tokens", Rule::Numbers, When::OtherTokenizer, TOKENIZER),
    mask("token_strs", Rule::Each, When::OtherTokenizer, TOKENIZER),
    mask("token_strs.*", Rule::Text, When::OtherTokenizer, TOKENIZER),
    mask("token_ids", Rule::Numbers, When::OtherTokenizer, TOKENIZER),
    mask(
        "*.token_ids",
        Rule::Numbers,
        When::OtherTokenizer,
        TOKENIZER,
    ),
    mask("max_model_len", Rule::Number, When::OtherFlags, FLAGS),
    mask(
        "data.*.max_model_len",
        Rule::Number,
        When::OtherFlags,
        FLAGS,
    ),
    mask(
        "error.message",
        Rule::SameButDigits,
        When::OtherFlags,
        FLAGS,
    ),
    mask(
        "usage.prompt_tokens_details",
        Rule::Ignored,
        When::OtherFlags,
        DETAILS,
    ),
    // Answers that are not always equally long.
    mask(
        "usage.completion_tokens",
        Rule::Number,
        When::Grammar,
        GRAMMAR,
    ),
    mask("usage.total_tokens", Rule::Number, When::Grammar, GRAMMAR),
    mask(
        "choices.*.finish_reason",
        Rule::Text,
        When::Grammar,
        GRAMMAR,
    ),
    mask(
        "choices.*.message.tool_calls",
        Rule::Ignored,
        When::Grammar,
        GRAMMAR,
    ),
    mask("usage.completion_tokens", Rule::Number, When::Chunk, CHUNKS),
    mask("usage.total_tokens", Rule::Number, When::Chunk, CHUNKS),
];

/// Counters of which only it is compared whether they grew, each with its reason.
const GROWTH_MASKS: [(&str, &str); 4] = [
    ("vllm:nixl_xfer_time_seconds_sum", "a span of time"),
    ("vllm:nixl_post_time_seconds_sum", "a span of time"),
    ("vllm:nixl_bytes_transferred_sum", LAYERS),
    ("vllm:nixl_num_descriptors_sum", LAYERS),
];

/// Families of metrics that are not compared, by how their names begin, each with its reason.
const FAMILY_MASKS: [(&str, &str); 3] = [
    ("python_", "of the interpreter that an engine is written in"),
    (
        "process_",
        "of the process; which of them there are depends on the operating system",
    ),
    ("http_", "of the web framework that an engine uses"),
];

/// True if only it is compared whether this counter grew.
pub fn is_growth_masked(counter: &str) -> bool {
    GROWTH_MASKS.iter().any(|(masked, _)| *masked == counter)
}

/// True if this family of metrics is not compared.
pub fn is_family_masked(family: &str) -> bool {
    FAMILY_MASKS
        .iter()
        .any(|(start, _)| family.starts_with(start))
}

/// The mask for a place under these circumstances.
pub fn mask_for(path: &[Part], circumstances: &[When]) -> Option<&'static Mask> {
    VLLM.mask_for(path, circumstances)
}

/// Masks of vLLM's answers.
pub static VLLM: LazyLock<Masks> = LazyLock::new(|| Masks::new(MASKS));

/// Masks, ready to be looked up.
pub struct Masks(Vec<(Vec<&'static str>, &'static Mask)>);

impl Masks {
    /// These; the first one that fits a place counts.
    pub fn new(masks: &'static [Mask]) -> Self {
        let split = |mask: &'static Mask| (mask.at.split('.').collect(), mask);
        Self(masks.iter().map(split).collect())
    }

    /// The mask of a place.
    pub fn mask_for(&self, path: &[Part], circumstances: &[When]) -> Option<&'static Mask> {
        let mut fitting = self.0.iter().filter(|(pattern, mask)| {
            let applies = mask.when == When::Always || circumstances.contains(&mask.when);
            applies && fits(pattern, path)
        });
        fitting.next().map(|(_, mask)| *mask)
    }
}

fn fits(pattern: &[&str], path: &[Part]) -> bool {
    match (pattern, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => (0..=path.len()).any(|skipped| fits(rest, &path[skipped..])),
        ([first, rest @ ..], [part, parts @ ..]) => {
            let same = match part {
                Part::Key(key) => *first == "*" || first == key,
                Part::Index(_) => *first == "*",
            };
            same && fits(rest, parts)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<Part> {
        let parts = text.split('.').map(|part| match part.parse() {
            Ok(index) => Part::Index(index),
            Err(_) => Part::Key(part.to_owned()),
        });
        parts.collect()
    }

    #[test]
    fn the_first_mask_that_fits_counts() {
        let rule = |text| mask_for(&path(text), &[]).map(|mask| mask.rule);
        assert_eq!(rule("id"), Some(Rule::SameShape));
        assert_eq!(rule("data.0.permission.0.id"), Some(Rule::SameShape));
        assert_eq!(rule("choices.0.text"), Some(Rule::Text));
        assert_eq!(rule("choices.0.finish_reason"), None);
        assert_eq!(
            rule("choices.0.logprobs.content.3.top_logprobs.0.token"),
            Some(Rule::Text)
        );
        assert_eq!(rule("usage.prompt_tokens"), None);
    }

    #[test]
    fn circumstances_add_masks() {
        let place = path("usage.completion_tokens");
        assert!(mask_for(&place, &[]).is_none());
        assert!(mask_for(&place, &[When::Grammar]).is_some());
    }

    #[test]
    fn each_mask_has_a_reason() {
        for mask in MASKS {
            assert!(mask.why.split(' ').count() > 2, "{mask:?}");
        }
    }
}
