//! The watch stream's server side: who we are, how we are, how busy we are, and signs of life.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::Body;
use baton_proto::call::CONTENT_TYPE;
use baton_proto::frame;
use baton_proto::watch::WatchFrame;
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::watch::Receiver;

use crate::core::Core;
use crate::engine::Engine;
use crate::status::Published;

/// Longest silence of a watch stream. Routers take three of these without a frame for a dead sidecar.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

struct Watcher<E> {
    core: Arc<Core<E>>,
    changes: Receiver<Published>,
    told: Option<Published>,
}

/// Opens a watch stream.
pub fn stream<E: Engine>(core: &Arc<Core<E>>) -> Response<Body> {
    let watcher = Watcher {
        core: Arc::clone(core),
        changes: core.subscribe(),
        told: None,
    };
    let frames = futures_util::stream::unfold(watcher, |mut watcher| async {
        let bytes = watcher.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), watcher))
    });
    let mut response = Response::new(StreamBody::new(frames).map_err(Into::into).boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(CONTENT_TYPE));
    response
}

impl<E: Engine> Watcher<E> {
    async fn next(&mut self) -> Option<Bytes> {
        if self.told.is_some() {
            tokio::select! {
                () = self.core.closing.cancelled() => return None,
                changed = self.changes.changed() => changed.ok()?,
                () = tokio::time::sleep(HEARTBEAT) => {}
            }
        }
        let now = self.changes.borrow_and_update().clone();
        let bytes = news(self.told.as_ref(), &now);
        self.told = Some(now);
        Some(bytes)
    }
}

/// What differs between what a watcher was told and what is; a heartbeat if nothing does.
fn news(told: Option<&Published>, now: &Published) -> Bytes {
    let mut frames = Vec::new();
    if told.is_none_or(|told| told.hello != now.hello) {
        frames.push(WatchFrame::Hello(now.hello.clone()));
    }
    if told.is_none_or(|told| told.state != now.state) {
        frames.push(WatchFrame::State { state: now.state });
    }
    if told.is_none_or(|told| told.load != now.load) {
        frames.push(WatchFrame::Load(now.load.clone()));
    }
    if frames.is_empty() {
        frames.push(WatchFrame::Heartbeat {
            seq: 0,
            digests: Vec::new(),
        });
    }
    let mut bytes = BytesMut::new();
    for each in &frames {
        bytes.extend_from_slice(&frame::encode(each));
    }
    bytes.freeze()
}
