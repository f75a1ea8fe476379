//! Small questions to the engine's HTTP server.

use std::time::Duration;

use baton_daemon::Exit;
use baton_daemon::http::{Client, ClientLimits, full, read_limited};
use baton_proto::{Error, ErrorKind, Source, Stage};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Longest time for one small question.
const PATIENCE: Duration = Duration::from_secs(5);

/// Largest answer; a metrics page is about 100 kB.
const MAX_ANSWER: usize = 16 << 20;

/// An engine's HTTP server that is asked small questions.
#[derive(Debug, Clone)]
pub struct Questions {
    client: Client,
    base_url: String,
    authorization: Option<HeaderValue>,
    patience: Duration,
    most: usize,
}

impl Questions {
    /// Questions go to this base URL.
    pub fn new(base_url: &str, authorization: Option<HeaderValue>) -> Self {
        let limits = ClientLimits {
            connect: Duration::from_secs(2),
            idle: Duration::from_secs(3),
        };
        Self {
            client: Client::new(limits),
            base_url: base_url.to_owned(),
            authorization,
            patience: PATIENCE,
            most: MAX_ANSWER,
        }
    }

    /// The same for questions that take longer, or have larger answers: up to `most` bytes.
    #[must_use]
    pub fn within(self, patience: Duration, most: usize) -> Self {
        Self {
            patience,
            most,
            ..self
        }
    }

    /// A JSON answer.
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let answer = self.get(path).await?;
        serde_json::from_slice(&answer).map_err(|error| strange(path, &error.to_string()))
    }

    /// What it serves, as its API lists it.
    pub async fn models<Model: DeserializeOwned>(&self) -> Result<Vec<Model>, Error> {
        #[derive(Deserialize)]
        struct Models<Model> {
            data: Vec<Model>,
        }
        Ok(self.get_json::<Models<Model>>("/v1/models").await?.data)
    }

    /// Its version, where it has a route for that.
    pub async fn version(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        Ok(self.get_json::<Version>("/version").await?.version)
    }

    /// The tokens that it makes of a request.
    pub async fn tokens(&self, path: &str, request: String) -> Result<Vec<u32>, Error> {
        #[derive(Deserialize)]
        struct Tokens {
            tokens: Vec<u32>,
        }
        let answer = self.post(path, request).await?;
        let tokens: Tokens =
            serde_json::from_slice(&answer).map_err(|error| strange(path, &error.to_string()))?;
        Ok(tokens.tokens)
    }

    /// An answer.
    pub async fn get(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.ask(Method::GET, path, String::new()).await
    }

    /// An answer to a JSON body.
    pub async fn post(&self, path: &str, body: String) -> Result<Vec<u8>, Error> {
        self.ask(Method::POST, path, body).await
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
        let sent = self.client.send(request, self.patience).await;
        let response = sent.map_err(|error| error.into_error(Source::Engine, Stage::Fleet))?;
        let status = response.status();
        let body = read_limited(response.into_body(), self.most, self.patience).await;
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

/// An answer that cannot be read.
pub fn strange(path: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Protocol,
        Source::Engine,
        Stage::Fleet,
        format!("the engine's answer to {path} is strange: {why}"),
    )
}

/// What an engine with an API key wants in the `authorization` header.
pub fn bearer(key: &str) -> Result<HeaderValue, Exit> {
    let mut value = HeaderValue::try_from(format!("Bearer {key}"))
        .map_err(|_| Exit::usage("the engine's API key has characters that no header can carry"))?;
    value.set_sensitive(true);
    Ok(value)
}
