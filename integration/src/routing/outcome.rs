//! What came of a run.

use baton_proto::worker::Role;

use super::engine::Stats;
use super::policy::Choice;
use super::simulation::seconds;
use super::trace::Trace;

/// A request as it was served. Times are nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Served {
    pub(super) choice: Option<Choice>,
    pub(super) arrived: u64,
    /// 0 before it.
    pub(super) first_token: u64,
    pub(super) last_token: u64,
    /// Prompt tokens that were cached where the prompt was computed.
    pub(super) cached: u32,
}

impl Served {
    pub(super) fn is_split(&self) -> bool {
        matches!(self.choice, Some(Choice::Split { .. }))
    }
}

/// What came of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Seconds from arrival to first token, in the order of the trace, but for refused requests.
    pub ttft: Vec<f64>,
    /// Microseconds between tokens of an answer, over all answers.
    pub gaps: Vec<u32>,
    /// Prompt tokens of all that was served.
    pub prompt_tokens: u64,
    /// Of these, how many were cached where the prompt was computed.
    pub cached_tokens: u64,
    /// Requests that were served by two workers.
    pub split: usize,
    /// Requests that were served by one.
    pub local: usize,
    /// Requests that were refused.
    pub refused: usize,
    /// Decode legs that found their KV gone.
    pub expired: u64,
    /// Bytes of KV that were moved.
    pub moved_bytes: u64,
    /// Workers' counts.
    pub engines: Vec<Stats>,
    /// Workers' roles.
    pub roles: Vec<Role>,
    /// Seconds from the start to the last token.
    pub span: f64,
}

impl Outcome {
    pub(super) fn add_gap(&mut self, nanoseconds: u64) {
        let microseconds = u32::try_from(nanoseconds / 1000).unwrap_or(u32::MAX);
        self.gaps.push(microseconds);
    }

    pub(super) fn add_all(&mut self, trace: &Trace, served: &[Served]) {
        for (request, served) in trace.requests.iter().zip(served) {
            match served.choice {
                Some(Choice::Local { .. }) => self.local += 1,
                Some(Choice::Split { .. }) => self.split += 1,
                Some(Choice::Refuse) | None => {
                    self.refused += 1;
                    continue;
                }
            }
            self.ttft.push(seconds(served.first_token - served.arrived));
            self.prompt_tokens += u64::from(request.prompt);
            self.cached_tokens += u64::from(served.cached);
            self.span = self.span.max(seconds(served.last_token));
        }
    }

    /// Busy time of the busiest worker over the mean of its role; the worst of all roles.
    pub fn balance(&self) -> f64 {
        let roles = [Role::Any, Role::Prefill, Role::Decode, Role::Local];
        roles
            .iter()
            .filter_map(|role| {
                let busy = self.engines.iter().zip(&self.roles);
                let busy: Vec<f64> = busy
                    .filter(|(_, of)| *of == role)
                    .map(|(stats, _)| stats.busy.as_secs_f64())
                    .collect();
                let most = busy.iter().copied().max_by(f64::total_cmp)?;
                let mean = mean(&busy)?;
                (mean > 0.0).then(|| most / mean)
            })
            .fold(1.0, f64::max)
    }
}

/// Mean of some values; `None` if there are none.
#[expect(clippy::cast_precision_loss, reason = "values are in memory")]
pub fn mean(values: &[f64]) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| values.iter().sum::<f64>() / count as f64)
}
