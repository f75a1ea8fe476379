//! What an engine is asked: the part of a request that its prompt is made of, and nothing else.

use baton_proto::json::RawObject;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use bytes::Bytes;

/// Longest request whose tokens are asked for. It is sent, tokenised and sent back before the prompt itself is.
const MOST: usize = 1 << 20;

/// What a completion's prompt is made of.
const OF_COMPLETION: [&str; 3] = ["model", "prompt", "add_special_tokens"];

/// What a chat's is.
const OF_CHAT: [&str; 8] = [
    "model",
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
];

/// What changes a prompt and no engine is told of when it is asked (vLLM 0.32.0, `/tokenize`).
const NOT_TOLD: [&str; 6] = [
    "documents",
    "reasoning_effort",
    "truncate_prompt_tokens",
    "prompt_embeds",
    "suffix",
    "mm_processor_kwargs",
];

/// Names a question. Clients choose what is asked, so a name must not be one that could be made twice.
pub(super) type Key = [u8; 32];

/// A question for an engine.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) body: Bytes,
    pub(super) key: Key,
}

impl Question {
    /// The question for the tokens of a request's one prompt, if an engine could answer it.
    pub(super) fn of(request: &ClientRequest) -> Option<Self> {
        if request.body().len() > MOST {
            return None;
        }
        let object = request.object();
        let keys: &[&str] = match request.route() {
            Route::Completions if object.get_set("prompt")?.starts_with('"') => &OF_COMPLETION,
            Route::ChatCompletions if object.get_set("messages")?.starts_with('[') => &OF_CHAT,
            _ => return None,
        };
        let is_another = NOT_TOLD.iter().any(|key| object.get_set(key).is_some());
        if is_another || drops_tools(&object) {
            return None;
        }
        let told = keys
            .iter()
            .filter_map(|key| Some((key, object.get_set(key)?)));
        let told: Vec<String> = told.map(|(key, raw)| format!("\"{key}\":{raw}")).collect();
        let body = Bytes::from(format!("{{{}}}", told.join(",")));
        let key = blake3::hash(&body).into();
        Some(Self { body, key })
    }
}

/// An engine may be told to leave out tools that are not to be used; it is not told of the choice when it is asked.
fn drops_tools(object: &RawObject<'_>) -> bool {
    object.get_set("tools").is_some() && object.get_set("tool_choice") == Some("\"none\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(route: Route, body: &str) -> Option<Question> {
        Question::of(&ClientRequest::new(route, body.to_owned().into()).unwrap())
    }

    #[test]
    fn only_what_the_prompt_is_made_of_is_asked() {
        let body = r#"{"stream":true,"model":"m","messages":[{"role":"user"}],"max_tokens":5,"tools":null}"#;
        let asked = question(Route::ChatCompletions, body).unwrap();
        assert_eq!(
            &asked.body[..],
            br#"{"model":"m","messages":[{"role":"user"}]}"#
        );
        let again = r#"{"model":"m","messages":[{"role":"user"}],"seed":7}"#;
        assert_eq!(
            question(Route::ChatCompletions, again).unwrap().key,
            asked.key
        );
        let other = r#"{"model":"m","messages":[{"role":"user"}],"tools":[]}"#;
        assert_ne!(
            question(Route::ChatCompletions, other).unwrap().key,
            asked.key
        );
    }

    #[test]
    fn what_an_engine_could_not_answer_is_not_asked() {
        let huge = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(MOST));
        for (route, body) in [
            (Route::Completions, r#"{"prompt":[1,2]}"#),
            (Route::Completions, r#"{"prompt":["a"]}"#),
            (Route::Completions, r#"{"prompt":"a","suffix":"b"}"#),
            (Route::ChatCompletions, r#"{"messages":[],"documents":[]}"#),
            (
                Route::ChatCompletions,
                r#"{"messages":[],"tools":[],"tool_choice":"none"}"#,
            ),
            (Route::ChatCompletions, r#"{"messages":7}"#),
            (Route::PassThrough("/v1/embeddings"), r#"{"prompt":"a"}"#),
            (Route::Completions, &huge),
        ] {
            assert!(question(route, body).is_none(), "{body:.60}");
        }
    }
}
