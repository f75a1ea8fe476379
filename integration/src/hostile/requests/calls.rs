//! Baton's own protocol, spoken badly by somebody who has the fleet's token: every field of every call missing, doubled or
//! of another type, lengths that lie, nesting without end, routes and ids that would reach where they should not.

use baton_proto::call::{DecodeCall, GenerateCall, PrefillCall, path};
use baton_proto::digest::RequestDigest;
use baton_proto::frame::MAX_FRAME;
use baton_proto::route::Route;
use baton_proto::ticket::{Draft, Ticket, TransferMetadata};
use baton_proto::token::FleetToken;
use baton_proto::{ErrorKind, Source};
use rand::Rng;
use rmpv::Value;
use serde_json::json;

use super::messages::{Members, encoded, holder, members, places, set, strangers, value};
use crate::direct::fresh;
use crate::emulated::model;
use crate::fleet::TOKEN;
use crate::hostile::case::{Case, Expect};
use crate::hostile::plain::{Front, Plain, mark, prompt};
use crate::hostile::seed::chance;

/// How a call that cannot be read or is not genuine is refused.
const REFUSALS: &[ErrorKind] = &[
    ErrorKind::Protocol,
    ErrorKind::TicketRefused,
    ErrorKind::LeaseExpired,
];

/// The worker that is attacked.
const WORKER: &str = "d0";

/// All cases of this page, for the sidecar of the decode worker `d0`.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for make in [prefill, decode, generate] {
        cases.extend(fields(make));
        cases.extend(wholes(make));
        cases.extend(depths(make));
        cases.extend(lengths(make));
        cases.extend(by_chance(make));
        cases.extend(routes(make));
        cases.extend(ids(make));
    }
    cases.extend(leases());
    cases.extend(harmless());
    cases
}

/// A call that is good but for what is done to it.
struct Good {
    name: &'static str,
    path: &'static str,
    head: Value,
    body: String,
    mark: String,
}

impl Good {
    fn new(name: &'static str, path: &'static str, head: impl FnOnce(&str) -> Value) -> Self {
        let mark = mark();
        let body = json!({"model": "tiny", "prompt": prompt(&mark), "max_tokens": 4}).to_string();
        Self {
            name,
            path,
            head: head(&body),
            body,
            mark,
        }
    }

    /// Its envelope, with this frame.
    fn framed(&self, frame: &[u8]) -> Vec<u8> {
        let length = u32::try_from(frame.len()).unwrap();
        [&length.to_be_bytes(), frame, self.body.as_bytes()].concat()
    }

    /// A request with this envelope.
    fn request(&self, envelope: impl Into<Vec<u8>>) -> Vec<u8> {
        let mut plain = Plain::new(Front::Sidecar);
        self.path.clone_into(&mut plain.target);
        plain.body = envelope.into().into();
        plain.sized()
    }

    fn refused(&self, what: &str, envelope: impl Into<Vec<u8>>) -> Case {
        let name = format!("{}: {what}", self.name);
        let expect = Expect::RefusedAs(REFUSALS, Source::Router);
        Case::new(name, self.request(envelope), expect)
    }
}

fn prefill() -> Good {
    Good::new("prefill", path::PREFILL, |_| {
        value(&PrefillCall {
            request: fresh(),
            ticket: fresh(),
            decode: WORKER.parse().unwrap(),
            decode_at: None,
            router: None,
            route: Route::Completions,
            deadline_ms: 10_000,
            uncached_tokens: None,
        })
    })
}

fn decode() -> Good {
    with_lease(20_000, 10_000)
}

fn generate() -> Good {
    Good::new("generate", path::GENERATE, |_| {
        value(&GenerateCall {
            request: fresh(),
            route: Route::Completions,
            deadline_ms: 10_000,
            uncached_tokens: None,
        })
    })
}

/// A decode call with a genuine ticket of this lease, for KV that nobody holds.
fn with_lease(lease: u64, left: u64) -> Good {
    Good::new("decode", path::DECODE, |body| {
        value(&DecodeCall {
            request: fresh(),
            ticket: ticket(body, lease, left),
            prefill_at: None,
            route: Route::Completions,
            deadline_ms: 10_000,
        })
    })
}

fn ticket(body: &str, lease_ms: u64, left: u64) -> Ticket {
    let metadata = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]], "remote_engine_id": "nobody",
        "remote_request_id": "cmpl-nobody-0-00000000", "remote_host": "127.0.0.1", "remote_port": 1, "tp_size": 1,
    });
    let draft = Draft {
        id: fresh(),
        prefill: "p0".parse().unwrap(),
        incarnation: "nobody".parse().unwrap(),
        decode: WORKER.parse().unwrap(),
        request_digest: RequestDigest::of(Route::Completions.path(), body.as_bytes()),
        prompt_tokens: Some(21),
        bytes: Some(1),
        lease_ms,
        metadata: TransferMetadata::new(metadata.to_string()),
    };
    draft.seal(&FleetToken::new(TOKEN).unwrap(), left)
}

/// Every field missing, doubled, under another name, and of every other type.
fn fields(make: fn() -> Good) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in places(&make().head) {
        let mut changed = |what: &str, change: &dyn Fn(&mut Members, usize)| {
            let mut good = make();
            let (members, at) = holder(&mut good.head, &place);
            let field = members[at].0.to_string();
            change(members, at);
            let envelope = good.framed(&encoded(&good.head));
            cases.push(good.refused(&format!("{field} {what}"), envelope));
        };
        changed("missing", &|members, at| drop(members.remove(at)));
        changed("given twice", &|members, at| {
            members.push(members[at].clone());
        });
        changed("under a number", &|members, at| members[at].0 = 99.into());
        changed("under a list", &|members, at| {
            members[at].0 = Value::Array(vec![]);
        });
        for (what, stranger) in strangers() {
            changed(&format!("is {what}"), &|members, at| {
                members[at].1 = stranger.clone();
            });
        }
    }
    cases
}

/// What may stand in a frame instead of a call.
#[rustfmt::skip]
const FRAMES: &[(&str, &[u8])] = &[
    ("nothing", b""), ("JSON", b"{\"request\":\"r\"}"), ("a reserved marker", b"\xc1"), ("an empty map", b"\x80"),
    ("a text of 4 GiB", b"\xdb\xff\xff\xff\xff"), ("bytes of 4 GiB", b"\xc6\xff\xff\xff\xff"),
    ("a list of 4 G", b"\xdd\xff\xff\xff\xff"), ("a map of 4 G", b"\xdf\xff\xff\xff\xff"),
    ("an extension of 4 GiB", b"\xc9\xff\xff\xff\xff\x01"), ("a text that is no text", b"\xa2\xff\xfe"),
];

fn wholes(make: fn() -> Good) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut whole = |what: &str, frame: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let good = make();
        let envelope = good.framed(&frame(encoded(&good.head)));
        cases.push(good.refused(what, envelope));
    };
    for (what, stranger) in strangers() {
        whole(&format!("{what} for a call"), &|_| encoded(&stranger));
    }
    whole("a call and a byte", &|call| [call, vec![0xc0]].concat());
    whole("two calls", &|call| call.repeat(2));
    for (what, frame) in FRAMES {
        whole(what, &|_| frame.to_vec());
        whole(&format!("{what}, in a member that nobody knows"), &|_| {
            [b"\x81\xa1x", *frame].concat()
        });
    }
    cases
}

fn depths(make: fn() -> Good) -> Vec<Case> {
    let mut cases = Vec::new();
    for depth in [100, 1000, 100_000, 1_000_000] {
        for (what, level) in [("lists", &b"\x91"[..]), ("maps", b"\x81\xa1x")] {
            let good = make();
            let envelope = good.framed(&level.repeat(depth));
            cases.push(good.refused(&format!("{depth} {what} in each other"), envelope));
        }
    }
    cases
}

/// A frame's length that is not its length, and a frame that is not all there.
fn lengths(make: fn() -> Good) -> Vec<Case> {
    let right = encoded(&make().head).len();
    let whole = right + make().body.len();
    let near = [0, 1, right - 1, whole, whole + 1, whole + 100_000];
    let far = [MAX_FRAME, MAX_FRAME + 1, 0x7fff_ffff, 0xffff_ffff];
    let lies = near.into_iter().chain(far).map(|length| {
        let good = make();
        let mut envelope = good.framed(&encoded(&good.head));
        let stated = u32::try_from(length).unwrap();
        envelope[..4].copy_from_slice(&stated.to_be_bytes());
        good.refused(
            &format!("a length of {length} instead of {right}"),
            envelope,
        )
    });
    let cuts = (0..right + 4).step_by(3).map(|at| {
        let good = make();
        let envelope = good.framed(&encoded(&good.head));
        good.refused(&format!("cut at {at}"), &envelope[..at])
    });
    lies.chain(cuts).collect()
}

/// Bytes of the frame changed by chance. Some changes make another good call.
fn by_chance(make: fn() -> Good) -> Vec<Case> {
    let mut chance = chance("frames by chance");
    let case = |number: usize| {
        let good = make();
        let mut frame = encoded(&good.head);
        let at = chance.random_range(0..frame.len());
        frame[at] = frame[at].wrapping_add(chance.random_range(1..=u8::MAX));
        let name = format!("{}: chance {number} at {at}", good.name);
        let bytes = good.request(good.framed(&frame));
        Case::new(name, bytes, Expect::Anything).may_mean(&good.mark)
    };
    (0..120).map(case).collect()
}

/// Routes that an engine has and no client may reach, and spellings of one that it may.
#[rustfmt::skip]
const ROUTES: &[&str] = &[
    "", "/", "*", "/health", "/metrics", "/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    "/inference/v1/generate", "/inference/v1/abort_requests", "/sleep", "/collective_rpc", "/v1/completions/", "//v1/completions",
    "/v1/completions?x", "/v1/completions#x", "/v1/../sleep", "/v1/completions/../../sleep", "http://evil/v1/completions",
    "@evil/v1/completions", ".evil/v1/completions", "/v1/completions HTTP/1.1\r\nx: y\r\n\r\n", "/v1/completions\0",
    "/V1/COMPLETIONS", "v1/completions", "Completions", "completions",
];

fn routes(make: fn() -> Good) -> Vec<Case> {
    let case = |route: &&str| {
        let mut good = make();
        set(&mut good.head, "route", (*route).into());
        let envelope = good.framed(&encoded(&good.head));
        good.refused(&format!("route {route:?}"), envelope)
    };
    ROUTES.iter().map(case).collect()
}

/// What is no id: ids become headers, and names in tables.
#[rustfmt::skip]
const IDS: &[&str] = &[
    "", " ", "a b", "a\r\nb", "a\0b", "a/b", "../x", "a\u{e4}", "\u{2028}", "a:b", "a\tb", "a,b", "{}", "%0d%0a",
    "65-characters-are-one-too-many-65-characters-are-one-too-many-65-",
];

fn ids(make: fn() -> Good) -> Vec<Case> {
    let case = |id: &&str| {
        let mut good = make();
        set(&mut good.head, "request", (*id).into());
        let envelope = good.framed(&encoded(&good.head));
        good.refused(&format!("request {id:?}"), envelope)
    };
    IDS.iter().map(case).collect()
}

/// Genuine tickets with leases beyond all time. The engine is asked, and has nothing to decode from.
fn leases() -> Vec<Case> {
    let case = |lease: u64| {
        let good = with_lease(lease, lease);
        let bytes = good.request(good.framed(&encoded(&good.head)));
        let expect = Expect::RefusedAs(&[ErrorKind::EngineFailed], Source::Engine);
        Case::new(format!("a lease of {lease} ms"), bytes, expect).may_mean(&good.mark)
    };
    [60_000, u64::from(u32::MAX), u64::MAX / 2, u64::MAX]
        .map(case)
        .into()
}

/// What a newer or merely different router may send.
fn harmless() -> Vec<Case> {
    let served = |what: &str, change: &dyn Fn(&mut Value)| {
        let mut good = generate();
        change(&mut good.head);
        let bytes = good.request(good.framed(&encoded(&good.head)));
        let text = model::text(&prompt(&good.mark), 4);
        let case = Case::new(what, bytes, Expect::Text(text));
        case.means_body(&good.mark, good.body.clone())
    };
    let deep = (0..30).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
    let unknown = |value: Value| {
        move |call: &mut Value| members(call).insert(0, ("new".into(), value.clone()))
    };
    let mut cases = vec![
        served(
            "an unknown member",
            &unknown(Value::Array(vec![Value::Nil; 3])),
        ),
        served("an unknown member, 30 deep", &unknown(deep)),
        served("members in another order", &|call| members(call).reverse()),
    ];
    for deadline in [60_000, u64::from(u32::MAX), u64::MAX] {
        let what = format!("a deadline of {deadline} ms");
        cases.push(served(&what, &|call| {
            set(call, "deadline_ms", deadline.into())
        }));
    }
    cases
}
