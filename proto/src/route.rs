//! The routes of engines that clients may reach through Baton.
//!
//! An engine's HTTP server also has routes that administer it (adapters, cache resets, sleep); so what passes is a list,
//! and both router and sidecar hold to it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind, Source, Stage};

/// A POST route of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// Another route, always served by one engine alone. The path is one of [`PASS_THROUGH`].
    PassThrough(&'static str),
}

/// Routes that are served by one engine alone, untouched.
pub const PASS_THROUGH: &[&str] = &[
    "/v1/classify",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/rerank",
    "/v1/responses",
    "/v1/score",
];

impl Route {
    /// Path on the engine.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::PassThrough(path) => path,
        }
    }
}

impl FromStr for Route {
    type Err = Error;

    fn from_str(path: &str) -> Result<Self, Error> {
        let known = [Self::ChatCompletions, Self::Completions].into_iter();
        let mut all = known.chain(PASS_THROUGH.iter().map(|path| Self::PassThrough(path)));
        all.find(|route| route.path() == path).ok_or_else(|| {
            let shown: String = path.chars().take(100).collect();
            Error::new(
                ErrorKind::NotFound,
                Source::Client,
                Stage::Request,
                format!("there is no route {shown}"),
            )
        })
    }
}

impl Serialize for Route {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.path())
    }
}

impl<'de> Deserialize<'de> for Route {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_paths_are_routes() {
        assert_eq!("/v1/chat/completions".parse(), Ok(Route::ChatCompletions));
        assert_eq!(
            "/v1/embeddings".parse(),
            Ok(Route::PassThrough("/v1/embeddings"))
        );
        for closed in [
            "/v1/load_lora_adapter",
            "/reset_prefix_cache",
            "/v1/completions/",
            "//v1/completions",
            "/v1/../x",
            "",
        ] {
            assert_eq!(
                closed.parse::<Route>().unwrap_err().kind,
                ErrorKind::NotFound,
                "{closed}"
            );
        }
    }
}
