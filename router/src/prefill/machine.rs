//! The one state machine over a prefill's frames, for engines that hand over while they compute and for those that hand
//! over when they are done. Pure: frames in, decisions out.

use baton_proto::call::{EngineAnswer, Outcome, PrefillFrame, PrefillUsage};
use baton_proto::ticket::Ticket;
use baton_proto::{Error, ErrorKind, Retry, Source, Stage};

/// Where a prefill leg stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Sent; the engine has not been asked yet.
    Sent,
    /// The engine is being asked.
    Admitted,
    /// A ticket is there.
    Ticketed,
    /// The last frame came.
    Over,
}

/// What to do after a frame.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// Wait for more.
    Wait,
    /// Dispatch decode with this ticket.
    Decode {
        /// The handoff.
        ticket: Box<Ticket>,
        /// Its KV is there. Otherwise the prefill runs beside decode, and may fail yet.
        computed: bool,
    },
    /// The leg is over, after its ticket.
    Finished(PrefillUsage),
    /// The prompt ended by itself: generate where its cache is warm.
    GenerateHere(PrefillUsage),
    /// The leg failed. With an engine's answer the client is to have that.
    Fail(Error, Option<EngineAnswer>),
}

/// The state machine of one prefill leg.
#[derive(Debug)]
pub struct Machine {
    state: State,
}

impl Default for Machine {
    fn default() -> Self {
        Self { state: State::Sent }
    }
}

impl Machine {
    /// Takes the next frame; `None` is the end of the stream.
    pub fn on(&mut self, frame: Option<PrefillFrame>) -> Decision {
        match (self.state, frame) {
            (_, Some(PrefillFrame::Unknown)) => Decision::Wait,
            (State::Sent, Some(PrefillFrame::Admitted { ticket: None, .. })) => {
                self.go(State::Admitted, Decision::Wait)
            }
            (
                State::Sent,
                Some(PrefillFrame::Admitted {
                    ticket: Some(ticket),
                    ..
                }),
            ) => self.ticketed(ticket, false),
            (State::Admitted, Some(PrefillFrame::Ready { ticket })) => self.ticketed(ticket, true),
            (
                State::Sent | State::Admitted | State::Ticketed,
                Some(PrefillFrame::Failed { error, answer }),
            ) => self.go(State::Over, Decision::Fail(error, answer)),
            (State::Ticketed, Some(PrefillFrame::Done { usage, .. })) => {
                self.go(State::Over, Decision::Finished(usage))
            }
            (State::Admitted, Some(PrefillFrame::Done { usage, outcome }))
                if outcome != Outcome::Length =>
            {
                self.go(State::Over, Decision::GenerateHere(usage))
            }
            (State::Sent, None) => {
                // Nothing was heard, not even that the engine was asked; it may have been all the same.
                self.go(
                    State::Over,
                    Decision::Fail(broke_off("before it began"), None),
                )
            }
            (_, None) => self.go(
                State::Over,
                Decision::Fail(broke_off("before it was complete"), None),
            ),
            (state, Some(frame)) => {
                let why = format!(
                    "the sidecar sent {} when the prefill was {state:?}",
                    name(&frame)
                );
                let error = Error::new(ErrorKind::Protocol, Source::Sidecar, Stage::Prefill, why);
                self.go(
                    State::Over,
                    Decision::Fail(error.retry(Retry::AfterCancel), None),
                )
            }
        }
    }

    fn ticketed(&mut self, ticket: Box<Ticket>, computed: bool) -> Decision {
        self.go(State::Ticketed, Decision::Decode { ticket, computed })
    }

    fn go(&mut self, state: State, decision: Decision) -> Decision {
        self.state = state;
        decision
    }
}

fn broke_off(when: &str) -> Error {
    let message = format!("the prefill's stream ended {when}");
    Error::new(
        ErrorKind::Unreachable,
        Source::Sidecar,
        Stage::Prefill,
        message,
    )
    .retry(Retry::AfterCancel)
}

fn name(frame: &PrefillFrame) -> &'static str {
    match frame {
        PrefillFrame::Admitted { .. } => "Admitted",
        PrefillFrame::Ready { .. } => "Ready",
        PrefillFrame::Done { .. } => "Done",
        PrefillFrame::Failed { .. } => "Failed",
        PrefillFrame::Unknown => "an unknown frame",
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::digest::RequestDigest;
    use baton_proto::ticket::{Draft, TransferMetadata};
    use baton_proto::token::FleetToken;
    use proptest::prelude::*;

    use super::*;

    fn ticket() -> Box<Ticket> {
        let draft = Draft {
            id: "t".parse().unwrap(),
            prefill: "p".parse().unwrap(),
            incarnation: "i".parse().unwrap(),
            decode: "d".parse().unwrap(),
            request_digest: RequestDigest::of("/v1/completions", b"{}"),
            prompt_tokens: Some(1),
            bytes: Some(1),
            lease_ms: 1,
            metadata: TransferMetadata::new(&b"{}"[..]),
        };
        Box::new(draft.seal(&FleetToken::new("0123456789abcdef").unwrap(), 1))
    }

    fn admitted(ticket: Option<Box<Ticket>>) -> PrefillFrame {
        PrefillFrame::Admitted {
            id: "t".parse().unwrap(),
            ticket,
        }
    }

    fn done(outcome: Outcome) -> PrefillFrame {
        PrefillFrame::Done {
            usage: PrefillUsage::default(),
            outcome,
        }
    }

    fn decode(computed: bool) -> Decision {
        let ticket = ticket();
        Decision::Decode { ticket, computed }
    }

    fn decisions(frames: Vec<Option<PrefillFrame>>) -> Vec<Decision> {
        let mut machine = Machine::default();
        frames.into_iter().map(|frame| machine.on(frame)).collect()
    }

    #[test]
    fn both_handoff_styles_take_the_same_path() {
        let ready = decisions(vec![
            Some(admitted(None)),
            Some(PrefillFrame::Unknown),
            Some(PrefillFrame::Ready { ticket: ticket() }),
            Some(done(Outcome::Length)),
        ]);
        let at_once = decisions(vec![
            Some(admitted(Some(ticket()))),
            Some(done(Outcome::Length)),
        ]);
        assert_eq!(
            ready,
            [
                Decision::Wait,
                Decision::Wait,
                decode(true),
                Decision::Finished(PrefillUsage::default())
            ]
        );
        assert_eq!(
            at_once,
            [decode(false), Decision::Finished(PrefillUsage::default())]
        );
    }

    #[test]
    fn an_early_end_generates_there() {
        for outcome in [Outcome::Ended, Outcome::Unknown] {
            let got = decisions(vec![Some(admitted(None)), Some(done(outcome))]);
            assert_eq!(got[1], Decision::GenerateHere(PrefillUsage::default()));
        }
    }

    #[test]
    fn broken_and_lying_streams_fail_with_caution() {
        for frames in [
            vec![None],
            vec![Some(admitted(None)), None],
            vec![Some(admitted(Some(ticket()))), None],
            vec![Some(PrefillFrame::Ready { ticket: ticket() })],
            vec![Some(admitted(None)), Some(admitted(None))],
            vec![Some(admitted(None)), Some(done(Outcome::Length))],
            vec![
                Some(admitted(Some(ticket()))),
                Some(PrefillFrame::Ready { ticket: ticket() }),
            ],
            vec![Some(done(Outcome::Length))],
        ] {
            let shown = format!("{frames:?}");
            match decisions(frames).pop() {
                Some(Decision::Fail(error, None)) => {
                    assert_eq!(error.retry, Retry::AfterCancel, "{shown}");
                }
                other => panic!("{shown}: {other:?}"),
            }
        }
    }

    fn any_frame() -> impl Strategy<Value = Option<PrefillFrame>> {
        prop_oneof![
            Just(None),
            Just(Some(admitted(None))),
            Just(Some(admitted(Some(ticket())))),
            Just(Some(PrefillFrame::Ready { ticket: ticket() })),
            Just(Some(done(Outcome::Length))),
            Just(Some(done(Outcome::Ended))),
            Just(Some(PrefillFrame::Unknown)),
            Just(Some(PrefillFrame::Failed {
                error: Error::bad_request("x"),
                answer: None
            })),
        ]
    }

    proptest! {
        #[test]
        fn at_most_one_decode_whatever_comes(frames in prop::collection::vec(any_frame(), 0..12)) {
            let got = decisions(frames);
            let decodes = got.iter().filter(|decision| matches!(decision, Decision::Decode { .. })).count();
            prop_assert!(decodes <= 1);
        }
    }
}
