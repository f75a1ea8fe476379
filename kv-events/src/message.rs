//! The frames around a batch of events.

/// Sequence number of the replay socket's end marker.
const END: u64 = u64::MAX;

/// One published batch, undecoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// What subscribers filter by; the same for all ranks.
    pub topic: &'a [u8],
    /// 0 for the first message of an engine process, then one more each.
    pub seq: u64,
    /// The batch.
    pub payload: &'a [u8],
}

/// An answer of the replay socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed<'a> {
    /// A batch that was published before.
    Message(Message<'a>),
    /// Nothing follows.
    End,
}

/// Why frames are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrames {
    /// Not as many as expected.
    #[error("a message of {0} frames instead of topic, sequence number and payload")]
    Count(usize),
    /// The sequence number has another length than 8 bytes.
    #[error("a sequence number of {0} bytes instead of 8")]
    Number(usize),
    /// A frame that must be empty is not.
    #[error("an answer of the replay socket without its empty first frame")]
    Delimiter,
}

impl<'a> Message<'a> {
    /// Reads what the event socket publishes.
    pub fn published<Frame: AsRef<[u8]>>(frames: &'a [Frame]) -> Result<Self, BadFrames> {
        match frames {
            [topic, seq, payload] => Self::new(topic.as_ref(), seq.as_ref(), payload.as_ref()),
            _ => Err(BadFrames::Count(frames.len())),
        }
    }

    fn new(topic: &'a [u8], seq: &'a [u8], payload: &'a [u8]) -> Result<Self, BadFrames> {
        let seq = seq.try_into().map_err(|_| BadFrames::Number(seq.len()))?;
        Ok(Self {
            topic,
            seq: u64::from_be_bytes(seq),
            payload,
        })
    }
}

impl<'a> Replayed<'a> {
    /// Reads an answer of the replay socket: an empty frame, then the message. Versions before 0.32 leave the topic out.
    /// A `REQ` socket takes the empty frame away itself.
    pub fn read<Frame: AsRef<[u8]>>(frames: &'a [Frame]) -> Result<Self, BadFrames> {
        let message = match frames {
            [delimiter, topic, seq, payload] => {
                if !delimiter.as_ref().is_empty() {
                    return Err(BadFrames::Delimiter);
                }
                Message::new(topic.as_ref(), seq.as_ref(), payload.as_ref())?
            }
            _ => Message::published(frames)?,
        };
        let is_end = message.seq == END && message.payload.is_empty();
        Ok(if is_end {
            Self::End
        } else {
            Self::Message(message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVEN: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 7];

    #[test]
    fn messages() {
        let message = Message {
            topic: b"kv",
            seq: 7,
            payload: b"x",
        };
        assert_eq!(Message::published(&[b"kv", SEVEN, b"x"]), Ok(message));
        assert_eq!(
            Message::published(&[b"kv", SEVEN]),
            Err(BadFrames::Count(2))
        );
        assert_eq!(Message::published::<&[u8]>(&[]), Err(BadFrames::Count(0)));
        assert_eq!(
            Message::published(&[&b"kv"[..], b"7", b"x"]),
            Err(BadFrames::Number(1))
        );
    }

    #[test]
    fn answers_of_the_replay_socket() {
        let message = |topic| {
            Ok(Replayed::Message(Message {
                topic,
                seq: 7,
                payload: b"x",
            }))
        };
        assert_eq!(
            Replayed::read(&[b"", &b"kv"[..], SEVEN, b"x"]),
            message(b"kv")
        );
        assert_eq!(Replayed::read(&[b"", SEVEN, b"x"]), message(b""));
        assert_eq!(Replayed::read(&[&b"kv"[..], SEVEN, b"x"]), message(b"kv"));
        assert_eq!(
            Replayed::read(&[b"", b"", &[0xff; 8][..], b""]),
            Ok(Replayed::End)
        );
        assert_eq!(
            Replayed::read(&[b"", &[0xff; 8][..], b""]),
            Ok(Replayed::End)
        );
        assert_eq!(
            Replayed::read(&[&b"!"[..], b"kv", SEVEN, b"x"]),
            Err(BadFrames::Delimiter)
        );
    }
}
