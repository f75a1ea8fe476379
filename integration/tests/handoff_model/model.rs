//! Two routers, each with one split request; one prefill and one decode worker.
//!
//! That the decode side settles, and not the router, changes nothing here: it is one more message of the same two.
//! Messages may be late, lost with whoever sent them, or, for a decode call, delivered twice. Each process may die once:
//! a router, either sidecar, the prefill engine. Time is not modelled but for its order: the sidecar's idea of a lease
//! ends before the engine's, and an engine has noticed that a leg was cut off before KV is given back for it.

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::books::{Entry, Fate, Life, Memory};

const ROUTERS: usize = 2;

/// Where a router is with its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Router {
    /// It has a ticket and has sent nobody anything.
    Ticketed,
    /// Its decode call is under way, or being answered.
    Decoding,
    /// Decode has shown a token; the prefill side was asked to settle.
    Settling,
    /// The client has its first byte.
    Committed,
    /// It has given up, and has told the prefill side so unless it is dead.
    GaveUp,
}

/// What the decode engine does with a ticket's KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fetch {
    Idle,
    /// It was given the ticket and reads; `cut` once its leg was ended.
    Reads {
        cut: bool,
    },
    /// It has read: the right KV or another.
    Has {
        right: bool,
    },
    Dropped,
}

/// The prefill engine's blocks of one ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Blocks {
    Held(Life),
    /// They may be anybody's now.
    Free,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Handoff {
    router: Router,
    alive: bool,
    /// Copies of the decode call that have not arrived.
    calls: u8,
    /// Whether the call may still be delivered twice.
    may_repeat: bool,
    /// A settle that has not arrived, and a release.
    settle: bool,
    release: bool,
    entry: Entry,
    lease_over: bool,
    memory: Memory,
    fetch: Fetch,
    /// Times the decode engine was given it.
    given: u8,
    blocks: Blocks,
    /// The engine was told that it may have them back.
    given_back: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    life: Life,
    handoffs: [Handoff; ROUTERS],
    prefill_sidecar_may_die: bool,
    decode_sidecar_may_die: bool,
    /// The prefill sidecar's ledger was lost with it.
    ledger_lost: bool,
    /// KV was given back under a leg that goes on, or before it was read.
    torn: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Dispatch(usize),
    Repeat(usize),
    CallArrives(usize),
    Read(usize),
    FirstToken(usize),
    DecodeFails(usize),
    CutNoticed(usize),
    SettleArrives(usize),
    RouterGivesUp(usize),
    RouterDies(usize),
    RouterMissed(usize),
    ReleaseArrives(usize),
    Revoke(usize),
    GiveBack(usize),
    LedgerLapses(usize),
    EngineLapses(usize),
    EngineRestarts,
    EngineSeen,
    PrefillSidecarDies,
    DecodeSidecarDies,
}

/// What is switched off, to see that the properties can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    Settle,
    Fence,
    SingleUse,
    Revocation,
    Release,
}

struct Protocol(Without);

impl Protocol {
    fn has(&self, part: Without) -> bool {
        self.0 != part
    }
}

fn start() -> Handoff {
    Handoff {
        router: Router::Ticketed,
        alive: true,
        calls: 0,
        may_repeat: true,
        settle: false,
        release: false,
        entry: Entry::Claimed(0),
        lease_over: false,
        memory: Memory::Nothing,
        fetch: Fetch::Idle,
        given: 0,
        blocks: Blocks::Held(0),
        given_back: false,
    }
}

impl Handoff {
    /// The leg at decode ended without an answer that counts.
    fn cut(&mut self) {
        if self.memory == Memory::Active {
            self.memory = self.memory.end(Fate::Cut);
            if let Fetch::Reads { cut } = &mut self.fetch {
                *cut = true;
            }
        }
    }

    fn gives_up(&mut self) {
        self.router = Router::GaveUp;
        self.release = true;
        self.cut();
    }

    fn actions(&self, at: usize, actions: &mut Vec<Action>) {
        let mut may = |possible: bool, action: Action| {
            if possible {
                actions.push(action);
            }
        };
        let decoding = self.router == Router::Decoding;
        let open = matches!(
            self.router,
            Router::Ticketed | Router::Decoding | Router::Settling
        );
        may(
            self.alive && self.router == Router::Ticketed,
            Action::Dispatch(at),
        );
        may(self.calls > 0 && self.may_repeat, Action::Repeat(at));
        may(self.calls > 0, Action::CallArrives(at));
        may(matches!(self.fetch, Fetch::Reads { .. }), Action::Read(at));
        let has = matches!(self.fetch, Fetch::Has { .. });
        may(has && self.memory == Memory::Active, Action::FirstToken(at));
        may(
            decoding && self.memory == Memory::Active,
            Action::DecodeFails(at),
        );
        may(
            self.fetch == Fetch::Reads { cut: true },
            Action::CutNoticed(at),
        );
        may(self.settle, Action::SettleArrives(at));
        may(self.alive && open, Action::RouterGivesUp(at));
        may(self.alive && open, Action::RouterDies(at));
        may(
            !self.alive && matches!(self.entry, Entry::Claimed(_)),
            Action::RouterMissed(at),
        );
        may(self.release, Action::ReleaseArrives(at));
        may(matches!(self.entry, Entry::Leaving(_)), Action::Revoke(at));
        may(matches!(self.entry, Entry::Loose(_)), Action::GiveBack(at));
        let waits = matches!(self.blocks, Blocks::Held(_));
        may(!self.lease_over, Action::LedgerLapses(at));
        may(waits && self.lease_over, Action::EngineLapses(at));
    }
}

impl Protocol {
    fn step(&self, state: &State, at: usize, action: Action) -> State {
        let mut next = state.clone();
        let life = state.life;
        let handoff = &mut next.handoffs[at];
        match action {
            Action::Dispatch(_) => {
                handoff.router = Router::Decoding;
                handoff.calls = 1;
            }
            Action::Repeat(_) => {
                handoff.may_repeat = false;
                handoff.calls += 1;
            }
            Action::CallArrives(_) => self.call(handoff),
            Action::Read(_) => {
                let right = handoff.blocks == Blocks::Held(0);
                let torn = handoff.given_back;
                handoff.fetch = Fetch::Has { right };
                // The engine that has read says so to the one that holds.
                handoff.blocks = Blocks::Free;
                next.torn |= torn;
            }
            Action::FirstToken(_) => {
                handoff.memory = handoff.memory.end(Fate::Answered);
                if handoff.router == Router::Decoding && handoff.alive {
                    handoff.router = Router::Settling;
                    handoff.settle = true;
                }
            }
            Action::DecodeFails(_) => {
                handoff.memory = handoff.memory.end(Fate::Answered);
                handoff.fetch = Fetch::Dropped;
                if handoff.alive {
                    handoff.gives_up();
                }
            }
            Action::CutNoticed(_) => handoff.fetch = Fetch::Dropped,
            Action::SettleArrives(_) => self.settle(handoff, life),
            Action::RouterGivesUp(_) => handoff.gives_up(),
            Action::RouterDies(_) => {
                handoff.alive = false;
                handoff.router = Router::GaveUp;
                // What it has sent may still arrive; its connections end.
                handoff.cut();
            }
            Action::RouterMissed(_) | Action::ReleaseArrives(_) => {
                handoff.release = false;
                if self.has(Without::Release) {
                    handoff.entry = handoff.entry.release();
                } else if matches!(handoff.entry, Entry::Claimed(_)) {
                    handoff.entry = Entry::Over;
                }
            }
            Action::Revoke(_) => {
                if self.has(Without::Revocation) {
                    handoff.cut();
                    (handoff.memory, _) = handoff.memory.revoke();
                }
                handoff.entry = handoff.entry.revoked();
            }
            Action::GiveBack(_) => {
                // Whoever was cut off has noticed by now.
                if handoff.fetch == (Fetch::Reads { cut: true }) {
                    handoff.fetch = Fetch::Dropped;
                }
                let read = matches!(handoff.fetch, Fetch::Reads { .. });
                handoff.entry = handoff.entry.given_back();
                handoff.blocks = Blocks::Free;
                handoff.given_back = true;
                next.torn |= read;
            }
            Action::LedgerLapses(_) => {
                handoff.lease_over = true;
                handoff.entry = handoff.entry.lapsed();
            }
            Action::EngineLapses(_) => handoff.blocks = Blocks::Free,
            Action::EngineRestarts
            | Action::EngineSeen
            | Action::PrefillSidecarDies
            | Action::DecodeSidecarDies => unreachable!("these are of no handoff"),
        }
        next
    }

    /// A decode call arrives at its sidecar.
    fn call(&self, handoff: &mut Handoff) {
        handoff.calls -= 1;
        let (_, usable) = handoff.memory.use_once();
        if handoff.lease_over || (!usable && self.has(Without::SingleUse)) {
            return;
        }
        handoff.memory = Memory::Active;
        handoff.given += 1;
        handoff.fetch = Fetch::Reads { cut: false };
        if !handoff.alive || handoff.router == Router::GaveUp {
            // Nobody waits for the answer: the leg ends as soon as it has begun.
            handoff.cut();
        }
    }

    fn settle(&self, handoff: &mut Handoff, life: Life) {
        handoff.settle = false;
        let claimed_in = if self.has(Without::Fence) { life } else { 0 };
        let (entry, settled) = handoff.entry.settle(claimed_in);
        handoff.entry = entry;
        if handoff.router != Router::Settling {
            return;
        }
        if settled || !self.has(Without::Settle) {
            handoff.router = Router::Committed;
        } else {
            handoff.gives_up();
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            life: 0,
            handoffs: [start(), start()],
            prefill_sidecar_may_die: true,
            decode_sidecar_may_die: true,
            ledger_lost: false,
            torn: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, handoff) in state.handoffs.iter().enumerate() {
            handoff.actions(at, actions);
        }
        if state.life == 0 {
            actions.push(Action::EngineRestarts);
        } else {
            actions.push(Action::EngineSeen);
        }
        if state.prefill_sidecar_may_die {
            actions.push(Action::PrefillSidecarDies);
        }
        if state.decode_sidecar_may_die {
            actions.push(Action::DecodeSidecarDies);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let of = |at: usize| Some(self.step(state, at, action));
        let mut next = state.clone();
        match action {
            Action::EngineRestarts => {
                next.life = 1;
                for handoff in &mut next.handoffs {
                    handoff.blocks = Blocks::Free;
                }
            }
            Action::EngineSeen => {
                for handoff in &mut next.handoffs {
                    handoff.entry = handoff.entry.void_others(state.life);
                }
            }
            Action::PrefillSidecarDies => {
                next.prefill_sidecar_may_die = false;
                next.ledger_lost = true;
                for handoff in &mut next.handoffs {
                    handoff.entry = Entry::Unknown;
                }
            }
            Action::DecodeSidecarDies => {
                next.decode_sidecar_may_die = false;
                for handoff in &mut next.handoffs {
                    handoff.cut();
                    handoff.memory = Memory::Nothing;
                    // With the process end its connections, and what was on its way over them.
                    handoff.calls = 0;
                    if handoff.alive && handoff.router == Router::Decoding {
                        handoff.gives_up();
                    }
                }
            }
            Action::Dispatch(at)
            | Action::Repeat(at)
            | Action::CallArrives(at)
            | Action::Read(at)
            | Action::FirstToken(at)
            | Action::DecodeFails(at)
            | Action::CutNoticed(at)
            | Action::SettleArrives(at)
            | Action::RouterGivesUp(at)
            | Action::RouterDies(at)
            | Action::RouterMissed(at)
            | Action::ReleaseArrives(at)
            | Action::Revoke(at)
            | Action::GiveBack(at)
            | Action::LedgerLapses(at)
            | Action::EngineLapses(at) => return of(at),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RIGHT, |_, state: &State| {
                let right = |handoff: &Handoff| {
                    handoff.router != Router::Committed
                        || handoff.fetch == Fetch::Has { right: true }
                };
                state.handoffs.iter().all(right)
            }),
            Property::always(ONCE, |_, state: &State| {
                state.handoffs.iter().all(|handoff| handoff.given <= 1)
            }),
            Property::always(WHOLE, |_, state: &State| !state.torn),
            Property::always(OWNED, |_, state: &State| {
                let owned = |handoff: &Handoff| {
                    let held = handoff.blocks == Blocks::Held(state.life);
                    !held || handoff.lease_over || handoff.entry.held_in().is_some()
                };
                state.ledger_lost || state.handoffs.iter().all(owned)
            }),
            Property::sometimes(COMMITS, |_, state: &State| {
                let committed = |handoff: &Handoff| handoff.router == Router::Committed;
                state.handoffs.iter().all(committed)
            }),
            Property::sometimes(GIVES_BACK, |_, state: &State| {
                let given_back = |handoff: &Handoff| {
                    handoff.blocks == Blocks::Free && !handoff.lease_over && state.life == 0
                };
                state.handoffs.iter().all(given_back)
            }),
        ]
    }
}

/// A client gets tokens of the right KV only.
const RIGHT: &str = "the client's tokens are of the right KV";
/// No engine is given a ticket twice.
const ONCE: &str = "a ticket is used once";
/// No KV is given back that a leg still reads, or begins to read afterwards.
const WHOLE: &str = "nothing is read that was given back";
/// Whatever the engine holds, somebody is going to end.
const OWNED: &str = "held KV is owned";
const COMMITS: &str = "both requests are served";
const GIVES_BACK: &str = "both are given back before their leases end";

/// Which router is which makes no difference.
fn canonical(state: &State) -> State {
    let mut state = state.clone();
    state.handoffs.sort_unstable();
    state
}

fn check(without: Without, until: HasDiscoveries) -> impl Checker<Protocol> {
    let checker = Protocol(without).checker().symmetry_fn(canonical);
    checker.finish_when(until).threads(2).spawn_dfs().join()
}

#[test]
fn no_reachable_state_is_wrong() {
    let checker = check(Without::Nothing, HasDiscoveries::AnyFailures);
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000);
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for (without, fails) in [
        (Without::Settle, RIGHT),
        (Without::Fence, RIGHT),
        (Without::SingleUse, ONCE),
        (Without::Revocation, WHOLE),
        (Without::Release, OWNED),
    ] {
        let checker = check(without, HasDiscoveries::AnyOf([fails].into()));
        assert!(checker.discovery(fails).is_some(), "{without:?}");
    }
}
