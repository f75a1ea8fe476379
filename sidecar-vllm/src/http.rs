//! Small questions to the engine's HTTP server: its version, its models, its metrics, how it tokenises.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_daemon::http::{Client, full, read_limited};
use baton_proto::{Error, ErrorKind, Source, Stage};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use serde::Deserialize;
use serde_json::json;

use crate::follow::source::EventsConfig;

/// Longest time for one small question.
const PATIENCE: Duration = Duration::from_secs(5);

/// Largest answer; a metrics page is about 100 kB.
const MAX_ANSWER: usize = 16 << 20;

/// The engine's HTTP server.
#[derive(Debug, Clone)]
pub struct EngineHttp {
    client: Client,
    base_url: String,
    authorization: Option<HeaderValue>,
}

/// A model that the engine serves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// Where its files are: a directory, or a name in a hub.
    #[serde(default)]
    pub root: Option<String>,
    /// The base model of a LoRA adapter.
    #[serde(default)]
    pub parent: Option<String>,
    /// Longest sequence in tokens.
    #[serde(default)]
    pub max_model_len: Option<u32>,
}

impl EngineHttp {
    /// Questions go to this base URL.
    pub fn new(client: Client, base_url: &str, authorization: Option<HeaderValue>) -> Self {
        Self {
            client,
            base_url: base_url.to_owned(),
            authorization,
        }
    }

    /// Whether the engine says it is well.
    pub async fn health(&self) -> Result<(), Error> {
        self.get("/health").await.map(|_| ())
    }

    /// Its version.
    pub async fn version(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        Ok(self.get_json::<Version>("/version").await?.version)
    }

    /// What it serves.
    pub async fn models(&self) -> Result<Vec<Model>, Error> {
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        Ok(self.get_json::<Models>("/v1/models").await?.data)
    }

    /// Where its KV events are to be had, by rank (0.32.0; older versions do not say).
    pub async fn event_sources(&self) -> Result<BTreeMap<String, EventsConfig>, Error> {
        self.get_json("/kv_event_sources").await
    }

    /// Has it forget its prefix cache; only in dev mode.
    pub async fn reset_prefix_cache(&self) -> Result<(), Error> {
        let asked = self.ask(Method::POST, "/reset_prefix_cache", String::new());
        asked.await.map(|_| ())
    }

    /// Its metrics page.
    pub async fn metrics(&self) -> Result<String, Error> {
        let page = self.get("/metrics").await?;
        String::from_utf8(page).map_err(|_| strange("/metrics", "is not text"))
    }

    /// A digest of how the engine turns a small text and a small chat into tokens. Two engines that differ here would
    /// give one request prompts of different lengths, which ends the decode engine. `None` if the engine does not say.
    pub async fn tokenisation(&self, model: &str) -> Option<String> {
        let text =
            json!({"model": model, "prompt": "Prefill \u{e9}\u{4e2d}\n\t0123456789  and decode."});
        let chat = json!({"model": model, "add_generation_prompt": true, "messages": [
            {"role": "system", "content": "You pass the baton."},
            {"role": "user", "content": "Where is it?"},
        ]});
        let mut digest = blake3::Hasher::new();
        for (question, must) in [(text, true), (chat, false)] {
            match self.tokens(question.to_string()).await {
                Ok(tokens) => digest.update(format!("{tokens:?}").as_bytes()),
                // A model without a chat template refuses chats: that is a fact about it as well.
                Err(error) if !must && error.kind == ErrorKind::EngineRejected => {
                    digest.update(b"no chat")
                }
                Err(_) => return None,
            };
        }
        Some(digest.finalize().to_hex()[..16].to_owned())
    }

    /// The tokens that it makes of a request.
    pub async fn tokens(&self, request: String) -> Result<Vec<u32>, Error> {
        #[derive(Deserialize)]
        struct Tokens {
            tokens: Vec<u32>,
        }
        let answer = self.ask(Method::POST, "/tokenize", request).await?;
        let tokens: Tokens = serde_json::from_slice(&answer)
            .map_err(|error| strange("/tokenize", &error.to_string()))?;
        Ok(tokens.tokens)
    }

    async fn get_json<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let answer = self.get(path).await?;
        serde_json::from_slice(&answer).map_err(|error| strange(path, &error.to_string()))
    }

    async fn get(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.ask(Method::GET, path, String::new()).await
    }

    async fn ask(&self, method: Method, path: &str, body: String) -> Result<Vec<u8>, Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base_url))
            .header(CONTENT_TYPE, "application/json")
            .body(full(body))
            .map_err(|error| strange(path, &error.to_string()))?;
        if let Some(authorization) = &self.authorization {
            request
                .headers_mut()
                .insert(AUTHORIZATION, authorization.clone());
        }
        let sent = self.client.send(request, PATIENCE).await;
        let response = sent.map_err(|error| error.into_error(Source::Engine, Stage::Fleet))?;
        let status = response.status();
        let body = read_limited(response.into_body(), MAX_ANSWER, PATIENCE).await;
        let body = body.map_err(|bad| strange(path, &bad.to_string()))?;
        if status.is_success() {
            return Ok(body.to_vec());
        }
        let kind = if status.is_client_error() {
            ErrorKind::EngineRejected
        } else {
            ErrorKind::EngineFailed
        };
        Err(Error::new(
            kind,
            Source::Engine,
            Stage::Fleet,
            format!("the engine answered {status} to {path}"),
        ))
    }
}

fn strange(path: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Protocol,
        Source::Engine,
        Stage::Fleet,
        format!("the engine's answer to {path} is strange: {why}"),
    )
}
