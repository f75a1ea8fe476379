//! Where an answer ends: lengths and codings that are true and others, chunks, interim answers, cuts, and paces.

use super::{Odd, Outcome, Question, Shape, chunk, closing, keeping};
use crate::emulated::vllm::script::{End, RawAnswer};
use Outcome::{MayBreak, Taken, Useless};

/// All cases of this page.
pub fn cases(shape: Shape) -> Vec<Odd> {
    [
        lengths(shape),
        good_chunks(shape),
        bad_chunks(shape),
        last_chunks(shape),
        interim(shape),
        cuts(shape),
        paces(shape),
    ]
    .concat()
}

const CODED: &str = "transfer-encoding: chunked\r\n";

/// Lines that frame a body; `{n}` is its length, `{+}` more.
#[rustfmt::skip]
const NO_LENGTHS: &[&str] = &[
    "content-length: -1", "content-length: +{n}", "content-length: {n}x", "content-length: 0x{n}", "content-length: ",
    "content-length: {n} {n}", "content-length: {n}.0", "content-length: 18446744073709551616",
    "content-length: 18446744073709551615", "content-length: {n}, {+}", "content-length: {n}\r\ncontent-length: {+}",
    "content-length: {+}\r\ncontent-length: {n}", "content-length: {n}\r\ncontent-length: x", "transfer-encoding: chunked",
];

/// Those that leave the body as it is: up to its length, or up to the connection's end.
#[rustfmt::skip]
const LENGTHS: &[(&str, End)] = &[
    ("content-length: {n}", End::Keep), ("content-length: 000{n}", End::Keep), ("content-length: {n}, {n}", End::Keep),
    ("content-length: {n}\r\ncontent-length: {n}", End::Keep), ("x: no length at all", End::Close),
    ("transfer-encoding: gzip", End::Close), ("transfer-encoding: chunked, identity", End::Close),
    ("transfer-encoding: identity", End::Close), ("transfer-encoding: xchunked", End::Close),
    ("transfer-encoding: chunked;x", End::Close),
];

fn lengths(shape: Shape) -> Vec<Odd> {
    let with = |lines: &str, end: End, outcome: Outcome| {
        let question = Question::new(shape);
        let content = question.content();
        let framing = lines
            .replace("{n}", &content.len().to_string())
            .replace("{+}", &(content.len() + 7).to_string());
        let bytes = question.head(&(framing + "\r\n")) + &content;
        let answer = RawAnswer::new(end).bytes(bytes);
        Odd::new(format!("{lines:?}"), &question, answer, outcome)
    };
    let good = LENGTHS.iter().map(|(lines, end)| with(lines, *end, Taken));
    let bad = NO_LENGTHS.iter();
    let bad = bad.map(|lines| with(lines, End::Close, Useless));
    // The end of a stream is said inside it: what is missing behind it is not missed.
    let too_long = with(
        "content-length: {+}",
        End::Close,
        if shape.stream { Taken } else { Useless },
    );
    good.chain(bad).chain([too_long]).collect()
}

/// A body in chunks of a size, with a line before each and something behind the last.
fn in_chunks(body: &[u8], size: usize, line: impl Fn(usize) -> String, behind: &str) -> Vec<u8> {
    let chunks = body.chunks(size);
    let written = chunks.flat_map(|part| [line(part.len()).as_bytes(), part, b"\r\n"].concat());
    written.chain(behind.bytes()).collect()
}

fn plain(size: usize) -> String {
    format!("{size:x}\r\n")
}

fn good_chunks(shape: Shape) -> Vec<Odd> {
    let with = |name: &str, framing: &str, write: &dyn Fn(&[u8]) -> Vec<u8>| {
        let question = Question::new(shape);
        let body = write(question.content().as_bytes());
        let bytes = [question.head(framing).as_bytes(), &body].concat();
        Odd::new(name, &question, keeping(bytes), Taken)
    };
    let end = "0\r\n\r\n";
    let sizes = [1, 2, 3, 7, 64, 1 << 20].map(|size| {
        let name = format!("chunks of {size}");
        with(&name, CODED, &|body| in_chunks(body, size, plain, end))
    });
    let both = format!("content-length: 3\r\n{CODED}");
    let others = [
        with("a length beside chunks", &both, &|body| {
            in_chunks(body, 9, plain, end)
        }),
        with("chunk extensions", CODED, &|body| {
            let line = |size| format!("{size:X};a=\"b;c\"\r\n");
            in_chunks(body, 50, line, "0;x\r\n\r\n")
        }),
        with("zeros before sizes", CODED, &|body| {
            in_chunks(body, 50, |size| format!("000{size:x}\r\n"), "000\r\n\r\n")
        }),
        with("trailers", CODED, &|body| {
            in_chunks(
                body,
                50,
                plain,
                "0\r\nbaton-error: x\r\ncontent-length: 1\r\n\r\n",
            )
        }),
    ];
    sizes.into_iter().chain(others).collect()
}

type Line = fn(usize) -> String;

#[rustfmt::skip]
const BAD_LINES: &[(&str, Line)] = &[
    ("sizes too small", |size| format!("{:x}\r\n", size - 1)), ("sizes too large", |size| format!("{:x}\r\n", size + 1)),
    ("decimal sizes", |size| format!("{size}\r\n")), ("sizes with 0x", |size| format!("0x{size:x}\r\n")),
    ("bare line feeds", |size| format!("{size:x}\n")),
];

fn bad_chunks(shape: Shape) -> Vec<Odd> {
    let with = |name: &str, body: &dyn Fn(&[u8]) -> Vec<u8>, outcome| {
        let question = Question::new(shape);
        let body = body(question.content().as_bytes());
        let bytes = [question.head(CODED).as_bytes(), &body].concat();
        Odd::new(name, &question, closing(bytes), outcome)
    };
    let lines = BAD_LINES.iter().map(|(name, line)| {
        with(
            name,
            &|body| in_chunks(body, 20, line, "0\r\n\r\n"),
            Useless,
        )
    });
    let garbage = |before: usize| {
        move |body: &[u8]| {
            let parts: Vec<Vec<u8>> = body.chunks(body.len() / 3 + 1).map(chunk).collect();
            let (first, second) = parts.split_at(before);
            [
                &first.concat(),
                &b"garbage\r\n"[..],
                &second.concat(),
                b"0\r\n\r\n",
            ]
            .concat()
        }
    };
    let later = if shape.stream { MayBreak } else { Useless };
    let garbage = [
        with("garbage instead of a chunk", &garbage(0), Useless),
        with("garbage between chunks", &garbage(2), later),
    ];
    lines.chain(garbage).collect()
}

#[rustfmt::skip]
const NO_LAST_CHUNKS: &[&str] = &["", "0\r\n", "-1\r\n\r\n", "zz\r\n\r\n", "ffff\r\nx", "fffffffffffffffff\r\n"];

fn last_chunks(shape: Shape) -> Vec<Odd> {
    let case = |last: &&str| {
        let question = Question::new(shape);
        let body = in_chunks(question.content().as_bytes(), 1 << 20, plain, last);
        let bytes = [question.head(CODED).as_bytes(), &body].concat();
        // The end of a stream was said inside it: what breaks behind it breaks nothing.
        let outcome = if shape.stream { Taken } else { Useless };
        Odd::new(
            format!("last chunk {last:?}"),
            &question,
            closing(bytes),
            outcome,
        )
    };
    NO_LAST_CHUNKS.iter().map(case).collect()
}

/// Interim answers before the one that counts.
fn interim(shape: Shape) -> Vec<Odd> {
    let before = |name: &str, interim: &str, outcome| {
        let question = Question::new(shape);
        let right = question.sized(question.content().as_bytes());
        let bytes = [interim.as_bytes(), &right].concat();
        Odd::new(format!("{name} first"), &question, keeping(bytes), outcome)
    };
    let thousand = "HTTP/1.1 102 Processing\r\n\r\n".repeat(1000);
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\ncontent-length: 5\r\n\r\n";
    let question = Question::new(shape);
    let only = closing("HTTP/1.1 100 Continue\r\n\r\n");
    vec![
        before("100", "HTTP/1.1 100 Continue\r\n\r\n", Taken),
        before("103 with headers", hints, Taken),
        before("102 a thousand times", &thousand, Taken),
        before("199", "HTTP/1.1 199 X\r\n\r\n", Taken),
        before("line ends", "\r\n\r\n", Taken),
        before(
            "half an interim answer",
            "HTTP/1.1 100 Continue\r\n",
            Useless,
        ),
        Odd::new("nothing behind a 100", &question, only, Useless),
    ]
}

/// The connection ends before the answer does. Where a stream's body is cut is a matter of its events.
fn cuts(shape: Shape) -> Vec<Odd> {
    let head = Question::new(shape).head(CODED).len();
    let mut cases = Vec::new();
    for end in [End::Close, End::Reset] {
        for at in (0..=head).step_by(11).chain([head - 1, head]) {
            let question = Question::new(shape);
            let whole = question.chunked(question.content().as_bytes());
            let answer = RawAnswer::new(end).bytes(whole[..at].to_vec());
            let name = format!("cut in the head at {at}, then {end:?}");
            cases.push(Odd::new(name, &question, answer, Useless));
        }
        for tenth in (0..10).filter(|_| !shape.stream) {
            let question = Question::new(shape);
            let body = question.content().len();
            let whole = question.sized(question.content().as_bytes());
            let at = whole.len() - body + body * tenth / 10;
            let answer = RawAnswer::new(end).bytes(whole[..at].to_vec());
            let name = format!("cut at {tenth} tenths of the body, then {end:?}");
            cases.push(Odd::new(name, &question, answer, Useless));
        }
    }
    cases
}

/// Slow, but in time.
fn paces(shape: Shape) -> Vec<Odd> {
    let at_a_time = |size: usize, by_chunks: bool| {
        let question = Question::new(shape);
        let content = question.content();
        let whole = if by_chunks {
            question.chunked(content.as_bytes())
        } else {
            question.sized(content.as_bytes())
        };
        let answer = RawAnswer::new(End::Keep).torn(whole, size);
        let name = format!("{size} bytes at a time, in a chunk: {by_chunks}");
        Odd::new(name, &question, answer, Taken)
    };
    vec![
        at_a_time(1, false),
        at_a_time(1, true),
        at_a_time(3, true),
        at_a_time(64, false),
    ]
}
