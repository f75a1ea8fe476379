//! What one answer says about another: a split answer is the whole engine's, and wrong KV is not.

use serde_json::Value;

use super::{Runner, Stop, tickets};
use crate::conformance::answer::Answer;
use crate::conformance::cases::Part;
use crate::conformance::recording::Recording;
use crate::conformance::shape::Difference;
use crate::conformance::target::Role;

/// What an answer says, by token ids where they are told.
#[derive(Debug, PartialEq)]
enum Said {
    Tokens(Vec<Vec<u64>>),
    Texts(Vec<String>),
}

fn said(answer: &Answer) -> Option<Said> {
    if let Some(tokens) = answer.tokens() {
        return Some(Said::Tokens(tokens));
    }
    let texts = answer.texts();
    let any = texts.iter().any(|text| !text.is_empty());
    any.then_some(Said::Texts(texts))
}

/// True if the same request is always answered with the same tokens.
fn is_deterministic(recording: &Recording) -> bool {
    recording.asked("temperature") == 0 || recording.asked("seed").is_u64()
}

impl Runner<'_> {
    /// Where the recorded answer was equal to an earlier one of the case, this one must be, too.
    pub(super) fn relate(&mut self, recording: &'static Recording, seen: &Answer) {
        if !is_deterministic(recording) {
            return;
        }
        let recorded_now = said(&recording.answer);
        let seen_now = said(seen);
        for (earlier, seen_then) in &self.asked {
            let alike = recorded_now.is_some() && said(&earlier.answer) == recorded_now;
            if !alike || !is_deterministic(earlier) {
                continue;
            }
            self.checked += 1;
            let seen_then = said(seen_then);
            if seen_then != seen_now {
                let at = format!("{} and {}", earlier.name, recording.name);
                let what = format!("were equal, now {seen_then:?} and {seen_now:?}");
                self.found.push(Difference::new(at, what));
            }
        }
    }

    fn told(&self, name: &str) -> Option<Said> {
        let mut asked = self.asked.iter().rev();
        let (_, answer) = asked.find(|(recording, _)| recording.name == name)?;
        said(answer)
    }

    pub(super) fn differ(&mut self, one: &str, other: &str) -> Result<(), Stop> {
        self.checked += 1;
        let (first, second) = (self.told(one), self.told(other));
        if first.is_some() && first != second {
            return Ok(());
        }
        Err(Stop::Fail(format!(
            "{one} and {other} must differ: {first:?}, {second:?}"
        )))
    }

    pub(super) fn wrong(&mut self, recording: &'static Recording) -> Result<(), Stop> {
        let mut request = tickets::plain(&self.fresh, recording, Part::Whole);
        if let (Some(body), Some(asked)) = (&mut request.body, &recording.request) {
            for key in ["max_tokens", "ignore_eos", "return_token_ids"] {
                body[key] = asked.get(key).cloned().unwrap_or(Value::Null);
            }
        }
        let right = self.send(Role::Aggregated, &request, "the right answer")?;
        self.checked += 1;
        let (right, told) = (said(&right), self.told(&recording.name));
        if right.is_some() && told.is_some() && right != told {
            return Ok(());
        }
        let name = &recording.name;
        Err(Stop::Fail(format!(
            "{name} must be wrong: {told:?}, right is {right:?}"
        )))
    }
}
