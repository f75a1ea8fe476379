//! Small questions to the engine's HTTP server: what it is, what it serves, how it tokenises.

use baton_proto::Error;
use baton_sidecar_core::questions::Questions;
use baton_sidecar_core::tokenisation;
use http::HeaderValue;
use serde::Deserialize;

use crate::load::Loads;
use crate::server_info::ServerInfo;

/// The engine's HTTP server.
#[derive(Debug, Clone)]
pub struct EngineHttp(Questions);

/// A model that the engine serves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// The base model of a LoRA adapter.
    #[serde(default)]
    pub parent: Option<String>,
    /// Longest sequence in tokens.
    #[serde(default)]
    pub max_model_len: Option<u32>,
}

impl EngineHttp {
    /// Questions go to this base URL.
    pub fn new(base_url: &str, authorization: Option<HeaderValue>) -> Self {
        Self(Questions::new(base_url, authorization))
    }

    /// Whether the engine takes requests. `/health` would have it generate a token, which takes a second.
    pub async fn ready(&self) -> Result<(), Error> {
        self.0.get("/ready").await.map(|_| ())
    }

    /// What it says of itself, as far as it concerns anybody.
    pub async fn server_info(&self) -> Result<ServerInfo, Error> {
        self.0.get_json("/server_info").await
    }

    /// What it serves.
    pub async fn models(&self) -> Result<Vec<Model>, Error> {
        self.0.models().await
    }

    /// The tokens that it makes of a request.
    pub async fn tokens(&self, request: String) -> Result<Vec<u32>, Error> {
        self.0.tokens("/tokenize", request).await
    }

    /// A digest of how it tokenises; `None` if it does not say.
    pub async fn tokenisation(&self, model: &str) -> Option<String> {
        tokenisation::digest(model, |request| self.tokens(request)).await
    }

    /// How busy it is.
    pub async fn loads(&self) -> Result<Loads, Error> {
        self.0.get_json("/v1/loads?include=all").await
    }

    /// Its metrics page, if it has one.
    pub async fn metrics(&self, server: &ServerInfo) -> Option<String> {
        if server.enable_metrics != Some(true) {
            return None;
        }
        let page = self.0.get("/metrics").await.ok()?;
        String::from_utf8(page).ok()
    }

    /// Has it forget its cache. It does so only while it is idle.
    pub async fn flush_cache(&self) -> Result<(), Error> {
        self.0.post("/flush_cache", String::new()).await.map(|_| ())
    }

    /// Ends requests whose id begins like this. The engine always says that it did.
    pub async fn abort(&self, rid: &str) -> Result<(), Error> {
        let body = serde_json::json!({ "rid": rid }).to_string();
        self.0.post("/abort_request", body).await.map(|_| ())
    }
}
