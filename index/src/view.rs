//! What readers take hold of: all tables, as they are now.

use std::sync::Arc;

use crate::sets::Directory;
use crate::table::{Keys, SHARD_BITS, Table};
use crate::target::Targets;
use crate::word::Holding;

/// How many tables an index has. Each grows and shrinks by itself, so that a writer never copies more than a small part.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;

/// All tables. A new view is published whenever one of them is replaced; what else changes does so inside of them.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) keys: Keys,
    pub(crate) tables: [Table; SHARDS],
    pub(crate) sets: Arc<Directory>,
    pub(crate) targets: Arc<Targets>,
}

impl View {
    /// The table that a block is in.
    pub(crate) fn table(&self, hash: u64) -> &Table {
        &self.tables[self.keys.shard(hash)]
    }

    /// Who holds a block. For readers.
    pub(crate) fn holding(&self, hash: u64) -> Holding {
        self.table(hash).read(hash)
    }

    /// Has what is needed to look for a block fetched, without waiting for it.
    #[inline]
    pub(crate) fn fetch(&self, hash: u64) {
        self.table(hash).fetch(hash);
    }
}
