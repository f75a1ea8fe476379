//! Frames: MessagePack with named fields, each after its length as u32 big-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rmp_serde::decode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

/// Longest frame, in bytes. A snapshot chunk or a ticket is far below; a longer one is a broken or hostile peer.
pub const MAX_FRAME: usize = 8 << 20;

/// Deepest nesting of maps and arrays in a message. Ours have four levels. rmp-serde's own limit of 1024 is deep enough
/// for a hostile message to overflow the 2 MiB stack of a thread (seen in a debug build).
const MAX_DEPTH: usize = 64;

/// Bytes of the length before each frame.
const LENGTH: usize = size_of::<u32>();

/// Why bytes are no frame of this protocol.
#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    /// Longer than [`MAX_FRAME`].
    #[error("a frame is longer than {MAX_FRAME} bytes")]
    TooLong,
    /// The bytes ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
    /// Something follows the message inside its frame.
    #[error("a frame holds more than its message")]
    Trailing,
    /// Not the expected message.
    #[error("a frame could not be decoded: {0}")]
    Content(#[from] decode::Error),
}

/// Encodes one message as MessagePack with named fields, without a length.
#[expect(
    clippy::missing_panics_doc,
    reason = "no type of this crate can fail to encode"
)]
pub fn to_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    // Only a `Serialize` that fails by itself or a map of unknown length can fail here.
    rmp_serde::to_vec_named(message).expect("protocol types always encode")
}

/// Decodes one message, which must be all there is.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadFrame> {
    if bytes.len() > MAX_FRAME {
        return Err(BadFrame::TooLong);
    }
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.set_max_depth(MAX_DEPTH);
    let message = T::deserialize(&mut deserializer)?;
    // The deserializer does not tell how far it read, but only at the end of the bytes has it no further marker.
    match <()>::deserialize(&mut deserializer) {
        Err(decode::Error::InvalidMarkerRead(_)) => Ok(message),
        _ => Err(BadFrame::Trailing),
    }
}

/// Encodes one message as a frame.
pub fn encode<T: Serialize>(message: &T) -> Bytes {
    let content = to_bytes(message);
    let mut frame = BytesMut::with_capacity(LENGTH + content.len());
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
        // A frame comes out of the codec with its length before it: left to skip the length, the codec takes it out of
        // the buffer at once, and a stream that ends right behind a length would look like one that ends between frames.
        let codec = LengthDelimitedCodec::builder()
            .max_frame_length(MAX_FRAME)
            .length_adjustment(LENGTH.cast_signed())
            .num_skip(0)
            .new_codec();
        Self {
            codec,
            buffer: BytesMut::new(),
        }
    }
}

impl FrameReader {
    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one. After an error the stream is useless.
    #[expect(
        clippy::should_implement_trait,
        reason = "no iterator: what comes next is the caller's to say"
    )]
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BadFrame> {
        let frame = self
            .codec
            .decode(&mut self.buffer)
            .map_err(|_| BadFrame::TooLong)?;
        frame.map(|frame| from_bytes(&frame[LENGTH..])).transpose()
    }

    /// To be called when the stream has ended: a partial frame is an error.
    pub fn finish(&self) -> Result<(), BadFrame> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(BadFrame::Truncated)
        }
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
        if bytes.len() < LENGTH {
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
        GenerateCall {
            request: "r-1".parse().unwrap(),
            route: Route::Completions,
            deadline_ms: 1000,
            uncached_tokens: None,
        }
    }

    #[test]
    fn an_envelope_keeps_the_clients_bytes() {
        let envelope = Envelope {
            head: call(),
            body: Bytes::from_static(b"{\"a\" :1}\xff"),
        };
        let wire: Bytes = envelope.encode().concat().into();
        assert_eq!(Envelope::decode(wire.clone()).unwrap(), envelope);
        for cut in 0..wire.len() - envelope.body.len() {
            assert!(
                Envelope::<GenerateCall>::decode(wire.slice(..cut)).is_err(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn absurd_lengths_are_refused_without_allocating() {
        let mut reader = FrameReader::default();
        reader.push(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert!(matches!(
            reader.next::<WatchFrame>(),
            Err(BadFrame::TooLong)
        ));
        let claims_4_gib = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(
            Envelope::<GenerateCall>::decode(claims_4_gib),
            Err(BadFrame::TooLong)
        ));
    }

    #[test]
    fn a_stream_may_end_only_between_frames() {
        let wire = encode(&call());
        for cut in 0..=wire.len() {
            let mut reader = FrameReader::default();
            reader.push(&wire[..cut]);
            let whole = reader.next::<GenerateCall>().unwrap().is_some();
            assert_eq!(whole, cut == wire.len());
            assert_eq!(reader.finish().is_ok(), cut == 0 || whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_holds_one_message_and_nothing_else() {
        let message = to_bytes(&call());
        assert_eq!(from_bytes::<GenerateCall>(&message).unwrap(), call());
        for trailing in 0..=u8::MAX {
            let frame = [&message[..], &[trailing]].concat();
            assert!(
                matches!(from_bytes::<GenerateCall>(&frame), Err(BadFrame::Trailing)),
                "{trailing:#x}"
            );
        }
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
