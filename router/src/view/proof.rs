//! The view proves itself: what was predicted to be cached against what the engine reports.

use std::sync::Arc;

use baton_daemon::http::sse;
use baton_daemon::metrics::Counter;
use baton_proto::call::PrefillUsage;
use baton_proto::json::RawObject;
use memchr::memmem;
use serde::Deserialize;

use super::prediction::Foretold;
use crate::fleet::Worker;
use crate::planner::Decision;

/// Counts of all comparisons.
#[derive(Debug, Clone, Default)]
pub struct Proofs {
    /// Cached tokens that were predicted, of all requests that were compared.
    pub predicted: Counter,
    /// Cached tokens that engines reported for them.
    pub reported: Counter,
    /// Requests that were compared.
    pub requests: Counter,
    /// Those of which the two differed.
    pub mispredicted: Counter,
}

/// One request's prediction, until the engine reports.
#[derive(Debug)]
pub struct Proof {
    proofs: Proofs,
    foretold: Option<Foretold>,
    worker: Arc<Worker>,
    decision: Arc<Decision>,
}

/// What an engine reports of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Proof {
    /// What was foretold of a request at `worker`. Where nothing was, nothing is looked at and nothing is counted.
    pub fn new(
        proofs: &Proofs,
        foretold: Option<Foretold>,
        worker: &Arc<Worker>,
        decision: Arc<Decision>,
    ) -> Self {
        Self {
            proofs: proofs.clone(),
            foretold,
            worker: Arc::clone(worker),
            decision,
        }
    }

    /// The engine reports the prompt's length and how many tokens were cached, as far as it does. Only its first word
    /// counts.
    pub fn reported(&mut self, tokens: Option<u64>, cached: Option<u64>) {
        let Some(foretold) = self.foretold.take() else {
            return;
        };
        self.decision.came(|outcome| outcome.cached = cached);
        self.worker.trust().reported(&foretold, tokens, cached);
        let Some((predicted, cached)) = foretold.exact().zip(cached) else {
            return;
        };
        self.proofs.requests.inc();
        self.proofs.predicted.inc_by(predicted);
        self.proofs.reported.inc_by(cached);
        if predicted != cached {
            self.proofs.mispredicted.inc();
            tracing::debug!(predicted, cached, "cached tokens were mispredicted");
        }
    }

    /// Looks for the engine's report in a whole answer.
    pub fn look_into_answer(&mut self, answer: &[u8]) {
        if self.may_report(answer)
            && let Some(usage) = usage(answer)
        {
            self.read(usage);
        }
    }

    /// Looks for it in events of a stream.
    pub fn look_into_events(&mut self, events: &[u8]) {
        if self.may_report(events)
            && let Some(usage) = sse::events(events)
                .filter_map(sse::data)
                .find_map(|data| usage(&data))
        {
            self.read(usage);
        }
    }

    /// The engine's report on a prefill leg.
    pub fn used(&mut self, usage: &PrefillUsage) {
        let tokens = (usage.prompt_tokens > 0).then(|| usage.prompt_tokens.into());
        let cached = usage.cached_tokens.map(u64::from);
        self.reported(tokens, cached);
    }

    fn read(&mut self, usage: Usage) {
        let cached = usage.prompt_tokens_details;
        let cached = cached.and_then(|details| details.cached_tokens);
        if usage.prompt_tokens.is_some() || cached.is_some() {
            self.reported(usage.prompt_tokens, cached);
        }
    }

    /// Nearly no event has the word, and parsing each would cost.
    fn may_report(&self, bytes: &[u8]) -> bool {
        self.foretold.is_some() && memmem::find(bytes, b"\"prompt_tokens\"").is_some()
    }
}

fn usage(json: &[u8]) -> Option<Usage> {
    RawObject::parse(json).ok()?.get_as("usage")?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::worker;
    use crate::view::tests::info;
    use crate::view::{Basis, Cached};

    fn counts(proofs: &Proofs) -> [u64; 4] {
        let all = [
            &proofs.requests,
            &proofs.predicted,
            &proofs.reported,
            &proofs.mispredicted,
        ];
        all.map(Counter::get)
    }

    fn proving(proofs: &Proofs, predicted: Option<u64>) -> Proof {
        let index = Arc::default();
        let worker = worker("a", &index, info(16)).worker;
        let foretold = predicted.map(|known| Foretold {
            tokens: 40,
            cached: Cached {
                known,
                basis: Basis::Exact,
                ..Cached::default()
            },
            block_size: 16,
            comparable: true,
            unwatched: false,
        });
        Proof::new(proofs, foretold, &worker, Arc::default())
    }

    const USAGE: &str =
        r#""usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}"#;

    #[test]
    fn whole_answers_are_compared_once() {
        let proofs = Proofs::default();
        let answer = format!(r#"{{"choices":[{{"text":"\"cached_tokens\""}}],{USAGE}}}"#);
        let mut proof = proving(&proofs, Some(32));
        proof.look_into_answer(answer.as_bytes());
        proof.look_into_answer(answer.as_bytes());
        assert_eq!(counts(&proofs), [1, 32, 32, 0]);
        proving(&proofs, Some(16)).look_into_answer(answer.as_bytes());
        assert_eq!(counts(&proofs), [2, 48, 64, 1]);
        proving(&proofs, None).look_into_answer(answer.as_bytes());
        assert_eq!(counts(&proofs), [2, 48, 64, 1]);
    }

    #[test]
    fn the_usage_of_a_stream_is_found_among_its_events() {
        let proofs = Proofs::default();
        let mut proof = proving(&proofs, Some(32));
        proof.look_into_events(
            b"data: {\"choices\":[{\"text\":\"\\\"cached_tokens\\\"\"}],\"usage\":null}\n\n",
        );
        assert_eq!(counts(&proofs), [0; 4]);
        let last = format!(
            "data: {{\"choices\":[]}}\n\ndata: {{\"choices\":[],{USAGE}}}\n\ndata: [DONE]\n\n"
        );
        proof.look_into_events(last.as_bytes());
        assert_eq!(counts(&proofs), [1, 32, 32, 0]);
    }

    #[test]
    fn an_engine_that_does_not_report_is_not_compared() {
        let proofs = Proofs::default();
        let mut proof = proving(&proofs, Some(32));
        for silent in [
            r#"{"usage":{"prompt_tokens":null}}"#,
            r#"{"usage":{"prompt_tokens_details":null,"x":"cached_tokens"}}"#,
            r#"{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}"#,
            r#"{"error":"cached_tokens"}"#,
            "{\"cached_tokens\"",
        ] {
            proof.look_into_answer(silent.as_bytes());
        }
        assert_eq!(counts(&proofs), [0; 4]);
    }
}
