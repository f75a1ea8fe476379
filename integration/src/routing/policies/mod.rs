//! Baton's planner, and the policies that it is compared with.

mod baton;
mod dynamo;
mod least_loaded;
mod outstanding;
mod prefix_only;
mod round_robin;

use baton_proto::worker::Role;

pub use self::baton::Baton;
pub use self::dynamo::Dynamo;
pub use self::least_loaded::LeastLoaded;
pub use self::prefix_only::PrefixOnly;
pub use self::round_robin::RoundRobin;
use super::policy::{Choice, Facts};

/// Whom a simple policy chooses from: where there are roles it splits every request, where there are none it never does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pools {
    /// All workers do anything.
    Whole(Vec<usize>),
    /// Some prefill, others decode.
    Split {
        /// Who prefills.
        prefill: Vec<usize>,
        /// Who decodes.
        decode: Vec<usize>,
    },
}

/// The pools of a fleet.
pub fn pools(workers: &[Facts]) -> Pools {
    let of = |role| {
        let numbered = workers.iter().enumerate();
        let those = numbered.filter(move |(_, worker)| worker.role == role);
        those.map(|(number, _)| number).collect::<Vec<_>>()
    };
    let (prefill, decode) = (of(Role::Prefill), of(Role::Decode));
    if prefill.is_empty() || decode.is_empty() {
        return Pools::Whole((0..workers.len()).collect());
    }
    Pools::Split { prefill, decode }
}

impl Pools {
    /// One of each pool.
    pub fn choose(&self, mut one: impl FnMut(&[usize]) -> usize) -> Choice {
        match self {
            Self::Whole(workers) => Choice::Local {
                worker: one(workers),
            },
            Self::Split { prefill, decode } => Choice::Split {
                prefill: one(prefill),
                decode: one(decode),
            },
        }
    }
}
