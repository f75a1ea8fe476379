//! The head of an answer: its status line, what its status says and of whom, its headers, its content type.

use super::{Odd, Outcome, Question, Shape, closing, keeping};
use crate::emulated::vllm::script::{End, RawAnswer};
use Outcome::{Judgement, Taken, Useless};

/// All cases of this page.
pub fn cases(shape: Shape) -> Vec<Odd> {
    [
        lines(shape),
        not_judgements(shape),
        judgements(shape),
        headers(shape),
        content_types(shape),
    ]
    .concat()
}

/// The right answer with this status line.
pub(super) fn with_status_line(question: &Question, line: &str) -> Vec<u8> {
    let right = question.sized(question.content().as_bytes());
    let end = memchr::memmem::find(&right, b"\r\n").unwrap_or(0);
    [line.as_bytes(), &right[end..]].concat()
}

const LINES: &[&str] = &[
    "HTTP/1.1 200",
    "HTTP/1.1 200 ",
    "HTTP/1.1 200 Fine",
    "HTTP/1.1 200 OK OK OK",
];

#[rustfmt::skip]
const NO_LINES: &[&str] = &[
    "", "HTTP/1.1", "HTTP/1.1 ", "HTTP/1.1 2", "HTTP/1.1 20", "HTTP/1.1 abc OK", "HTTP/1.1 2000 OK", "HTTP/1.1 -200 OK",
    "HTTP/1.1 +200 OK", "HTTP/1.1 0x200 OK", "HTTP/1.1 200OK", "HTTP/1.1 099 OK", "HTTP/1.2 200 OK", "HTTP/2.0 200 OK",
    "HTTP/2 200 OK", "http/1.1 200 OK", "HTTPS/1.1 200 OK", "ICY 200 OK", "200 OK", " HTTP/1.1 200 OK", "HTTP/1.1  200 OK",
    "HTTP/1.1\t200 OK", "\u{0}HTTP/1.1 200 OK", "HTTP/1.1 200 \u{0}", "SSH-2.0-x", "\u{16}\u{3}\u{1}", "<html>",
    "{\"choices\":[]}", "GET / HTTP/1.1",
];

fn lines(shape: Shape) -> Vec<Odd> {
    let build = |line: &str| {
        let question = Question::new(shape);
        let bytes = with_status_line(&question, line);
        (format!("status line {line:?}"), question, bytes)
    };
    let good = LINES.iter().map(|line| {
        let (name, question, bytes) = build(line);
        Odd::new(name, &question, keeping(bytes), Taken)
    });
    let bad = NO_LINES.iter().map(|line| {
        let (name, question, bytes) = build(line);
        Odd::new(name, &question, closing(bytes), Useless)
    });
    good.chain(bad).collect()
}

/// Statuses that say nothing of the request: not what was asked for, or about the engine, the sidecar or the moment.
#[rustfmt::skip]
const NOT_JUDGEMENTS: &[u16] = &[
    201, 202, 203, 206, 299, 300, 301, 302, 303, 307, 308, 399, 401, 403, 407, 408, 425, 429, 500, 501, 502, 503, 504, 505, 599,
    600, 999,
];

fn not_judgements(shape: Shape) -> Vec<Odd> {
    let with_body = NOT_JUDGEMENTS.iter().map(|status| {
        let question = Question::new(shape);
        let line = format!("HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/");
        let answer = keeping(with_status_line(&question, &line));
        let name = format!("status {status} and a right body");
        Odd::new(name, &question, answer, Useless)
    });
    let without = [204, 205, 304].map(|status| {
        let question = Question::new(shape);
        let bytes = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        let name = format!("status {status} and no body");
        Odd::new(name, &question, keeping(bytes), Useless)
    });
    let switched = Question::new(shape);
    let line = "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x";
    let bytes = with_status_line(&switched, line);
    let switched = Odd::new("status 101", &switched, closing(bytes), Useless);
    with_body.chain(without).chain([switched]).collect()
}

const SORRY: &str =
    r#"{"error":{"message":"not like this","type":"BadRequestError","param":null,"code":400}}"#;

/// Statuses with which an engine judges a request, whatever it says with them.
fn judgements(shape: Shape) -> Vec<Odd> {
    let mut cases = Vec::new();
    for status in [400, 402, 404, 405, 409, 410, 413, 415, 422, 499] {
        for body in [SORRY, "", "<html></html>", &SORRY[..20]] {
            let question = Question::new(shape);
            let length = body.len();
            let bytes = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            let name = format!("status {status} and {body:?}");
            let outcome = Judgement(status);
            cases.push(Odd::new(name, &question, keeping(bytes), outcome));
        }
    }
    cases
}

/// Headers that change nothing, and do not reach the client.
#[rustfmt::skip]
const HEADERS: &[&str] = &[
    "x: \u{e4}", "x:", "X-Y:z", "x: y\r\nx: z", "set-cookie: a=b", "content-encoding: identity", "baton-plan: local",
    "baton-error: bad_request; source=client; stage=request; retry=no", "connection: x", "keep-alive: timeout=0",
    "retry-after: 100000", "upgrade: h2c", "trailer: x", "alt-svc: h3=\":443\"",
];

/// Lines that are no headers, and codings that nobody asked for.
#[rustfmt::skip]
const NO_HEADERS: &[&str] = &[
    "no colon", ": x", "x\u{0}: y", "x: \u{0}", "x y: z", "x: y\rz", "\u{e4}: x", " x: y", "content-encoding: gzip",
    "content-encoding: x-gzip", "content-encoding: deflate", "content-encoding: br", "content-encoding: zstd",
    "content-encoding: identity, gzip", "content-encoding: x", "content-encoding: identity\r\ncontent-encoding: gzip",
];

fn headers(shape: Shape) -> Vec<Odd> {
    let with = |lines: &str, outcome: Outcome| {
        let question = Question::new(shape);
        let content = question.content();
        let length = content.len();
        let head = question.head(&format!("{lines}\r\ncontent-length: {length}\r\n"));
        let shown: String = lines.chars().take(40).collect();
        let name = format!("{shown:?}, {} bytes", lines.len());
        Odd::new(name, &question, keeping(head + &content), outcome)
    };
    let many = |count: usize| {
        let lines: Vec<String> = (0..count).map(|at| format!("x-{at}: y")).collect();
        lines.join("\r\n")
    };
    let long = |length: usize| format!("x: {}", "y".repeat(length));
    let mut cases: Vec<Odd> = HEADERS.iter().map(|line| with(line, Taken)).collect();
    cases.extend(NO_HEADERS.iter().map(|line| with(line, Useless)));
    cases.extend([many(90), long(30_000)].map(|lines| with(&lines, Taken)));
    cases.extend([many(200), many(5000), long(2_000_000)].map(|lines| with(&lines, Useless)));
    let question = Question::new(shape);
    let endless = closing("HTTP/1.1 200 OK\r\n").repeated("x: yyyyyyyy\r\n".repeat(500), u64::MAX);
    cases.push(Odd::new(
        "headers without an end",
        &question,
        endless,
        Useless,
    ));
    cases
}

/// A content type decides whether an answer is read as a stream; one that is not what was asked for is no answer.
fn content_types(shape: Shape) -> Vec<Odd> {
    let whole = [
        "application/json",
        "Application/JSON; charset=utf-8",
        "text/html",
        "x",
        "",
        ";",
    ];
    let events = [
        "text/event-stream",
        "TEXT/EVENT-STREAM",
        "Text/Event-Stream ;charset=utf-8",
        "text/event-stream;",
    ];
    let with = |content_type: &&str, outcome| {
        let question = Question::new(shape);
        let content = question.content();
        let length = content.len();
        let bytes = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{content}"
        );
        let name = format!("type {content_type:?}");
        Odd::new(name, &question, keeping(bytes), outcome)
    };
    let (right, wrong) = if shape.stream {
        (&events[..], &whole[..])
    } else {
        (&whole[..], &events[..])
    };
    let right = right.iter().map(|content_type| with(content_type, Taken));
    let wrong = wrong.iter().map(|content_type| with(content_type, Useless));
    // The other kind of answer, right in itself.
    let question = Question::new(shape);
    let other = Question {
        shape: Shape {
            stream: !shape.stream,
            ..shape
        },
        ..question.clone()
    };
    let answer = keeping(other.sized(other.content().as_bytes()));
    let other = Odd::new("the other kind of answer", &question, answer, Useless);
    right.chain(wrong).chain([other]).collect()
}

/// What only time ends.
pub fn late(shape: Shape) -> Vec<Odd> {
    let hanging = |bytes: &[u8]| RawAnswer::new(End::Hang).bytes(bytes.to_vec());
    let late = |name: &str, answer: &dyn Fn(&Question) -> RawAnswer| {
        let question = Question::new(shape);
        Odd::new(name, &question, answer(&question), Outcome::Late)
    };
    let coded = "transfer-encoding: chunked\r\n";
    vec![
        late("nothing", &|_| RawAnswer::new(End::Hang)),
        late("half a head", &|question| {
            hanging(&question.head("").as_bytes()[..30])
        }),
        late("a head and nothing behind it", &|question| {
            hanging(question.head(coded).as_bytes())
        }),
        late("half a chunk's size", &|question| {
            hanging(&[question.head(coded).as_bytes(), b"f"].concat())
        }),
        late("a 100 and nothing behind it", &|_| {
            hanging(b"HTTP/1.1 100 Continue\r\n\r\n")
        }),
        late("half of the first word", &|question| {
            let whole = question.sized(question.content().as_bytes());
            let at = memchr::memmem::find(&whole, question.words[0].as_bytes());
            hanging(&whole[..at.unwrap_or(0) + 2])
        }),
    ]
}

/// Interim answers without an end: the one thing of this kind that keeps everybody busy.
pub fn interim_without_end() -> Odd {
    let question = Question::new(Shape::ALL[0]);
    let hint = format!(
        "HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n",
        "x".repeat(250)
    );
    let answer = RawAnswer::new(End::Hang).repeated(hint.repeat(20), u64::MAX);
    Odd::new("103 without an end", &question, answer, Outcome::Late)
}
