//! Which two engines can hand KV over, known before any request is tried.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// All that two engines must share to hand over, without saying which engine it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compatibility {
    /// Way of handing over, engine and connector included. Equal on both sides.
    pub handoff: String,
    /// Named facts, equal on both sides (hashes, layouts, bytes per token).
    pub facts: BTreeMap<String, String>,
    /// KV block size in tokens: decode's must be a multiple of prefill's.
    pub block_size: u32,
}

/// Why a pair cannot hand over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What differs.
    pub fact: String,
    /// Its value on the prefill side.
    pub prefill: String,
    /// Its value on the decode side.
    pub decode: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} differs: prefill has {}, decode has {}",
            self.fact, self.prefill, self.decode
        )
    }
}

impl Compatibility {
    /// Whether KV of an engine with `self` can be used by an engine with `decode`.
    pub fn hands_over_to(&self, decode: &Self) -> Result<(), Mismatch> {
        let mismatch = |fact: &str, prefill: &str, decode: &str| Mismatch {
            fact: fact.to_owned(),
            prefill: prefill.to_owned(),
            decode: decode.to_owned(),
        };
        if self.handoff != decode.handoff {
            return Err(mismatch("handoff", &self.handoff, &decode.handoff));
        }
        let names = self.facts.keys().chain(decode.facts.keys());
        for name in names {
            let [ours, theirs] =
                [self, decode].map(|side| side.facts.get(name).map_or("nothing", String::as_str));
            if ours != theirs {
                return Err(mismatch(name, ours, theirs));
            }
        }
        if self.block_size == 0 || !decode.block_size.is_multiple_of(self.block_size) {
            return Err(mismatch(
                "block_size",
                &self.block_size.to_string(),
                &decode.block_size.to_string(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(handoff: &str, hash: &str, block_size: u32) -> Compatibility {
        let facts = [("hash".to_owned(), hash.to_owned())].into();
        Compatibility {
            handoff: handoff.to_owned(),
            facts,
            block_size,
        }
    }

    #[test]
    fn names_the_first_thing_that_differs() {
        let prefill = side("nixl-pull", "a", 32);
        assert_eq!(prefill.hands_over_to(&side("nixl-pull", "a", 64)), Ok(()));
        assert_eq!(
            prefill
                .hands_over_to(&side("nixl-push", "a", 32))
                .unwrap_err()
                .fact,
            "handoff"
        );
        assert_eq!(
            prefill
                .hands_over_to(&side("nixl-pull", "b", 32))
                .unwrap_err()
                .fact,
            "hash"
        );
        assert_eq!(
            side("nixl-pull", "a", 64)
                .hands_over_to(&prefill)
                .unwrap_err()
                .fact,
            "block_size"
        );
        assert_eq!(
            side("nixl-pull", "a", 0)
                .hands_over_to(&prefill)
                .unwrap_err()
                .fact,
            "block_size"
        );
        let mut more = prefill.clone();
        more.facts.insert("layout".to_owned(), "NHD".to_owned());
        let shown = prefill.hands_over_to(&more).unwrap_err().to_string();
        assert_eq!(shown, "layout differs: prefill has nothing, decode has NHD");
    }
}
