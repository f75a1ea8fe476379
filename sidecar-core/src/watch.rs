//! The watch stream's server side: who we are, how we are, how busy we are, what the engine's KV cache holds, and signs of
//! life.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::Body;
use baton_proto::call::CONTENT_TYPE;
use baton_proto::watch::WatchFrame;
use baton_proto::{Epoch, RouterId, frame};
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use crate::core::Core;
use crate::engine::Engine;
use crate::routers::Watching;
use crate::status::Published;
use crate::view::Snapshot;

/// Longest silence of a watch stream. Routers take three of these without a frame for a dead sidecar.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// Bytes of journal that are written at once, about.
const AT_ONCE: usize = 256 << 10;

struct Watcher<E> {
    core: Arc<Core<E>>,
    changes: Receiver<Published>,
    news: Receiver<u64>,
    told: Option<Published>,
    place: Place,
    next_beat: Instant,
    _watching: Option<Watching>,
}

/// Who watches, and from where on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The router, if it says so.
    pub router: Option<RouterId>,
    /// The journal entry that it has seen last, and in which life of the sidecar.
    pub after: Option<(Epoch, u64)>,
}

/// How far a watcher knows the view.
enum Place {
    /// Not at all.
    Nowhere,
    /// It is being sent this.
    In(Snapshot),
    /// Up to this journal entry.
    After(u64),
}

/// Opens a watch stream.
pub fn stream<E: Engine>(core: &Arc<Core<E>>, start: Start) -> Response<Body> {
    let place = match start.after {
        Some((epoch, seq)) if epoch == core.epoch => Place::After(seq),
        _ => Place::Nowhere,
    };
    let watcher = Watcher {
        core: Arc::clone(core),
        changes: core.subscribe(),
        news: core.view.subscribe(),
        told: None,
        place,
        next_beat: Instant::now(),
        _watching: start.router.map(|router| core.routers.watches(router)),
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

impl Start {
    /// Reads `router=…&epoch=…&seq=…` of a watch request.
    pub fn of_query(query: Option<&str>) -> Self {
        let value = |name: &str| {
            let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
            let mut values = pairs.filter(|(key, _)| *key == name);
            values.next().map(|(_, value)| value)
        };
        let number = |name: &str| -> Option<u64> { value(name)?.parse().ok() };
        Self {
            router: value("router").and_then(|id| id.parse().ok()),
            after: number("epoch").map(Epoch).zip(number("seq")),
        }
    }
}

impl<E> Drop for Watcher<E> {
    fn drop(&mut self) {
        self.core.unwatched.notify_waiters();
    }
}

impl<E: Engine> Watcher<E> {
    /// The next frames. Bounded, so that a stream whose reader is slow takes no memory: the rest waits where it is.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut bytes = BytesMut::new();
            self.status(&mut bytes);
            self.advance(&mut bytes);
            if !bytes.is_empty() {
                return Some(bytes.freeze());
            }
            tokio::select! {
                () = self.core.closing.cancelled() => return None,
                changed = self.changes.changed() => changed.ok()?,
                news = self.news.changed() => news.ok()?,
                () = tokio::time::sleep_until(self.next_beat) => {}
            }
        }
    }

    /// What differs between what a watcher was told of the sidecar and what is.
    fn status(&mut self, bytes: &mut BytesMut) {
        let now = self.changes.borrow_and_update().clone();
        let told = self.told.as_ref();
        let mut say = |frame| bytes.extend_from_slice(&frame::encode(&frame));
        if told.is_none_or(|told| told.hello != now.hello) {
            say(WatchFrame::Hello(now.hello.clone()));
        }
        if told.is_none_or(|told| told.state != now.state) {
            say(WatchFrame::State { state: now.state });
        }
        if told.is_none_or(|told| told.load != now.load) {
            say(WatchFrame::Load(now.load.clone()));
        }
        self.told = Some(now);
    }

    /// Some more of the view, and a heartbeat when it is time for one and there is no more.
    fn advance(&mut self, bytes: &mut BytesMut) {
        let view = &self.core.view;
        if matches!(self.place, Place::Nowhere) {
            self.place = Place::In(view.snapshot());
        }
        if let Place::In(snapshot) = &mut self.place {
            match snapshot.next() {
                Some(part) => return bytes.extend_from_slice(&part),
                None => self.place = Place::After(snapshot.seq),
            }
        }
        let Place::After(seq) = &mut self.place else {
            return;
        };
        let Some(more) = view.after(*seq, AT_ONCE) else {
            // The journal went on without this watcher.
            self.place = Place::Nowhere;
            return self.advance(bytes);
        };
        *seq = more.last;
        for entry in &more.entries {
            bytes.extend_from_slice(entry);
        }
        if let Some(digests) = more.digests
            && self.next_beat <= Instant::now()
        {
            self.next_beat = Instant::now() + HEARTBEAT;
            let seq = more.last;
            bytes.extend_from_slice(&frame::encode(&WatchFrame::Heartbeat { seq, digests }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_may_say_who_it_is_and_where_it_stands() {
        let after = |query| Start::of_query(Some(query)).after;
        assert_eq!(after("epoch=7&seq=3"), Some((Epoch(7), 3)));
        assert_eq!(after("seq=3&x=y&epoch=7"), Some((Epoch(7), 3)));
        for unclear in ["", "epoch=7", "epoch=7&seq=-1", "epoch=7&seq=x"] {
            assert_eq!(after(unclear), None, "{unclear:?}");
        }
        let named = Start::of_query(Some("router=r-1&epoch=7&seq=3"));
        assert_eq!(named.router, Some("r-1".parse().unwrap()));
        assert_eq!(named.after, Some((Epoch(7), 3)));
        for nobody in [None, Some("router="), Some("router=a/b"), Some("epoch=7")] {
            assert_eq!(Start::of_query(nobody).router, None, "{nobody:?}");
        }
    }
}
