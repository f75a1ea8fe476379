//! Several requests over one connection: behind each other, and one inside the body of another.

use baton_proto::ErrorKind;

use super::framing::unreadable;
use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain};

/// All cases of this page.
pub fn cases(front: Front) -> Vec<Case> {
    [
        hidden(front),
        in_a_row(front),
        with_something_between(front),
    ]
    .concat()
}

const METHODS: &[&str] = &[
    "GET", "DELETE", "OPTIONS", "TRACE", "PUT", "PATCH", "POST", "PURGE",
];

/// A whole request inside the body of another. Whether or not anybody reads that body, it is no request.
fn hidden(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    for method in METHODS {
        for by_chunks in [false, true] {
            let (mut outer, hidden) = (Plain::live(front), Plain::new(front));
            (*method).clone_into(&mut outer.method);
            outer.body = hidden.sized().into();
            let expect = if *method == "GET" {
                Expect::Own
            } else {
                Expect::refused(ErrorKind::MethodNotAllowed)
            };
            let name = format!("a request in the body of a {method}, in chunks: {by_chunks}");
            cases.push(Case::new(name, outer.framed(by_chunks), expect));
        }
    }
    for by_chunks in [false, true] {
        let (mut outer, hidden) = (Plain::new(front), Plain::new(front));
        let body = [&outer.body[..], b"\r\n\r\n", &hidden.sized()];
        outer.body = body.concat().into();
        let name = format!("a request behind the JSON of another, in chunks: {by_chunks}");
        cases.push(Case::new(name, outer.framed(by_chunks), Expect::bad()).goes_on());
    }
    cases
}

/// Good requests that do not wait for each other's answer.
fn in_a_row(front: Front) -> Vec<Case> {
    let row = |count: usize| {
        let plains: Vec<Plain> = (0..count).map(|_| Plain::new(front)).collect();
        let framed = plains.iter().enumerate();
        let bytes: Vec<u8> = framed
            .flat_map(|(at, plain)| plain.framed(at % 2 == 1))
            .collect();
        let first = plains[0].served(format!("{count} requests in one go"), bytes);
        let rest = plains[1..].iter();
        rest.fold(first.goes_on(), |case, plain| {
            case.and(Expect::Text(plain.text.clone())).means(plain)
        })
    };
    [2, 3, 8].map(row).into()
}

fn with_something_between(front: Front) -> Vec<Case> {
    let mut cases = Vec::new();
    // What is refused before its body is read may end the connection, but never shift it.
    let (first, mut second, third) = (Plain::new(front), Plain::new(front), Plain::new(front));
    second.body = b"{".as_slice().into();
    let bytes = [first.sized(), second.sized(), third.sized()].concat();
    let case = first.served("a bad one between two good ones", bytes);
    let case = case.and(unreadable(front));
    cases.push(case.and(Expect::Text(third.text.clone())).means(&third));

    let (first, second) = (Plain::new(front), Plain::new(front));
    let bytes = [first.sized(), b"\r\n\r\n".to_vec(), second.sized()].concat();
    let case = first.served("empty lines between two requests", bytes);
    cases.push(case.and(Expect::Text(second.text.clone())).means(&second));

    let (first, second) = (Plain::new(front), Plain::new(front));
    let bytes = [first.sized(), b"x".to_vec(), second.sized()].concat();
    let case = first.served("a byte too many between two requests", bytes);
    cases.push(case.and(Expect::refused(ErrorKind::MethodNotAllowed)));
    cases
}
