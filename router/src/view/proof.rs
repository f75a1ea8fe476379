//! The view proves itself: what was predicted to be cached against what the engine reports.

use std::sync::Arc;

use baton_daemon::http::sse;
use baton_daemon::metrics::Counter;
use baton_proto::json::RawObject;
use memchr::memmem;
use serde::Deserialize;

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
    predicted: Option<u64>,
    decision: Arc<Decision>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Proof {
    /// Without a prediction, nothing is looked at and nothing is counted.
    pub fn new(proofs: &Proofs, predicted: Option<u64>, decision: Arc<Decision>) -> Self {
        Self {
            proofs: proofs.clone(),
            predicted,
            decision,
        }
    }

    /// The engine reports how many tokens were cached. Only its first word counts.
    pub fn reported(&mut self, cached: u64) {
        let Some(predicted) = self.predicted.take() else {
            return;
        };
        self.decision.came(|outcome| outcome.cached = Some(cached));
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
            && let Some(cached) = cached_tokens(answer)
        {
            self.reported(cached);
        }
    }

    /// Looks for it in events of a stream.
    pub fn look_into_events(&mut self, events: &[u8]) {
        if self.may_report(events)
            && let Some(cached) = sse::events(events)
                .filter_map(sse::data)
                .find_map(|data| cached_tokens(&data))
        {
            self.reported(cached);
        }
    }

    /// Nearly no event has the word, and parsing each would cost.
    fn may_report(&self, bytes: &[u8]) -> bool {
        self.predicted.is_some() && memmem::find(bytes, b"\"cached_tokens\"").is_some()
    }
}

fn cached_tokens(json: &[u8]) -> Option<u64> {
    let usage: Usage = RawObject::parse(json).ok()?.get_as("usage")?;
    usage.prompt_tokens_details?.cached_tokens
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Proof::new(proofs, predicted, Arc::default())
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
            r#"{"usage":{"prompt_tokens":9}}"#,
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
