//! A request's text where its tokens are not known: equal beginnings of texts stand for equal beginnings of prompts.
//!
//! A text is cut into pieces of a fixed number of bytes. Each piece is named by a hash over all that comes before it, so the
//! names are to a text what sequence hashes are to a prompt, and [`super::Expected`] keeps them alike: which worker computed
//! which of them lately. What is found that way is never called known.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use baton_proto::json::RawObject;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::prompt::may_be_cached;

/// Bytes of JSON per token of text, roughly, for English.
pub(crate) const BYTES_PER_TOKEN: u64 = 4;

/// Bytes of a piece: small against a turn of a chat, large against what remembering it takes.
const PIECE: usize = 256;

/// Tokens that a piece stands for.
pub(crate) const PIECE_TOKENS: u64 = PIECE as u64 / BYTES_PER_TOKEN;

/// Bytes of a text that are looked at: beyond them it counts as new, whatever it is.
const MOST: usize = 1 << 20;

/// What changes a prompt from its first token on, and so its whole cache.
const BEFORE_ALL: [&str; 6] = [
    "cache_salt",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
];

/// Texts are the clients' own: nobody is to make two of them that look alike here.
static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The pieces of a request's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(Arc<[u64]>);

impl Text {
    /// The text of a request with one prompt, if that is a text at all.
    pub fn of(request: &ClientRequest) -> Option<Self> {
        let object = request.object();
        let text = match request.route() {
            Route::Completions => object.get_set("prompt")?.strip_prefix('"')?,
            // The next turn of a chat goes on where this list ends.
            Route::ChatCompletions => object.get_set("messages")?.strip_prefix('[')?,
            Route::PassThrough(_) => return None,
        };
        if !may_be_cached(&object) {
            return None;
        }
        let text = &text.as_bytes()[..text.len() - 1];
        let mut name = root(request.route(), &object);
        let pieces = text[..text.len().min(MOST)].chunks_exact(PIECE);
        let names = pieces.map(|piece| {
            name = xxh3_64_with_seed(piece, name);
            name
        });
        Some(Self(names.collect()))
    }

    /// Names of its pieces, in order.
    pub(crate) fn pieces(&self) -> &Arc<[u64]> {
        &self.0
    }
}

/// What the first piece is named by, beside itself. The names are those of one worker's books, but a worker may serve several
/// models.
fn root(route: Route, object: &RawObject<'_>) -> u64 {
    let mut hasher = SECRET.build_hasher();
    route.path().hash(&mut hasher);
    object.get_set("model").hash(&mut hasher);
    for key in BEFORE_ALL {
        object.get_set(key).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(route: Route, body: &str) -> Option<Text> {
        Text::of(&ClientRequest::new(route, body.to_owned().into()).unwrap())
    }

    fn shared(one: &Text, other: &Text) -> usize {
        let pairs = one.0.iter().zip(other.0.iter());
        pairs.take_while(|(one, other)| one == other).count()
    }

    fn chat(more: &str, turns: usize) -> Text {
        let turn = |at: usize| {
            format!(
                r#"{{"role":"user","content":"{}"}}"#,
                at.to_string().repeat(200)
            )
        };
        let turns: Vec<String> = (0..turns).map(turn).collect();
        let body = format!(
            r#"{{"messages":[{}],"max_tokens":{turns_count}{more}}}"#,
            turns.join(","),
            turns_count = turns.len()
        );
        text(Route::ChatCompletions, &body).unwrap()
    }

    #[test]
    fn a_turn_more_goes_on_where_the_chat_was() {
        let (one, two) = (chat("", 3), chat("", 5));
        assert!(two.0.len() > one.0.len());
        assert_eq!(shared(&one, &two), one.0.len());
    }

    #[test]
    fn what_changes_all_of_a_prompt_changes_all_names() {
        let plain = chat("", 3);
        for other in [
            r#","cache_salt":"a""#,
            r#","tools":[{"type":"function"}]"#,
            r#","model":"other""#,
            r#","chat_template_kwargs":{"a":1}"#,
        ] {
            assert_eq!(shared(&plain, &chat(other, 3)), 0, "{other}");
        }
        assert_eq!(
            shared(&plain, &chat(r#","temperature":0.5,"seed":1"#, 3)),
            plain.0.len()
        );
    }

    #[test]
    fn what_is_no_single_text_has_no_pieces() {
        for (route, body) in [
            (Route::Completions, r#"{"prompt":[1,2,3]}"#),
            (Route::Completions, r#"{"prompt":["a","b"]}"#),
            (Route::Completions, r#"{"prompt":"a","suffix":"b"}"#),
            (Route::Completions, r#"{"messages":[]}"#),
            (Route::ChatCompletions, r#"{"prompt":"a"}"#),
            (Route::ChatCompletions, r#"{"messages":"a"}"#),
        ] {
            assert_eq!(text(route, body), None, "{body}");
        }
        let short = text(Route::Completions, r#"{"prompt":""}"#).unwrap();
        assert!(short.0.is_empty());
    }

    #[test]
    fn of_a_huge_text_only_the_beginning_is_looked_at() {
        let body = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(8 * MOST));
        let huge = text(Route::Completions, &body).unwrap();
        assert_eq!(huge.0.len(), MOST / PIECE);
    }
}
