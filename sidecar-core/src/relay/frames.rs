//! The frames of a prefill's answer, and the router's end of them.

use std::convert::Infallible;

use baton_daemon::http::Body;
use baton_proto::call::{CONTENT_TYPE, PrefillFrame};
use baton_proto::{TicketId, frame};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::oneshot;

use crate::ledger::Ledger;

/// Both ends of the frames behind the first.
pub(super) fn listener(ledger: &Ledger) -> (oneshot::Sender<Vec<PrefillFrame>>, Listener) {
    let (rest, waiting) = oneshot::channel();
    let ledger = ledger.clone();
    let listener = Listener {
        rest: waiting,
        ledger,
    };
    (rest, listener)
}

/// An answer that begins with `first` at once and ends with the frames that the listener waits for. Each of the two is
/// one piece of body, written in one go with the head before it or the end behind it.
pub(super) fn answer(first: &PrefillFrame, listener: Listener) -> Response<Body> {
    let first = std::iter::once(frame::encode(first));
    let rest = futures_util::stream::once(listener.rest()).filter_map(std::future::ready);
    let pieces = futures_util::stream::iter(first).chain(rest);
    let body = StreamBody::new(pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
    let mut response = Response::new(body.map_err(Into::into).boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(CONTENT_TYPE));
    response
}

/// The router's end of the frames. A ticket that is still in it when the router goes away was taken by nobody.
pub(super) struct Listener {
    rest: oneshot::Receiver<Vec<PrefillFrame>>,
    ledger: Ledger,
}

impl Listener {
    /// The frames after the first, once they are there; `None` if the leg ended without a word.
    async fn rest(mut self) -> Option<Bytes> {
        let frames = (&mut self.rest).await.ok()?;
        let mut piece = BytesMut::new();
        for frame in &frames {
            piece.extend_from_slice(&frame::encode(frame));
        }
        Some(piece.freeze())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.rest.close();
        if let Some(id) = self.rest.try_recv().ok().as_deref().and_then(ticket_in) {
            self.ledger.withdraw(id);
        }
    }
}

pub(super) fn ticket_in(frames: &[PrefillFrame]) -> Option<&TicketId> {
    frames.iter().find_map(|frame| match frame {
        PrefillFrame::Ready { ticket } => Some(&ticket.id),
        _ => None,
    })
}
