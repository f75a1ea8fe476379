//! Handshakes of engines' side channels.

use std::io::Write;

use baton_sidecar_vllm::handshake::Handshake;
use serde_json::{Map, Value};

use super::log::unhex;
use super::report::{Engine, Handshakes, Pair};
use super::{Damaged, Failure};

pub(super) fn read<W: Write>(
    all: &Map<String, Value>,
    damaged: &mut Damaged<'_, W>,
) -> Result<Handshakes, Failure> {
    let mut engines = Vec::new();
    for (number, (name, hex)) in (1..).zip(all) {
        let bytes = unhex(hex.as_str().unwrap_or_default());
        match bytes.and_then(|bytes| Handshake::parse(&bytes)) {
            Ok(handshake) => engines.push((name, handshake)),
            Err(what) => damaged.note(number, format!("{name}: {what}"))?,
        }
    }
    let mut pairs = Vec::new();
    for (prefill, giver) in &engines {
        for (decode, taker) in engines.iter().filter(|(decode, _)| decode != prefill) {
            let compatible = giver
                .compatibility(None)
                .hands_over_to(&taker.compatibility(None));
            pairs.push(Pair {
                prefill: (*prefill).clone(),
                decode: (*decode).clone(),
                mismatch: compatible.err().map(|mismatch| mismatch.to_string()),
            });
        }
    }
    let engines = engines.iter().map(|(name, handshake)| Engine {
        name: (*name).clone(),
        engine_id: handshake.engine_id.clone(),
        agent: handshake.incarnation.to_string(),
        block_size: handshake.geometry.block_size,
        blocks: handshake.geometry.num_blocks,
        bytes_per_token: handshake.geometry.bytes_per_token(),
    });
    Ok(Handshakes {
        engines: engines.collect(),
        pairs,
    })
}
