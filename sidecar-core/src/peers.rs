//! Calls to other sidecars, about the handoffs between their engines and ours.

use std::time::Duration;

use baton_daemon::http::{Client, ClientLimits, SendError, error_of, full, read_limited};
use baton_proto::token::FleetToken;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage, TicketId};
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Method, Request, Response};

/// Largest answer of another sidecar.
const MOST_ANSWERED: usize = 1 << 20;

/// Other sidecars.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    client: Client,
    bearer: HeaderValue,
}

/// Why a call has no good answer.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Nobody listens there any more.
    pub(crate) refused: bool,
}

impl Peers {
    pub(crate) fn new(token: &FleetToken) -> Self {
        let limits = ClientLimits {
            connect: Duration::from_secs(1),
            idle: Duration::from_secs(30),
        };
        let bearer = HeaderValue::try_from(token.bearer());
        let mut bearer = bearer.unwrap_or_else(|_| HeaderValue::from_static(""));
        bearer.set_sensitive(true);
        Self {
            client: Client::new(limits),
            bearer,
        }
    }

    /// Calls the sidecar at a base URL.
    pub(crate) async fn call(
        &self,
        method: Method,
        sidecar: &str,
        path: &str,
        time: Duration,
    ) -> Result<Bytes, Failed> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{sidecar}{path}"))
            .header(AUTHORIZATION, self.bearer.clone())
            .body(full(Bytes::new()));
        let request = request.map_err(|bad| strange(&bad.to_string()))?;
        let response = self.client.send(request, time).await?;
        let (head, body) = response.into_parts();
        let body = read_limited(body, MOST_ANSWERED, time).await;
        let body = body.map_err(|bad| strange(&bad.to_string()))?;
        match error_of(&Response::from_parts(head, ()), &body) {
            Some(error) => Err(error.into()),
            None => Ok(body),
        }
    }

    /// Calls it about a ticket.
    pub(crate) async fn ticket(
        &self,
        sidecar: &str,
        id: &TicketId,
        verb: &str,
        time: Duration,
    ) -> Result<Bytes, Failed> {
        let path = format!("{}{id}/{verb}", baton_proto::call::path::TICKETS);
        self.call(Method::POST, sidecar, &path, time).await
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            refused: false,
        }
    }
}

impl From<SendError> for Failed {
    fn from(failed: SendError) -> Self {
        Self {
            refused: failed.refused,
            error: failed.into_error(Source::Sidecar, Stage::Handoff),
        }
    }
}

/// An answer that makes no sense.
pub(crate) fn strange(why: &str) -> Error {
    Error::new(ErrorKind::Protocol, Source::Sidecar, Stage::Handoff, why).retry(Retry::No)
}
