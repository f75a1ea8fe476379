//! What the fuzz targets share.

use baton_proto::frame::{from_bytes, to_bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Whatever is understood as a `T` encodes, and its encoding is understood as the same. Compared as bytes: a load report
/// may hold a number that does not equal itself.
pub fn reads_back<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(understood) = from_bytes::<T>(bytes) else { return };
    let encoded = to_bytes(&understood);
    let again: T = from_bytes(&encoded).expect("an encoding must be readable");
    assert_eq!(to_bytes(&again), encoded);
}

/// The first byte as a number to steer a target by, and the rest.
pub fn steered(data: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = data.split_first()?;
    Some((usize::from(first), rest))
}
