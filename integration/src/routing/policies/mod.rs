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

/// What policies are asked in their tests.
#[cfg(test)]
mod fixture {
    use baton_proto::worker::Role;

    use super::super::policy::{Arrival, Cached, Facts};

    pub(super) fn arrival(request: u32, tokens: u32, blocks: &[u64]) -> Arrival {
        Arrival {
            request,
            tokens,
            blocks: blocks.into(),
        }
    }

    pub(super) fn facts(role: Role) -> Facts {
        Facts {
            role,
            block_size: 512,
            blocks: 1000,
            max_sequences: 64,
            max_batched_tokens: 8192,
            kv_bytes_per_token: 1000,
            context_length: 100_000,
        }
    }

    /// Blocks that each worker holds.
    pub(super) fn held(blocks: &[u32]) -> Vec<Cached> {
        let cached = |blocks: &u32| Cached {
            blocks: *blocks,
            known: true,
        };
        blocks.iter().map(cached).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::{News, Policy, Seen};
    use super::fixture::{arrival, facts, held};
    use super::*;

    const ROLES: [Role; 4] = [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode];

    #[test]
    fn round_robin_takes_turns_in_both_pools() {
        let mut policy = RoundRobin::default();
        let choices = |policy: &mut RoundRobin, roles: &[Role]| -> Vec<Choice> {
            let workers: Vec<Facts> = roles.iter().copied().map(facts).collect();
            let cached = held(&vec![0; roles.len()]);
            let seen = Seen {
                workers: &workers,
                cached: &cached,
            };
            (0..3)
                .map(|request| policy.choose(0.0, &arrival(request, 10, &[]), &seen))
                .collect()
        };
        let split = |prefill, decode| Choice::Split { prefill, decode };
        assert_eq!(
            choices(&mut policy, &ROLES),
            [split(0, 2), split(1, 3), split(0, 2)]
        );
        let mut policy = RoundRobin::default();
        let whole = [0, 1, 0].map(|worker| Choice::Local { worker });
        assert_eq!(choices(&mut policy, &[Role::Any, Role::Any]), whole);
    }

    #[test]
    fn the_least_loaded_has_the_fewest_tokens_outstanding() {
        let mut policy = LeastLoaded::default();
        let workers = ROLES.map(facts);
        let cached = held(&[0; 4]);
        let seen = Seen {
            workers: &workers,
            cached: &cached,
        };
        let split = |prefill, decode| Choice::Split { prefill, decode };
        let choose = |policy: &mut LeastLoaded, request, tokens| {
            policy.choose(0.0, &arrival(request, tokens, &[]), &seen)
        };
        assert_eq!(choose(&mut policy, 1, 900), split(0, 2));
        assert_eq!(choose(&mut policy, 2, 100), split(1, 3));
        assert_eq!(choose(&mut policy, 3, 300), split(1, 3));
        let ready = News::PrefillReady {
            request: 1,
            worker: 0,
            cached: 0,
        };
        policy.told(1.0, &ready);
        // Prefill: none against 400; decode: still 900 against 400.
        assert_eq!(choose(&mut policy, 4, 600), split(0, 3));
        let finished = News::Finished {
            request: 1,
            worker: 2,
            cached: 0,
            generated: 3,
        };
        policy.told(2.0, &finished);
        assert_eq!(choose(&mut policy, 5, 1), split(1, 2));
    }

    #[test]
    fn the_longest_prefix_wins_whatever_the_load() {
        let mut policy = PrefixOnly::default();
        let workers = ROLES.map(facts);
        let split = |prefill, decode| Choice::Split { prefill, decode };
        let mut choose = |request, blocks: [u32; 4]| {
            let cached = held(&blocks);
            let seen = Seen {
                workers: &workers,
                cached: &cached,
            };
            policy.choose(0.0, &arrival(request, 5000, &[1, 2, 3]), &seen)
        };
        // Of equals the least loaded; what decode workers hold does not matter.
        assert_eq!(choose(1, [0, 0, 0, 3]), split(0, 2));
        assert_eq!(choose(2, [0, 0, 3, 0]), split(1, 3));
        assert_eq!(choose(3, [1, 2, 0, 0]), split(1, 2));
        assert_eq!(choose(4, [1, 2, 0, 0]), split(1, 3));
        assert_eq!(choose(5, [3, 2, 0, 0]), split(0, 2));
    }
}
