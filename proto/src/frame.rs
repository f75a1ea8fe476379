//! Frames: MessagePack with named fields, each after its length as u32 big-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

/// Longest frame, in bytes. A snapshot chunk or a ticket is far below; a longer one is a broken or hostile peer.
pub const MAX_FRAME: usize = 8 << 20;

/// Why bytes are no frame of this protocol.
#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    /// Longer than [`MAX_FRAME`].
    #[error("a frame is longer than {MAX_FRAME} bytes")]
    TooLong,
    /// The bytes ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
    /// Not the expected message.
    #[error("a frame could not be decoded: {0}")]
    Content(#[from] rmp_serde::decode::Error),
}

/// Encodes one message as MessagePack with named fields, without a length.
pub fn to_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    // Only a `Serialize` that fails by itself or a map of unknown length can fail here; no type of this crate has one.
    rmp_serde::to_vec_named(message).expect("protocol types always encode")
}

/// Decodes one message.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadFrame> {
    if bytes.len() > MAX_FRAME {
        return Err(BadFrame::TooLong);
    }
    Ok(rmp_serde::from_slice(bytes)?)
}

/// Encodes one message as a frame.
pub fn encode<T: Serialize>(message: &T) -> Bytes {
    let content = to_bytes(message);
    let mut frame = BytesMut::with_capacity(content.len() + 4);
    frame.put_u32(u32::try_from(content.len()).unwrap_or(u32::MAX));
    frame.put_slice(&content);
    frame.freeze()
}

/// Takes frames out of a stream of bytes, however it is cut.
#[derive(Debug)]
pub struct FrameReader {
    codec: LengthDelimitedCodec,
    buffer: BytesMut,
}

impl Default for FrameReader {
    fn default() -> Self {
        let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_FRAME).new_codec();
        Self { codec, buffer: BytesMut::new() }
    }
}

impl FrameReader {
    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one. After an error the stream is useless.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BadFrame> {
        let frame = self.codec.decode(&mut self.buffer).map_err(|_| BadFrame::TooLong)?;
        frame.map(|frame| from_bytes(&frame)).transpose()
    }

    /// To be called when the stream has ended: a partial frame is an error.
    pub fn finish(&self) -> Result<(), BadFrame> {
        if self.buffer.is_empty() { Ok(()) } else { Err(BadFrame::Truncated) }
    }
}

/// A call's body: one frame with the head, then the client's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<Head> {
    /// Baton's part.
    pub head: Head,
    /// The client's bytes.
    pub body: Bytes,
}

impl<Head: Serialize + DeserializeOwned> Envelope<Head> {
    /// Reads an envelope. The client's bytes are not copied.
    pub fn decode(mut bytes: Bytes) -> Result<Self, BadFrame> {
        if bytes.len() < 4 {
            return Err(BadFrame::Truncated);
        }
        let length = bytes.get_u32() as usize;
        if length > MAX_FRAME {
            return Err(BadFrame::TooLong);
        }
        if length > bytes.len() {
            return Err(BadFrame::Truncated);
        }
        let head = from_bytes(&bytes.split_to(length))?;
        Ok(Self { head, body: bytes })
    }

    /// The two parts to send one after the other.
    pub fn encode(&self) -> [Bytes; 2] {
        [encode(&self.head), self.body.clone()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::call::{GenerateCall, PrefillFrame};
    use crate::route::Route;
    use crate::watch::WatchFrame;

    fn call() -> GenerateCall {
        GenerateCall { request: "r-1".parse().unwrap(), route: Route::Completions, deadline_ms: 1000 }
    }

    #[test]
    fn an_envelope_keeps_the_clients_bytes() {
        let envelope = Envelope { head: call(), body: Bytes::from_static(b"{\"a\" :1}\xff") };
        let wire: Bytes = envelope.encode().concat().into();
        assert_eq!(Envelope::decode(wire.clone()).unwrap(), envelope);
        for cut in 0..wire.len() - envelope.body.len() {
            assert!(Envelope::<GenerateCall>::decode(wire.slice(..cut)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn absurd_lengths_are_refused_without_allocating() {
        let mut reader = FrameReader::default();
        reader.push(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert!(matches!(reader.next::<WatchFrame>(), Err(BadFrame::TooLong)));
        let claims_4_gib = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(Envelope::<GenerateCall>::decode(claims_4_gib), Err(BadFrame::TooLong)));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(cuts in prop::collection::vec(1usize..20, 1..40)) {
            let frames = [
                WatchFrame::Heartbeat { seq: 1, digests: Vec::new() },
                WatchFrame::State { state: crate::watch::SidecarState::Ready },
                WatchFrame::Load(crate::load::LoadReport::default()),
            ];
            let wire: Vec<u8> = frames.iter().flat_map(|frame| encode(frame).to_vec()).collect();
            let mut reader = FrameReader::default();
            let mut got = Vec::new();
            let mut rest = &wire[..];
            for cut in cuts.iter().cycle() {
                let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
                reader.push(chunk);
                while let Some(frame) = reader.next::<WatchFrame>().unwrap() {
                    got.push(frame);
                }
                rest = tail;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(&got[..], &frames[..]);
            prop_assert!(reader.finish().is_ok());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            while let Ok(Some(_)) = reader.next::<PrefillFrame>() {}
            let _ = from_bytes::<WatchFrame>(&bytes);
            let _ = Envelope::<GenerateCall>::decode(bytes.into());
        }
    }
}
