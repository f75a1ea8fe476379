//! What an agent tells others of itself.
//!
//! NIXL's own bytes are looked at no further than to the agent's name. Nothing in them shows a flipped bit, so whoever
//! carries them compares [`Metadata::digest`].

use crate::TransferError;

/// Where the metadata of an agent begin; its name follows.
const AGENT: &[u8] = b"nixlSerDes|Agent";

/// What follows the name of an agent of the loopback fabric, before its port: no connections of NIXL's, and a mark.
const LOOPBACK: &[u8] = b"|Conns\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0|Loopback";

const MOST_BYTES: usize = 64 << 20;
const LONGEST_NAME: usize = 256;

/// Over what an agent transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// NIXL.
    Nixl,
    /// TCP to 127.0.0.1.
    Loopback,
}

/// What an agent tells others of itself. They can copy it over any way that they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    bytes: Vec<u8>,
    agent: String,
    port: Option<u16>,
}

impl Metadata {
    /// Looks at the outermost form only: a name, then bytes that mean something to NIXL or to the loopback fabric.
    pub fn parse(bytes: &[u8]) -> Result<Self, TransferError> {
        let bad = TransferError::BadMetadata;
        if bytes.len() > MOST_BYTES {
            return Err(bad("they are too long"));
        }
        let rest = bytes
            .strip_prefix(AGENT)
            .ok_or(bad("they do not begin with an agent"))?;
        let (length, rest) = rest
            .split_first_chunk()
            .ok_or(bad("they end before the agent's name"))?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length == 0 || length > LONGEST_NAME {
            return Err(bad("the agent's name has an absurd length"));
        }
        let (agent, rest) = rest
            .split_at_checked(length)
            .ok_or(bad("they end within the agent's name"))?;
        let agent = std::str::from_utf8(agent)
            .ok()
            // To C the name would end there, and be another.
            .filter(|agent| !agent.contains('\0'))
            .ok_or(bad("the agent's name is no text"))?;
        let port = match rest.strip_prefix(LOOPBACK) {
            None if rest.is_empty() => return Err(bad("they end after the agent's name")),
            None => None,
            Some(port) => {
                let port = port.try_into().map(u16::from_le_bytes);
                Some(port.map_err(|_| bad("no port follows the mark of the loopback fabric"))?)
            }
        };
        Ok(Self {
            agent: agent.to_owned(),
            port,
            bytes: bytes.to_vec(),
        })
    }

    pub(crate) fn loopback(agent: &str, port: u16) -> Self {
        let mut bytes = AGENT.to_vec();
        bytes.extend((agent.len() as u64).to_le_bytes());
        bytes.extend(agent.as_bytes());
        bytes.extend(LOOPBACK);
        bytes.extend(port.to_le_bytes());
        Self {
            bytes,
            agent: agent.to_owned(),
            port: Some(port),
        }
    }

    /// The agent's name: one for each life of a process.
    pub fn agent_name(&self) -> &str {
        &self.agent
    }

    /// Over what it transfers.
    pub fn kind(&self) -> Kind {
        match self.port {
            None => Kind::Nixl,
            Some(_) => Kind::Loopback,
        }
    }

    /// Where an agent of the loopback fabric listens, on 127.0.0.1.
    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// BLAKE3 of all of it.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.bytes).as_bytes()
    }
}

/// Whether an agent may be called this.
pub(crate) fn is_a_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains('\0')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nixl(agent: &[u8]) -> Vec<u8> {
        let mut bytes = AGENT.to_vec();
        bytes.extend((agent.len() as u64).to_le_bytes());
        bytes.extend(agent);
        bytes.extend(b"|Conns\x08\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0|t\x03\0\0\0\0\0\0\0UCX|");
        bytes
    }

    #[test]
    fn the_two_fabrics_are_told_apart() {
        let real = Metadata::parse(&nixl(b"one")).unwrap();
        assert_eq!((real.agent_name(), real.kind()), ("one", Kind::Nixl));
        let loopback = Metadata::loopback("two", 4711);
        assert_eq!(Metadata::parse(loopback.bytes()).unwrap(), loopback);
        assert_eq!(
            (loopback.agent_name(), loopback.kind(), loopback.port()),
            ("two", Kind::Loopback, Some(4711))
        );
        assert_ne!(real.digest(), loopback.digest());
    }

    #[test]
    fn nothing_that_is_cut_in_the_name_or_before_is_an_agent() {
        let bytes = nixl(b"one");
        let name_ends = AGENT.len() + 8 + 3;
        for length in 0..=name_ends {
            assert!(Metadata::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
        let loopback = Metadata::loopback("two", 4711);
        let length = loopback.bytes().len();
        for cut in 1..=2 {
            assert!(Metadata::parse(&loopback.bytes()[..length - cut]).is_err());
        }
    }

    #[test]
    fn names_that_would_be_others_to_c_are_refused() {
        for name in [&b""[..], b"a\0b", b"\xff", &[b'a'; 257]] {
            assert!(Metadata::parse(&nixl(name)).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Metadata::parse(&bytes);
        }

        #[test]
        fn no_flipped_bytes_make_it_panic(at in 0usize..70, to: u8, cut in 0usize..80) {
            let mut bytes = nixl(b"123e4567-e89b-12d3-a456-426614174000");
            let at = at % bytes.len();
            bytes[at] = to;
            bytes.truncate(cut.max(1));
            if let Ok(metadata) = Metadata::parse(&bytes) {
                prop_assert_eq!(metadata.bytes(), &bytes[..]);
                prop_assert!(is_a_name(metadata.agent_name()));
            }
        }
    }
}
