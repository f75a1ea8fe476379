//! What clients ask, and how they leave: a pure function of the seed and the request's number.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::emulated::model;
use crate::emulated::vllm::MODEL;

/// Prompts share their beginnings with others of the same subject, so that engines find cached blocks.
const SUBJECTS: u32 = 12;

/// Of a hundred clients so many do not wait for their answer.
const LEAVERS: u32 = 8;

/// A request, the only right answer, and what its client does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Its number in the run.
    pub number: usize,
    /// Route.
    pub path: &'static str,
    /// Body.
    pub body: String,
    /// Whether it is streamed.
    pub stream: bool,
    /// What an engine that computes it alone says.
    pub text: String,
    /// When its client goes away.
    pub leave: Option<Leave>,
}

/// A client that does not wait for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// When.
    pub stage: Stage,
    /// With a reset, and not in order.
    pub reset: bool,
}

/// When a client goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In the middle of its body.
    InBody,
    /// So long after its request.
    After(Duration),
    /// After so many events of its stream.
    AfterEvents(usize),
}

impl Ask {
    /// The request of this number.
    pub fn new(seed: u64, number: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ (number as u64).wrapping_mul(0x9e37_79b9));
        let stream = random.random_bool(0.5);
        let count = random.random_range(2..20);
        let words = prompt(&mut random, number);
        let (path, what, text) = match random.random_range(0..3) {
            0 => {
                let tokens: Vec<u32> = words.bytes().map(u32::from).collect();
                let text = model::tokens_text(&tokens, count);
                ("/v1/completions", ("prompt", json!(tokens)), text)
            }
            1 => {
                let text = model::text(&words, count);
                ("/v1/completions", ("prompt", json!(words)), text)
            }
            _ => {
                let messages = json!([{"role": "user", "content": words}]);
                let text = model::chat_text(&messages, count);
                ("/v1/chat/completions", ("messages", messages), text)
            }
        };
        let mut body = json!({"model": MODEL, "max_tokens": count, "stream": stream});
        body[what.0] = what.1;
        Self {
            number,
            path,
            body: Value::to_string(&body),
            stream,
            text,
            leave: leave(&mut random, stream),
        }
    }
}

fn prompt(random: &mut StdRng, number: usize) -> String {
    let subject = random.random_range(0..SUBJECTS);
    let shared = format!("Of subject {subject} all that was said before is said again. ");
    let repeated = shared.repeat(random.random_range(0..6));
    let own = format!("Request {number} wants to know: ");
    // A few are shorter than a block, and hold nothing but their own.
    if random.random_ratio(1, 40) {
        return own;
    }
    let length = random.random_range(1..120);
    let rest: String = (0..length)
        .map(|_| char::from(random.random_range(b'a'..=b'z')))
        .collect();
    format!("{repeated}{own}{rest}")
}

fn leave(random: &mut StdRng, stream: bool) -> Option<Leave> {
    if !random.random_ratio(LEAVERS, 100) {
        return None;
    }
    let stage = match random.random_range(0..8) {
        0 => Stage::InBody,
        1..3 if stream => Stage::AfterEvents(random.random_range(1..6)),
        _ => Stage::After(Duration::from_micros(random.random_range(0..40_000))),
    };
    let reset = random.random_bool(0.5);
    Some(Leave { stage, reset })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn requests_are_a_function_of_seed_and_number() {
        for number in 0..50 {
            assert_eq!(Ask::new(7, number), Ask::new(7, number));
        }
        let bodies: BTreeSet<String> = (0..500).map(|number| Ask::new(7, number).body).collect();
        assert_eq!(bodies.len(), 500, "no two are alike");
    }

    #[test]
    fn all_kinds_are_among_them() {
        let asks: Vec<Ask> = (0..1000).map(|number| Ask::new(1, number)).collect();
        let share = |of: &dyn Fn(&Ask) -> bool| asks.iter().filter(|ask| of(ask)).count();
        assert!((400..600).contains(&share(&|ask| ask.stream)));
        assert!((250..420).contains(&share(&|ask| ask.path.contains("chat"))));
        assert!((40..130).contains(&share(&|ask| ask.leave.is_some())));
        let stages = asks.iter().filter_map(|ask| ask.leave);
        let kinds: BTreeSet<&str> = stages
            .map(|leave| match leave.stage {
                Stage::InBody => "body",
                Stage::After(_) => "after",
                Stage::AfterEvents(_) => "events",
            })
            .collect();
        assert_eq!(kinds.len(), 3);
    }
}
