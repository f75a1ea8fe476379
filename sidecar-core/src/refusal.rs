//! Sentences of refusal that the sidecars of several engines need.

use baton_proto::{Error, ErrorKind, Retry, Source, Stage};

/// Why an engine, or something of it, cannot be used.
pub fn unusable(why: &str) -> Error {
    Error::new(ErrorKind::Incompatible, Source::Engine, Stage::Fleet, why)
}

/// Why a ticket cannot be used, of which the engine has seen nothing yet.
pub fn bad_metadata(why: &str) -> Error {
    let message = format!("the ticket's transfer metadata cannot be used: {why}");
    Error::new(
        ErrorKind::TicketRefused,
        Source::Router,
        Stage::Decode,
        message,
    )
    .retry(Retry::Safe)
}

/// An answer to a prefill that makes no sense. The engine may go on with it, or hold KV.
pub fn strange_prefill(why: &str) -> Error {
    Error::new(ErrorKind::Protocol, Source::Engine, Stage::Prefill, why).retry(Retry::AfterCancel)
}
