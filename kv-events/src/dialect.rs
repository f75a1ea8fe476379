//! What engines of this family do differently.

use baton_proto::worker::Tier;
use baton_sidecar_core::mirror::event::BlockItem;
use baton_sidecar_core::mirror::oddity::Tally;

use crate::cursor::Malformed;
use crate::decoder::Text;
use crate::field::{Field, Fields, Numbers};
use crate::oddity::Oddity;

/// One engine kind's events.
pub trait Dialect: Send + 'static {
    /// Fields of `BlockStored` behind its tag, in the order in which versions that send arrays do.
    const STORED: &'static [Field];

    /// The same of `BlockRemoved`.
    const REMOVED: &'static [Field];

    /// The field of this name, where events are maps.
    fn named(name: &[u8]) -> Option<Field>;

    /// The text of stored blocks; nothing if they are only named.
    fn text<'d>(
        stored: Stored<'_, 'd>,
        items: &mut Vec<BlockItem<'d>>,
        oddities: &mut Tally<Oddity>,
    ) -> Result<Option<Text<'d>>, Malformed>;
}

/// A `BlockStored` whose place is known.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'f, 'd> {
    /// Its fields.
    pub fields: &'f Fields<'d>,
    /// The numbers of its batch.
    pub numbers: &'f Numbers,
    /// How many blocks.
    pub blocks: usize,
    /// Where they are.
    pub tier: Tier,
}
