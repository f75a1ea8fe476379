//! A request's prompt as its engine will see it: token ids, and what keeps its cache apart from others'.

use baton_proto::hash::{Namespace, SequenceHash, sequence_hashes};
use baton_proto::json::RawObject;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::worker::WorkerInfo;

/// Longest prompt that is looked at, in tokens. No model's context is as long.
const MOST_TOKENS: usize = 4 << 20;

/// Keys with which an engine computes another prompt than the token ids that are given.
const OTHER_PROMPT: [&str; 3] = ["truncate_prompt_tokens", "prompt_embeds", "suffix"];

/// Most prompts of a request that are looked at one by one.
const MOST_PROMPTS: usize = 128;

/// The prompt of a request, or all of its prompts, of which the tokens are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    sequences: Vec<Vec<u32>>,
    salt: String,
    /// What the engine reports of its cache is about one sequence.
    single: bool,
}

/// What decides how the blocks of a prompt are named: all workers of which both are equal name them alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Naming {
    root: SequenceHash,
    /// Tokens of a block.
    pub(super) block_size: u32,
}

impl Prompt {
    /// A prompt of these tokens, under this `cache_salt`.
    pub fn new(tokens: Vec<u32>, salt: impl Into<String>) -> Self {
        Self {
            sequences: vec![tokens],
            salt: salt.into(),
            single: true,
        }
    }

    /// The prompts of a request that gives them as token ids.
    pub fn given(request: &ClientRequest) -> Option<Self> {
        if request.route() != Route::Completions {
            return None;
        }
        let sequences = token_ids(request.object().get_set("prompt")?)?;
        Self::tokenised(request, sequences)
    }

    /// The prompts of a request of which these tokens are made. `None` if the engine would not look into its cache for it.
    pub fn tokenised(request: &ClientRequest, sequences: Vec<Vec<u32>>) -> Option<Self> {
        let object = request.object();
        if !may_be_cached(&object) {
            return None;
        }
        let salt = match object.get_set("cache_salt") {
            None => String::new(),
            Some(_) => object.get_as("cache_salt")?,
        };
        let is_one = |key: &str| {
            !is_on(&object, key) || object.get_as::<u64>(key).is_some_and(|count| count == 1)
        };
        let single =
            sequences.len() == 1 && is_one("n") && is_one("best_of") && is_one("use_beam_search");
        let sane = (1..=MOST_PROMPTS).contains(&sequences.len())
            && sequences.iter().all(|tokens| !tokens.is_empty())
            && sequences.iter().map(Vec::len).sum::<usize>() <= MOST_TOKENS;
        sane.then_some(Self {
            sequences,
            salt,
            single,
        })
    }

    /// Its length in tokens, or that of all prompts together.
    pub fn tokens(&self) -> u64 {
        self.sequences
            .iter()
            .map(|tokens| tokens.len() as u64)
            .sum()
    }

    /// The length of the longest of them.
    pub fn longest(&self) -> u64 {
        let lengths = self.sequences.iter().map(|tokens| tokens.len() as u64);
        lengths.max().unwrap_or(0)
    }

    /// Whether what the engine reports of its cache can be compared with what was predicted.
    pub(super) fn is_single(&self) -> bool {
        self.single
    }

    /// How a worker names its blocks, if that is known.
    pub(super) fn naming(&self, model: Option<&str>, info: &WorkerInfo) -> Option<Naming> {
        let base = info.models.first()?;
        let adapter = model.filter(|model| {
            let is = |name: &String| name == model;
            !info.models.iter().any(is) && info.lora_adapters.iter().any(is)
        });
        let namespace = Namespace {
            model: base,
            lora: adapter.unwrap_or_default(),
            salt: &self.salt,
        };
        Some(Naming {
            root: namespace.root()?,
            block_size: info.block_size.filter(|size| *size > 0)?,
        })
    }

    /// For each prompt the names of its full blocks, in order, and how many of them a cache can save: the last token is
    /// computed even if all of them are there.
    pub(super) fn blocks(&self, naming: Naming) -> impl Iterator<Item = (Vec<u64>, u64)> {
        let size = usize::try_from(naming.block_size).unwrap_or(usize::MAX);
        self.sequences.iter().map(move |tokens| {
            let hashes = sequence_hashes(naming.root, tokens, size);
            let usable = (tokens.len() as u64).saturating_sub(1) / u64::from(naming.block_size);
            (hashes.into_iter().map(|hash| hash.0).collect(), usable)
        })
    }
}

fn is_on(object: &RawObject<'_>, key: &str) -> bool {
    let raw = object.get_set(key);
    raw.is_some_and(|raw| !matches!(raw, "false" | "0"))
}

/// Whether the engine computes the prompt that is given, and looks into its cache for it: logprobs of a prompt have all of it
/// computed (vLLM 0.32.0, `skip_reading_prefix_cache`).
pub(super) fn may_be_cached(object: &RawObject<'_>) -> bool {
    let echoed = is_on(object, "echo") && object.get_set("logprobs").is_some();
    let another = OTHER_PROMPT.iter().any(|key| object.get_set(key).is_some());
    !another && !echoed && object.get_set("prompt_logprobs").is_none()
}

/// A list of token ids, or a list of such lists.
fn token_ids(raw: &str) -> Option<Vec<Vec<u32>>> {
    let inner = raw.strip_prefix('[')?.trim_start();
    // Lists cost memory before it is known how many there are.
    if raw.bytes().filter(|byte| *byte == b'[').count() > MOST_PROMPTS + 1 {
        return None;
    }
    match inner.as_bytes().first()? {
        b'0'..=b'9' => Some(vec![serde_json::from_str(raw).ok()?]),
        b'[' => serde_json::from_str(raw).ok(),
        _ => None,
    }
}

/// Length of a prompt that is given as token ids, though perhaps not as valid ones.
pub(crate) fn counted_token_ids(object: &RawObject<'_>) -> Option<u64> {
    let raw = object.get_set("prompt")?;
    let first = raw.strip_prefix('[')?.trim_start().bytes().next()?;
    first
        .is_ascii_digit()
        .then(|| raw.bytes().filter(|byte| *byte == b',').count() as u64 + 1)
}

#[cfg(test)]
mod tests {
    use baton_proto::hash::sequence_hashes;

    use super::*;
    use crate::view::tests::info;

    fn given(body: &str) -> Option<Prompt> {
        Prompt::given(&ClientRequest::new(Route::Completions, body.to_owned().into()).unwrap())
    }

    #[test]
    fn token_ids_are_prompts_and_texts_are_none() {
        let three = Some(Prompt::new(vec![1, 2, 70_000], ""));
        assert_eq!(given(r#"{"prompt":[1, 2,70000]}"#), three);
        assert_eq!(given(r#"{"prompt":[ [1,2,70000] ],"n":1}"#), three);
        let salted = Some(Prompt::new(vec![5], "a\"b"));
        assert_eq!(given(r#"{"prompt":[5],"cache_salt":"a\"b"}"#), salted);
        for body in [
            r#"{"prompt":"hello"}"#,
            r#"{"prompt":[]}"#,
            r#"{"prompt":[[1],[]]}"#,
            r#"{"prompt":[[1],[[2]]]}"#,
            r#"{"prompt":[[1],"a"]}"#,
            r#"{"prompt":["a"]}"#,
            r#"{"prompt":[1,-2]}"#,
            r#"{"prompt":[1,4294967296]}"#,
            r#"{"prompt":[1,2.5]}"#,
            r#"{"prompt":[1],"cache_salt":7}"#,
            r#"{"prompt":[1],"prompt_logprobs":0}"#,
            r#"{"prompt":[1],"echo":true,"logprobs":1}"#,
            r#"{"prompt":[1],"truncate_prompt_tokens":5}"#,
            r#"{"messages":[]}"#,
        ] {
            assert_eq!(given(body), None, "{body}");
        }
    }

    #[test]
    fn a_batch_is_several_prompts_and_not_too_many() {
        let batch = given(r#"{"prompt":[[1,2,3],[4]]}"#).unwrap();
        assert_eq!((batch.tokens(), batch.longest()), (4, 3));
        assert!(!batch.is_single());
        let of = |count: usize| format!(r#"{{"prompt":[{}]}}"#, vec!["[7]"; count].join(","));
        assert!(given(&of(MOST_PROMPTS)).is_some());
        assert_eq!(given(&of(MOST_PROMPTS + 1)), None);
        let naming = batch.naming(None, &info(1)).unwrap();
        let (of_first, usable) = batch.blocks(naming).next().unwrap();
        assert_eq!((of_first.len(), usable), (3, 2));
        let alone = Prompt::new(vec![4], "");
        assert_eq!(batch.blocks(naming).last(), alone.blocks(naming).next());
    }

    #[test]
    fn several_sequences_are_not_compared() {
        assert!(
            given(r#"{"prompt":[1],"n":1,"best_of":null,"use_beam_search":false}"#)
                .unwrap()
                .is_single()
        );
        assert!(!given(r#"{"prompt":[1],"n":2}"#).unwrap().is_single());
        assert!(
            !given(r#"{"prompt":[1],"use_beam_search":true}"#)
                .unwrap()
                .is_single()
        );
    }

    /// The vectors of the protocol: 64 tokens in blocks of 32, under the base model, a salt and an adapter.
    #[test]
    fn blocks_are_named_as_the_protocol_has_it() {
        let prompt = Prompt::new((0..64).collect(), "");
        let naming = prompt.naming(Some("tiny"), &info(32)).unwrap();
        let (got, _) = prompt.blocks(naming).next().unwrap();
        let vectors = include_str!("../../../proto/vectors/sequence_hashes.txt");
        let vectors: Vec<u64> = vectors
            .lines()
            .map(|hash| u64::from_str_radix(hash, 16).unwrap())
            .collect();
        assert_eq!(naming.root.0, vectors[0]);
        assert_eq!(got, vectors[1..3]);
        assert_eq!(prompt.naming(None, &info(32)), Some(naming));
        let salted = Prompt::new((0..64).collect(), "tenant-a");
        assert_eq!(salted.naming(None, &info(32)).unwrap().root.0, vectors[3]);
        let adapted = prompt.naming(Some("ada"), &info(32)).unwrap();
        assert_eq!(adapted.root.0, vectors[4]);
        let tokens: Vec<u32> = (0..64).collect();
        let by_hand = sequence_hashes(adapted.root, &tokens, 32);
        let (got, _) = prompt.blocks(adapted).next().unwrap();
        assert_eq!(got, [by_hand[0].0, by_hand[1].0]);
    }

    #[test]
    fn without_a_model_or_a_block_size_nothing_has_a_name() {
        let prompt = Prompt::new(vec![1; 100], "");
        let mut unnamed = info(16);
        unnamed.models.clear();
        assert_eq!(prompt.naming(None, &unnamed), None);
        assert_eq!(prompt.naming(None, &info(0)), None);
        assert_eq!(Prompt::new(vec![1], "a\0b").naming(None, &info(16)), None);
    }

    #[test]
    fn the_last_token_is_computed_in_any_case() {
        let usable = |tokens: usize| {
            let prompt = Prompt::new(vec![1; tokens], "");
            let naming = prompt.naming(None, &info(16)).unwrap();
            let (blocks, usable) = prompt.blocks(naming).next().unwrap();
            (blocks.len(), usable)
        };
        assert_eq!(usable(1), (0, 0));
        assert_eq!(usable(16), (1, 0));
        assert_eq!(usable(17), (1, 1));
        assert_eq!(usable(32), (2, 1));
        assert_eq!(usable(33), (2, 2));
    }
}
