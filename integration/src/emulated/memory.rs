//! Where the bytes of a KV cache are: in this process alone, or in memory that other engines can read.
//!
//! Others know it as the real engine's: regions, one a layer, each with its part of every block. What a block holds is one
//! run of bytes to everybody here; the regions hold equal parts of it, in order.

use std::ops::Range;

use baton_transfer::Slots;

/// Bytes of blocks.
#[derive(Debug)]
pub enum Memory {
    /// Nobody else can read them.
    Own(Vec<u8>),
    /// Registered: one slot is one region.
    Registered(Slots),
}

impl Memory {
    /// Copies bytes of a block out.
    pub(super) fn read(&self, place: Place, into: &mut [u8]) {
        match self {
            Self::Own(bytes) => into.copy_from_slice(&bytes[place.within_all(into.len())]),
            Self::Registered(regions) => {
                for part in place.parts(into.len(), regions.count()) {
                    regions.read(part.region, part.at, &mut into[part.bytes]);
                }
            }
        }
    }

    /// Copies bytes into a block.
    pub(super) fn write(&mut self, place: Place, from: &[u8]) {
        match self {
            Self::Own(bytes) => bytes[place.within_all(from.len())].copy_from_slice(from),
            Self::Registered(regions) => {
                for part in place.parts(from.len(), regions.count()) {
                    regions.write(part.region, part.at, &from[part.bytes]);
                }
            }
        }
    }
}

/// A byte of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) block: usize,
    pub(super) block_bytes: usize,
    pub(super) at: usize,
}

/// What of a run of bytes is in one region.
struct Part {
    region: usize,
    at: usize,
    bytes: Range<usize>,
}

impl Place {
    fn within_all(self, bytes: usize) -> Range<usize> {
        let start = self.block * self.block_bytes + self.at;
        start..start + bytes
    }

    fn parts(self, bytes: usize, regions: usize) -> impl Iterator<Item = Part> {
        let each = self.block_bytes / regions;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = self.at + done;
            let rest = (bytes - done).min(each - at % each);
            (rest > 0).then(|| {
                done += rest;
                Part {
                    region: at / each,
                    at: self.block * each + at % each,
                    bytes: done - rest..done,
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_in_the_regions_one_after_the_other() {
        let place = Place {
            block: 3,
            block_bytes: 16,
            at: 6,
        };
        let parts: Vec<_> = place
            .parts(4, 2)
            .map(|part| (part.region, part.at, part.bytes))
            .collect();
        assert_eq!(parts, [(0, 30, 0..2), (1, 24, 2..4)]);
        assert_eq!(place.parts(0, 2).count(), 0);
        assert_eq!(place.within_all(4), 54..58);
    }
}
