//! Small questions to the engine's HTTP server: its version, its models, its metrics, how it tokenises.

use std::collections::BTreeMap;

use baton_proto::Error;
use baton_sidecar_core::questions::{Questions, strange};
use baton_sidecar_core::tokenisation;
use http::HeaderValue;
use serde::Deserialize;

use crate::follow::source::EventsConfig;

/// The engine's HTTP server.
#[derive(Debug, Clone)]
pub struct EngineHttp(Questions);

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
    pub fn new(base_url: &str, authorization: Option<HeaderValue>) -> Self {
        Self(Questions::new(base_url, authorization))
    }

    /// Whether the engine says it is well.
    pub async fn health(&self) -> Result<(), Error> {
        self.0.get("/health").await.map(|_| ())
    }

    /// Its version.
    pub async fn version(&self) -> Result<String, Error> {
        self.0.version().await
    }

    /// What it serves.
    pub async fn models(&self) -> Result<Vec<Model>, Error> {
        self.0.models().await
    }

    /// Where its KV events are to be had, by rank (0.32.0; older versions do not say).
    pub async fn event_sources(&self) -> Result<BTreeMap<String, EventsConfig>, Error> {
        self.0.get_json("/kv_event_sources").await
    }

    /// Has it forget its prefix cache; only in dev mode.
    pub async fn reset_prefix_cache(&self) -> Result<(), Error> {
        let asked = self.0.post("/reset_prefix_cache", String::new());
        asked.await.map(|_| ())
    }

    /// Its metrics page.
    pub async fn metrics(&self) -> Result<String, Error> {
        let page = self.0.get("/metrics").await?;
        String::from_utf8(page).map_err(|_| strange("/metrics", "is not text"))
    }

    /// A digest of how the engine tokenises; `None` if it does not say.
    pub async fn tokenisation(&self, model: &str) -> Option<String> {
        tokenisation::digest(model, |request| self.tokens(request)).await
    }

    /// The tokens that it makes of a request.
    pub async fn tokens(&self, request: String) -> Result<Vec<u32>, Error> {
        self.0.tokens("/tokenize", request).await
    }
}
