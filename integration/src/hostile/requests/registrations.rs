//! Registrations that a router must not take, from somebody who has the fleet's token.

use baton_proto::call::path;
use baton_proto::watch::Registration;
use baton_proto::{Epoch, ErrorKind, PROTOCOL_VERSION, Source};
use rmpv::Value;

use super::messages::{encoded, holder, places, set, strangers, value};
use crate::direct::fresh;
use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain};

/// Why they are refused.
const REFUSALS: &[ErrorKind] = &[
    ErrorKind::BadRequest,
    ErrorKind::Protocol,
    ErrorKind::Conflict,
];

/// Addresses of nobody.
#[rustfmt::skip]
const ADDRESSES: &[&str] = &[
    "http://", "https://h", "ftp://h", "h:1", "//h", "/x", "http://h/x", "http://h?x", "http://h:99999", "http://h:x",
    "http://h\r\nx: y", "http://[::1", "http://a b", "http://h#x/y", "http://me@h", "unix:/x",
];

/// All cases of this page.
pub fn cases() -> Vec<Case> {
    [fields(), addresses(), bytes()].concat()
}

fn registration() -> Value {
    value(&Registration {
        protocol: PROTOCOL_VERSION,
        worker: fresh(),
        epoch: Epoch(1),
        address: "http://127.0.0.1:1".to_owned(),
        leave: false,
    })
}

fn case(what: &str, body: Vec<u8>) -> Case {
    // What proves a router to a sidecar proves anybody to a router.
    let mut plain = Plain::new(Front::Sidecar);
    path::REGISTER.clone_into(&mut plain.target);
    plain.body = body.into();
    let expect = Expect::RefusedAs(REFUSALS, Source::Sidecar);
    Case::new(format!("registration: {what}"), plain.sized(), expect)
}

/// Every field of every other type.
fn fields() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in places(&registration()) {
        for (what, stranger) in strangers() {
            let mut changed = registration();
            let (members, at) = holder(&mut changed, &place);
            let field = members[at].0.to_string();
            members[at].1 = stranger;
            // To leave without ever having come is no offence.
            if !(field.contains("leave") && what == "a truth") {
                cases.push(case(&format!("{field} is {what}"), encoded(&changed)));
            }
        }
    }
    cases
}

fn addresses() -> Vec<Case> {
    let at = |address: &&str| {
        let mut changed = registration();
        set(&mut changed, "address", (*address).into());
        case(&format!("address {address:?}"), encoded(&changed))
    };
    ADDRESSES.iter().map(at).collect()
}

/// Cut at every byte, or with a byte too many.
fn bytes() -> Vec<Case> {
    let whole = encoded(&registration());
    let cuts = (0..whole.len()).map(|at| case(&format!("cut at {at}"), whole[..at].to_vec()));
    let more = case("and a byte", [&whole[..], b"\xc0"].concat());
    cuts.chain([more]).collect()
}
