//! A case: bytes that go to a daemon, and what must become of them.

use baton_proto::{Error, ErrorKind, Source, Stage};
use bytes::Bytes;

use super::plain::Plain;
use super::reply::{Got, Reply};

/// What a daemon must make of one request.
#[derive(Debug, Clone)]
pub enum Expect {
    /// An engine serves it with this text.
    Text(String),
    /// The daemon itself answers 200.
    Own,
    /// Baton refuses it, in OpenAI's shape, and blames this one.
    Refused(ErrorKind, Source),
    /// Baton refuses it for one of these reasons, in OpenAI's shape, and blames this one.
    RefusedAs(&'static [ErrorKind], Source),
    /// It is no HTTP that anybody can agree on: one of these statuses, or the connection is closed without a word.
    NoHttp(&'static [u16]),
    /// The connection is closed without an answer.
    Closed,
    /// Nothing is wrong with it that Baton must know: somebody's judgement, be it an answer or a refusal with 4xx.
    Judged,
    /// Any whole answer: only what happens to others counts.
    Anything,
}

impl Expect {
    /// Refused, and the client is to blame.
    pub fn refused(kind: ErrorKind) -> Self {
        Self::Refused(kind, Source::Client)
    }

    /// Refused with 400, and the client is to blame.
    pub fn bad() -> Self {
        Self::refused(ErrorKind::BadRequest)
    }

    /// Refused with 400 by whoever reads HTTP.
    pub fn no_http() -> Self {
        Self::NoHttp(&[400])
    }

    /// Why this answer is the wrong one; `None` stands for the end of the connection.
    pub fn judge(&self, answer: Option<&Got>) -> Result<(), String> {
        let Some(answer) = answer else {
            return match self {
                Self::NoHttp(_) | Self::Closed => Ok(()),
                _ => Err(format!("wanted {self:?}, got no answer")),
            };
        };
        let wrong = |why: &str| Err(format!("wanted {self:?}, {why}, got {answer:?}"));
        if !answer.complete {
            return wrong("the answer was cut");
        }
        match self {
            Self::Text(text) if answer.status == 200 && !answer.made_by_baton() => {
                match answer.generated() {
                    Some(said) if said == *text => Ok(()),
                    _ => wrong("with that text"),
                }
            }
            Self::Own if answer.status == 200 && !answer.made_by_baton() => Ok(()),
            Self::Refused(kind, source) => {
                refused(&[*kind], *source, answer).or_else(|why| wrong(&why))
            }
            Self::RefusedAs(kinds, source) => {
                refused(kinds, *source, answer).or_else(|why| wrong(&why))
            }
            Self::NoHttp(statuses) if statuses.contains(&answer.status) => Ok(()),
            Self::Judged => judged(answer).or_else(&wrong),
            Self::Anything => Ok(()),
            _ => wrong("nothing else"),
        }
    }
}

fn refused(kinds: &[ErrorKind], source: Source, answer: &Got) -> Result<(), String> {
    let blame = answer.header("baton-error").unwrap_or_default();
    let fits = |kind: &&ErrorKind| {
        let status = Error::new(**kind, source, Stage::Request, "").status();
        let begins = format!("{kind}; source={source}; ");
        answer.status == status && blame.starts_with(&begins)
    };
    if kinds.iter().any(|kind| fits(&kind)) {
        answer.shaped_as_openai()
    } else {
        Err("that blame and its status".to_owned())
    }
}

fn judged(answer: &Got) -> Result<(), &'static str> {
    match answer.status {
        200 if answer.generated().is_some() => Ok(()),
        200 => Err("not a 200 without content"),
        400..500 if !answer.made_by_baton() => Ok(()),
        400..500 if answer.shaped_as_openai().is_ok() => Ok(()),
        _ => Err("nobody's fault but the client's"),
    }
}

/// What the client does behind its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// It waits, and sends a good request if the connection is still open.
    Waits,
    /// It closes its sending side at once.
    Shuts,
}

/// What must become of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// It may go on or be closed.
    Either,
    /// It must be closed: nobody can be sure where the next request would begin.
    Closed,
    /// It must go on.
    Open,
}

/// Bytes that go to a daemon over one connection, and what must become of them.
#[derive(Debug, Clone)]
pub struct Case {
    /// What is wrong with it.
    pub name: String,
    /// The bytes.
    pub bytes: Bytes,
    /// What the client does behind them.
    pub behind: Behind,
    /// What must become of each request in them, in order.
    pub expect: Vec<Expect>,
    /// What must become of the connection.
    pub connection: Connection,
    /// The requests in it that an engine may see.
    pub meant: Vec<Meant>,
}

/// A request that an engine may see.
#[derive(Debug, Clone)]
pub struct Meant {
    /// Its mark.
    pub mark: String,
    /// The body with which it must arrive, once; without one it may arrive once or not at all.
    pub body: Option<Bytes>,
}

impl Case {
    /// One request.
    pub fn new(name: impl Into<String>, bytes: impl Into<Bytes>, expect: Expect) -> Self {
        Self {
            name: name.into(),
            bytes: bytes.into(),
            behind: Behind::Waits,
            expect: vec![expect],
            connection: Connection::Either,
            meant: Vec::new(),
        }
    }

    /// An engine must see this request once, byte for byte.
    #[must_use]
    pub fn means(self, plain: &Plain) -> Self {
        self.means_body(&plain.mark, plain.inner.clone())
    }

    /// An engine must see this body once, byte for byte.
    #[must_use]
    pub fn means_body(mut self, mark: &str, body: impl Into<Bytes>) -> Self {
        self.meant.push(Meant {
            mark: mark.to_owned(),
            body: Some(body.into()),
        });
        self
    }

    /// An engine may see what bears this mark, once.
    #[must_use]
    pub fn may_mean(mut self, mark: &str) -> Self {
        self.meant.push(Meant {
            mark: mark.to_owned(),
            body: None,
        });
        self
    }

    /// And then another request.
    #[must_use]
    pub fn and(mut self, expect: Expect) -> Self {
        self.expect.push(expect);
        self
    }

    /// The client closes its sending side behind its bytes.
    #[must_use]
    pub fn shut(self) -> Self {
        Self {
            behind: Behind::Shuts,
            ..self
        }
    }

    /// The connection must be closed.
    #[must_use]
    pub fn closes(self) -> Self {
        Self {
            connection: Connection::Closed,
            ..self
        }
    }

    /// The connection must go on.
    #[must_use]
    pub fn goes_on(self) -> Self {
        Self {
            connection: Connection::Open,
            ..self
        }
    }

    /// Why what came back is wrong.
    pub fn judge(&self, reply: &Reply) -> Result<(), String> {
        let mut answers = reply.answers.iter();
        for expect in &self.expect {
            expect.judge(answers.next())?;
        }
        let open = match (answers.next(), answers.next()) {
            (None, _) => false,
            (Some(live), None) if live.is_alive() => true,
            (Some(other), _) => return Err(format!("one answer too many: {other:?}")),
        };
        if !reply.rest.is_empty() {
            return Err(format!("bytes that are no answer: {:?}", reply.rest));
        }
        match self.connection {
            Connection::Closed if open => Err("the connection went on".to_owned()),
            Connection::Open if !open => Err("the connection was closed".to_owned()),
            _ => Ok(()),
        }
    }
}
