//! Names and numbers that were never used before.

use std::time::{SystemTime, UNIX_EPOCH};

use baton_proto::Epoch;
use rand::Rng;

/// 32 hexadecimal digits, different every time. Fixed length: SGLang aborts by id *prefix*.
pub fn hex_id() -> String {
    format!("{:032x}", rand::rng().random::<u128>())
}

/// This life of the process.
#[expect(
    clippy::disallowed_methods,
    reason = "an epoch must grow across restarts, which only the wall clock does"
)]
pub fn epoch() -> Epoch {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Epoch(u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX))
}
