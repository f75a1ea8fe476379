//! Whole answers, on connections that nobody should use again although nothing in the answer says so: bytes behind the end,
//! another's answer there, a close, a reset. What the next request makes of it is chance. It may fail, and never may it be
//! answered with what was meant for another.

use super::status::with_status_line;
use super::{Odd, Outcome, Question, Shape, keeping};
use crate::emulated::vllm::script::{End, REQUEST, RawAnswer};

/// All cases of this page.
pub fn cases(shape: Shape) -> Vec<Odd> {
    [
        bytes_behind(shape),
        answers_behind(shape),
        more_than_stated(shape),
    ]
    .concat()
}

const BEHIND: &[&str] = &["", "x", "\r\n\r\n", "\0\u{1}\u{2}", "{\"choices\":[]}"];

fn bytes_behind(shape: Shape) -> Vec<Odd> {
    let mut cases = Vec::new();
    for end in [End::Keep, End::Close, End::Reset] {
        for behind in BEHIND {
            let question = Question::new(shape);
            let right = question.sized(question.content().as_bytes());
            let answer = RawAnswer::new(end).bytes([&right, behind.as_bytes()].concat());
            let name = format!("{behind:?} behind the end, then {end:?}");
            cases.push(Odd::new(name, &question, answer, Outcome::Taken));
        }
    }
    cases
}

/// A good answer to somebody, with nothing about it that says to whom but its id.
fn answers_behind(shape: Shape) -> Vec<Odd> {
    let mut cases = Vec::new();
    for (by_chunks, at_once) in [(false, false), (false, true), (true, false), (true, true)] {
        for _ in 0..4 {
            let (question, other) = (Question::new(shape), Question::new(shape));
            let [first, second] = [&question, &other].map(|question| {
                let content = question.content();
                if by_chunks {
                    question.chunked(content.as_bytes())
                } else {
                    question.sized(content.as_bytes())
                }
            });
            let second = String::from_utf8_lossy(&second);
            let second = second.replace(REQUEST, &"f".repeat(REQUEST.len()));
            let answer = if at_once {
                keeping([first, second.into_bytes()].concat())
            } else {
                keeping(first).bytes(second)
            };
            let name =
                format!("another's answer behind, at once: {at_once}, in chunks: {by_chunks}");
            cases.push(Odd::new(name, &question, answer, Outcome::Taken));
        }
    }
    cases
}

/// A body longer than its framing says.
fn more_than_stated(shape: Shape) -> Vec<Odd> {
    let short = ["0", "7"].map(|length| {
        let question = Question::new(shape);
        let head = question.head(&format!("content-length: {length}\r\n"));
        let answer = keeping(head + &question.content());
        let name = format!("a length of {length} for more");
        Odd::new(name, &question, answer, Outcome::Useless)
    });
    let bodiless = [204, 304].map(|status| {
        let question = Question::new(shape);
        let bytes = with_status_line(&question, &format!("HTTP/1.1 {status} X"));
        let name = format!("status {status} and a body all the same");
        Odd::new(name, &question, keeping(bytes), Outcome::Useless)
    });
    short.into_iter().chain(bodiless).collect()
}
