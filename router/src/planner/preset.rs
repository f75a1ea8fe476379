//! A plan that an outer gateway has made already.

use std::str::FromStr;

use baton_planner::Duty;
use baton_proto::worker::Role;
use baton_proto::{Error, ErrorKind, Source, Stage, WorkerId};

/// Who is to serve a request, whatever that costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preset {
    /// One worker does it all.
    Local(WorkerId),
    /// Prefill here, decode there.
    Split(WorkerId, WorkerId),
}

impl FromStr for Preset {
    type Err = Error;

    /// `local=WORKER` or `split=PREFILL,DECODE`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let id = |text: &str| text.trim().parse::<WorkerId>().ok();
        let read = text
            .split_once('=')
            .and_then(|(kind, workers)| match kind.trim() {
                "local" => Some(Self::Local(id(workers)?)),
                "split" => {
                    let (prefill, decode) = workers.split_once(',')?;
                    Some(Self::Split(id(prefill)?, id(decode)?))
                }
                _ => None,
            });
        read.ok_or_else(|| {
            let message = "baton-route looks like local=WORKER or split=PREFILL,DECODE";
            Error::new(
                ErrorKind::BadRequest,
                Source::Client,
                Stage::Request,
                message,
            )
        })
    }
}

impl Preset {
    pub(super) fn duty(&self, worker: &WorkerId, role: Role) -> Duty {
        match self {
            Self::Local(local) => Duty {
                local: local == worker,
                ..Duty::default()
            },
            Self::Split(prefill, decode) => Duty {
                prefill: prefill == worker && role.prefills(),
                decode: decode == worker && role.decodes(),
                local: false,
            },
        }
    }

    /// Nobody but those that were named may serve.
    pub(super) fn refused(&self, mut error: Error) -> Error {
        let named = match self {
            Self::Local(worker) => format!("worker {worker} cannot serve it"),
            Self::Split(prefill, decode) => format!("{prefill} cannot hand over to {decode} now"),
        };
        error.message = format!("the route that was given cannot be taken: {named} (see /fleet)");
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read() {
        let id = |text: &str| text.parse::<WorkerId>().unwrap();
        assert_eq!("local=a".parse(), Ok(Preset::Local(id("a"))));
        let split = Preset::Split(id("p-0"), id("d.1"));
        assert_eq!(" split = p-0 , d.1".parse(), Ok(split));
        for bad in [
            "",
            "a",
            "local=",
            "local=a b",
            "split=a",
            "split=a,",
            "fetch=a",
        ] {
            let error = bad.parse::<Preset>().unwrap_err();
            assert!(error.message.contains("looks like"), "{bad}");
        }
    }
}
