//! Bodies: the one type both directions use, and reading one whole within bounds.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body type of everything Baton sends.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body of these bytes.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(never).boxed_unsync()
}

/// No body.
pub fn empty() -> Body {
    full(Bytes::new())
}

fn never(never: Infallible) -> BoxError {
    match never {}
}

/// A body of several pieces that are sent one after the other without being copied together.
#[derive(Debug, Clone)]
pub struct Parts(VecDeque<Bytes>);

impl Parts {
    /// A body of these pieces.
    pub fn body(parts: impl IntoIterator<Item = Bytes>) -> Body {
        Self(parts.into_iter().filter(|part| !part.is_empty()).collect()).boxed_unsync()
    }
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

/// Why a body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum BadBody {
    /// Longer than allowed.
    #[error("is longer than {0} bytes")]
    TooLarge(usize),
    /// Not complete in time.
    #[error("did not arrive within {:.1} s", .0.as_secs_f64())]
    TooSlow(Duration),
    /// The connection broke or its framing was wrong.
    #[error("broke off: {0}")]
    Broken(String),
}

/// Reads a body whole, up to `limit` bytes and within `time`.
pub async fn read_limited<B>(body: B, limit: usize, time: Duration) -> Result<Bytes, BadBody>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let stated = body.size_hint().lower();
    if stated > limit as u64 {
        return Err(BadBody::TooLarge(limit));
    }
    let whole = tokio::time::timeout(time, join(body, limit));
    whole.await.unwrap_or(Err(BadBody::TooSlow(time)))
}

/// Frames are joined as they come. Kept apart, a body in chunks of one byte would cost thirty times its size.
async fn join<B>(body: B, limit: usize) -> Result<Bytes, BadBody>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = std::pin::pin!(body);
    // Most bodies come in one frame, which is not copied.
    let mut only = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BadBody::Broken(chain(error.into().as_ref())))?;
        let data = frame.into_data().unwrap_or_default();
        if data.len() > limit - only.len() - joined.len() {
            return Err(BadBody::TooLarge(limit));
        }
        if joined.is_empty() && only.is_empty() {
            only = data;
        } else {
            joined.extend_from_slice(&std::mem::take(&mut only));
            joined.extend_from_slice(&data);
        }
    }
    Ok(if joined.is_empty() {
        only
    } else {
        joined.freeze()
    })
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
