//! Small questions to the engine's HTTP server, and the two destructive ones: KV events and statistics.

use std::time::Duration;

use baton_proto::{Error, ErrorKind};
use baton_sidecar_core::questions::Questions;
use baton_sidecar_core::tokenisation;
use serde::Deserialize;
use serde_json::json;

use crate::refusal::unusable;
use crate::server_info::ServerInfo;
use crate::source::Source;

/// Longest that a poll for events may take. 1.2 goes on answering as long as an event comes within two seconds of the one
/// before, and a poll that is given up loses what it would have told.
const POLL: Duration = Duration::from_secs(60);

/// Largest answer to such a poll. Each token is about 70 bytes of JSON.
const MOST_EVENTS: usize = 512 << 20;

/// The engine's HTTP server.
#[derive(Debug, Clone)]
pub struct EngineHttp {
    small: Questions,
    events: Questions,
}

/// A model that the engine serves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Model {
    /// Its name.
    pub id: String,
}

impl EngineHttp {
    /// Questions go to this base URL.
    pub fn new(base_url: &str) -> Self {
        let small = Questions::new(base_url, None);
        Self {
            events: small.clone().within(POLL, MOST_EVENTS),
            small,
        }
    }

    /// Whether the engine answers. That says nothing of whether it gets on with its work.
    pub async fn health(&self) -> Result<(), Error> {
        self.small.get("/health").await.map(|_| ())
    }

    /// Its version.
    pub async fn version(&self) -> Result<String, Error> {
        self.small.version().await
    }

    /// What it says of itself; nothing, where it has no such route.
    pub async fn server_info(&self) -> Result<ServerInfo, Error> {
        match self.small.get_json("/server_info").await {
            Err(error) if error.kind == ErrorKind::EngineRejected => Ok(ServerInfo::default()),
            answered => answered,
        }
    }

    /// What it serves.
    pub async fn models(&self) -> Result<Vec<Model>, Error> {
        self.small.models().await
    }

    /// The tokens that it makes of a text (after 1.2). It has no such question for chats.
    pub async fn tokens(&self, request: String) -> Result<Vec<u32>, Error> {
        #[derive(Deserialize)]
        struct Text {
            prompt: Option<String>,
        }
        let text: Text = serde_json::from_str(&request)
            .map_err(|error| unusable(&format!("this cannot be tokenised: {error}")))?;
        let Some(prompt) = text.prompt else {
            return Err(no_chats());
        };
        let asked = json!({ "prompt": prompt }).to_string();
        self.small.tokens("/_internal/tokenize", asked).await
    }

    /// A digest of how it tokenises; `None` if it does not say.
    pub async fn tokenisation(&self, model: &str) -> Option<String> {
        tokenisation::digest(model, |request| self.tokens(request)).await
    }
}

impl Source for EngineHttp {
    async fn take_events(&self) -> Result<Vec<u8>, Error> {
        self.events.post("/kv_cache_events", String::new()).await
    }

    async fn take_statistics(&self) -> Result<Vec<u8>, Error> {
        self.small.get("/metrics").await
    }
}

fn no_chats() -> Error {
    let mut error = unusable("TensorRT-LLM tokenises texts only when it is asked");
    error.kind = ErrorKind::EngineRejected;
    error
}
