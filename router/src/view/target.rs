//! A place in the index, taken for as long as somebody may speak of it.

use std::sync::Arc;

use baton_index::{Index, Target};

/// A rank's place in the index. Snapshots of the fleet share it, so that a number is not given to another rank while
/// somebody still plans with the old one.
pub struct HeldTarget {
    index: Arc<Index>,
    target: Target,
}

impl HeldTarget {
    /// A new place.
    pub(super) fn new(index: &Arc<Index>) -> Arc<Self> {
        Arc::new(Self {
            index: Arc::clone(index),
            target: index.add_target(),
        })
    }

    /// Which one.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The index that it is a place of.
    pub(super) fn index(&self) -> &Index {
        &self.index
    }
}

impl Drop for HeldTarget {
    fn drop(&mut self) {
        self.index.remove_target(self.target);
    }
}

impl std::fmt::Debug for HeldTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldTarget({})", self.target.number())
    }
}
