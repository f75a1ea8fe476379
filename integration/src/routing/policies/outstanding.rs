//! What a router has sent out and not got back, in tokens.

use std::collections::HashMap;

use super::super::policy::{Arrival, Choice, News};

/// Outstanding prompt tokens of each worker: a prefill leg's until it is answered, any other leg's until its answer ends.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    tokens: Vec<u64>,
    open: HashMap<u32, u64>,
}

impl Outstanding {
    /// The worker of a pool that has least to do; the first of several.
    pub(super) fn least(&self, pool: &[usize]) -> usize {
        let least = pool.iter().min_by_key(|worker| self.of(**worker));
        *least.expect("a pool is not empty")
    }

    /// A worker's tokens.
    pub(super) fn of(&self, worker: usize) -> u64 {
        self.tokens.get(worker).copied().unwrap_or_default()
    }

    pub(super) fn chosen(&mut self, request: &Arrival, choice: Choice) {
        let tokens = u64::from(request.tokens);
        self.open.insert(request.request, tokens);
        match choice {
            Choice::Local { worker } => *self.at(worker) += tokens,
            Choice::Split { prefill, decode } => {
                *self.at(prefill) += tokens;
                *self.at(decode) += tokens;
            }
            Choice::Refuse => {}
        }
    }

    pub(super) fn told(&mut self, news: &News<'_>) {
        let ended = match news {
            News::PrefillReady {
                request, worker, ..
            } => self.open.get(request).map(|tokens| (*worker, *tokens)),
            News::Finished {
                request, worker, ..
            } => self.open.remove(request).map(|tokens| (*worker, tokens)),
            _ => None,
        };
        if let Some((worker, tokens)) = ended {
            *self.at(worker) -= tokens;
        }
    }

    fn at(&mut self, worker: usize) -> &mut u64 {
        if self.tokens.len() <= worker {
            self.tokens.resize(worker + 1, 0);
        }
        &mut self.tokens[worker]
    }
}
