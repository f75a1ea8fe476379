//! Server-sent events as they pass: cut into whole events, bytes untouched.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::body::chain;

/// Longest event, in bytes. One with many logprobs is far below.
const MAX_EVENT: usize = 16 << 20;

/// Why a stream of events cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BrokenStream {
    /// The connection broke, or ended inside an event.
    #[error("{0}")]
    Broken(String),
    /// Nothing came for too long.
    #[error("nothing came for {:.1} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// One event is absurdly long.
    #[error("an event is longer than {MAX_EVENT} bytes")]
    TooLong,
}

/// Reads whole events from a body.
#[derive(Debug)]
pub struct EventReader {
    body: Incoming,
    pending: BytesMut,
    searched: usize,
}

impl EventReader {
    /// Reads the events of this body.
    pub fn new(body: Incoming) -> Self {
        Self {
            body,
            pending: BytesMut::new(),
            searched: 0,
        }
    }

    /// All whole events that are there, at least one, exactly as they came; `None` at the end of the stream. Waits at
    /// most `patience` for bytes. A partial event is kept back.
    pub async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, BrokenStream> {
        loop {
            let Ok(frame) = tokio::time::timeout(patience, self.body.frame()).await else {
                return Err(BrokenStream::Stalled(patience));
            };
            let data = match frame {
                None if self.pending.is_empty() => return Ok(None),
                None => return Err(BrokenStream::Broken("it ended inside an event".to_owned())),
                Some(Err(error)) => return Err(BrokenStream::Broken(chain(&error))),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            if let Some(events) = self.add(data)? {
                return Ok(Some(events));
            }
        }
    }

    fn add(&mut self, data: Bytes) -> Result<Option<Bytes>, BrokenStream> {
        // An engine writes one event a chunk: nothing to keep, nothing to copy.
        if self.pending.is_empty() && last_end(&data, 0) == Some(data.len()) {
            return Ok(Some(data));
        }
        self.pending.extend_from_slice(&data);
        // An end may begin in bytes that were searched before, at most three of them.
        let end = last_end(&self.pending, self.searched.saturating_sub(3));
        if let Some(end) = end {
            self.searched = 0;
            return Ok(Some(self.pending.split_to(end).freeze()));
        }
        self.searched = self.pending.len();
        if self.pending.len() > MAX_EVENT {
            Err(BrokenStream::TooLong)
        } else {
            Ok(None)
        }
    }
}

/// Where the last whole event ends, looking at `bytes[from..]`.
fn last_end(bytes: &[u8], from: usize) -> Option<usize> {
    let tail = bytes.get(from..)?;
    let [lf, crlf] = [b"\n\n".as_slice(), b"\r\n\r\n"]
        .map(|end| memchr::memmem::rfind(tail, end).map(|at| from + at + end.len()));
    lf.max(crlf)
}

/// The events in a run of whole events, each with its end.
pub fn events(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let end_of = |bytes: &[u8], end: &[u8]| {
            memchr::memmem::find(bytes, end).map_or(bytes.len(), |at| at + end.len())
        };
        // The second search ends where the first one did, or a run of many events would be searched again for each.
        let lf = end_of(bytes, b"\n\n");
        let end = end_of(&bytes[..lf], b"\r\n\r\n");
        let (event, rest) = bytes.split_at(end);
        bytes = rest;
        Some(event)
    })
}

/// The data of an event, all of its `data` lines joined; `None` for comments and events without data, which no client sees.
pub fn data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut lines = lines(event).filter_map(|line| line.strip_prefix(b"data:"));
    let first = lines.next()?.trim_ascii();
    let Some(second) = lines.next() else {
        return (!first.is_empty()).then_some(Cow::Borrowed(first));
    };
    let mut joined = first.to_vec();
    for line in std::iter::once(second).chain(lines) {
        joined.push(b'\n');
        joined.extend_from_slice(line.trim_ascii());
    }
    Some(Cow::Owned(joined))
}

fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
        let (line, rest) = bytes.split_at(end);
        bytes = rest;
        Some(line)
    })
}

/// An event with this data.
pub fn event(data: &str) -> Bytes {
    format!("data: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_at_their_ends_only() {
        let run = b"data: a\n\n: ping\n\ndata: b\r\n\r\nevent: x\ndata: c\n\n";
        let cut: Vec<&[u8]> = events(run).collect();
        assert_eq!(cut.concat(), run);
        let data_of = |event| data(event).map(Cow::into_owned);
        assert_eq!(
            cut.into_iter().map(data_of).collect::<Vec<_>>(),
            [
                Some(b"a".to_vec()),
                None,
                Some(b"b".into()),
                Some(b"c".into())
            ]
        );
        let two_lines = b"data: {\nid: 1\ndata:}\r\n\r\n";
        assert_eq!(data(two_lines).as_deref(), Some(&b"{\n}"[..]));
        assert_eq!(last_end(run, 0), Some(run.len()));
        assert_eq!(last_end(b"data: a\n\ndata", 0), Some(9));
        assert_eq!(last_end(b"data: a\n", 0), None);
    }
}
