//! The fleet's shared secret. Routers and sidecars prove themselves with it, and tickets are sealed with it.

use std::fmt;

/// The secret that every router and sidecar of a fleet is given.
#[derive(Clone)]
pub struct FleetToken {
    secret: Secret,
    text: String,
    seal_key: [u8; 32],
}

/// Why a text cannot be the fleet's secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// There is none.
    #[error(
        "there is no fleet token: set BATON_TOKEN to the same secret for all routers and sidecars"
    )]
    Missing,
    /// Guessable, or a mistake such as an unset variable.
    #[error(
        "the fleet token must be at least {} characters; generate one with `openssl rand -hex 32`",
        FleetToken::MIN_LEN
    )]
    TooShort,
    /// It travels in an HTTP header.
    #[error("the fleet token must be printable ASCII without spaces")]
    NotPrintable,
}

impl FleetToken {
    /// Shortest accepted secret, in characters.
    pub const MIN_LEN: usize = 16;

    /// Takes a secret as given by the operator.
    pub fn new(text: &str) -> Result<Self, BadToken> {
        if text.len() < Self::MIN_LEN {
            return Err(BadToken::TooShort);
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(BadToken::NotPrintable);
        }
        Ok(Self {
            secret: Secret::new(text),
            text: text.to_owned(),
            seal_key: blake3::derive_key("baton 2026 ticket seal", text.as_bytes()),
        })
    }

    /// Takes a secret that may not have been given at all.
    pub fn given(text: Option<&str>) -> Result<Self, BadToken> {
        text.map_or(Err(BadToken::Missing), Self::new)
    }

    /// The value of an `authorization` header that carries this secret.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.text)
    }

    /// Whether an `authorization` header carries this secret. Takes the same time for every wrong value of one length.
    pub fn admits(&self, authorization: Option<&[u8]>) -> bool {
        self.secret.is_presented_by(authorization)
    }

    /// The key with which this fleet's tickets are sealed.
    pub fn seal_key(&self) -> &[u8; 32] {
        &self.seal_key
    }
}

/// A secret that others present as a bearer token; only its digest is kept.
#[derive(Clone)]
pub struct Secret(blake3::Hash);

impl Secret {
    /// This text is the secret.
    pub fn new(text: &str) -> Self {
        Self(blake3::hash(text.as_bytes()))
    }

    /// Whether an `authorization` header carries it. Takes the same time for every wrong value of one length.
    pub fn is_presented_by(&self, authorization: Option<&[u8]>) -> bool {
        let presented = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        // Digests are compared in constant time, and say nothing of lengths.
        presented.is_some_and(|presented| blake3::hash(presented) == self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for FleetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_only_its_own_bearer() {
        let token = FleetToken::new("0123456789abcdef").unwrap();
        assert!(token.admits(Some(token.bearer().as_bytes())));
        for wrong in [
            &b"Bearer 0123456789abcdeF"[..],
            b"0123456789abcdef",
            b"Bearer ",
            b"",
            b"bearer 0123456789abcdef",
        ] {
            assert!(!token.admits(Some(wrong)), "{wrong:?}");
        }
        assert!(!token.admits(None));
    }

    #[test]
    fn refuses_what_cannot_be_a_secret_and_never_prints_one() {
        assert_eq!(FleetToken::new("short").unwrap_err(), BadToken::TooShort);
        assert_eq!(
            FleetToken::new("0123456789abcdef\n").unwrap_err(),
            BadToken::NotPrintable
        );
        let token = FleetToken::new("0123456789abcdef").unwrap();
        assert!(!format!("{token:?}").contains("0123"));
    }
}
