//! The model's books against the real ones: whatever is done to both, they say the same.

use std::time::Duration;

use baton_proto::TicketId;
use baton_proto::call::Revoked;
use baton_proto::digest::RequestDigest;
use baton_proto::ticket::{Draft, TransferMetadata};
use baton_proto::token::FleetToken;
use baton_sidecar_core::ledger::{Fetcher, Ledger, Wanted};
use baton_sidecar_core::metrics::TicketMetrics;
use baton_sidecar_core::relay::used::{UsedTickets, Using};
use proptest::prelude::*;
use tokio::time::Instant;

use super::books::{Entry, Fate, Life, Memory};

const LEASE: Duration = Duration::from_secs(30);

fn draft() -> Draft {
    Draft {
        id: ticket(),
        prefill: "p".parse().unwrap(),
        incarnation: life(0),
        decode: "d".parse().unwrap(),
        request_digest: RequestDigest::of("/v1/completions", b"{}"),
        prompt_tokens: Some(3),
        bytes: Some(10),
        lease_ms: u64::try_from(LEASE.as_millis()).unwrap(),
        metadata: TransferMetadata::new(&b"{}"[..]),
    }
}

fn ticket() -> TicketId {
    "t".parse().unwrap()
}

fn life(life: Life) -> baton_proto::Incarnation {
    format!("life-{life}").parse().unwrap()
}

fn token() -> FleetToken {
    FleetToken::new("0123456789abcdef").unwrap()
}

#[derive(Debug, Clone, Copy)]
enum LedgerStep {
    Settle(Life),
    Release,
    Revoked(Fate),
    GivenBack,
    Lapse,
    VoidOthers(Life),
}

fn ledger_step() -> impl Strategy<Value = LedgerStep> {
    prop_oneof![
        (0..2u8).prop_map(LedgerStep::Settle),
        Just(LedgerStep::Release),
        prop_oneof![Just(Fate::Unseen), Just(Fate::Answered), Just(Fate::Cut)]
            .prop_map(LedgerStep::Revoked),
        Just(LedgerStep::GivenBack),
        Just(LedgerStep::Lapse),
        (0..2u8).prop_map(LedgerStep::VoidOthers),
    ]
}

/// A ledger with one ticket, and what is known of it without looking into it.
struct RealLedger(Ledger);

impl RealLedger {
    fn new(known: bool) -> Self {
        let ledger = Ledger::new(token(), TicketMetrics::default());
        if known {
            let wanted = Wanted {
                decode_at: Some("http://d".to_owned()),
                router: None,
                until: Instant::now() + LEASE,
            };
            let _ticket = ledger.open(&ticket()).unwrap().hold(draft(), LEASE, wanted);
        }
        Self(ledger)
    }

    /// The model's step, done by the real one; whether it settled.
    async fn step(&self, step: LedgerStep) -> bool {
        let Self(ledger) = self;
        match step {
            LedgerStep::Settle(now) => return ledger.settle(&ticket(), &life(now)).is_ok(),
            LedgerStep::Release => ledger.release(&ticket()),
            LedgerStep::Revoked(fate) => {
                ledger.revoked(&ticket(), Revoked::from(fate));
                // Whoever was cut off has noticed.
                tokio::time::advance(Duration::from_secs(2)).await;
            }
            LedgerStep::GivenBack => ledger.given_back(&ticket()),
            LedgerStep::Lapse => {
                tokio::time::advance(LEASE).await;
                ledger.sweep(|_| false);
            }
            LedgerStep::VoidOthers(now) => ledger.void_others(&life(now)),
        }
        false
    }

    fn looks_like(&self, entry: Entry) {
        let counts = self.0.counts();
        let claimed = usize::from(matches!(entry, Entry::Claimed(_)));
        let leaving = usize::from(matches!(entry, Entry::Leaving(_) | Entry::Loose(_)));
        assert_eq!(
            (counts.claimed, counts.leaving),
            (claimed, leaving),
            "{entry:?}"
        );
        assert_eq!(self.0.is_claimed(&ticket()).is_ok(), claimed == 1);
        for due in self.0.due() {
            let fetcher = match entry {
                Entry::Loose(_) => Fetcher::Nobody,
                _ => Fetcher::At("http://d".to_owned()),
            };
            assert_eq!(due.fetcher, fetcher, "{entry:?}");
            self.0.put_off(&due.id);
        }
    }
}

fn by_model(entry: Entry, step: LedgerStep) -> (Entry, bool) {
    let next = match step {
        LedgerStep::Settle(now) => {
            let (next, settled) = entry.settle(now);
            // A settle that meets another life voids all of the old one.
            return (next, settled);
        }
        LedgerStep::Release => entry.release(),
        LedgerStep::Revoked(_) => entry.revoked(),
        LedgerStep::GivenBack => entry.given_back(),
        LedgerStep::Lapse => entry.lapsed(),
        LedgerStep::VoidOthers(now) => entry.void_others(now),
    };
    (next, false)
}

#[derive(Debug, Clone, Copy)]
enum MemoryStep {
    Use,
    End(bool),
    Revoke,
}

fn memory_step() -> impl Strategy<Value = MemoryStep> {
    prop_oneof![
        Just(MemoryStep::Use),
        any::<bool>().prop_map(MemoryStep::End),
        Just(MemoryStep::Revoke),
    ]
}

fn in_paused_time<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(body)
}

/// Does what a leg does: ends when it is told to.
fn leg(using: Using) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        using.revocation().cancelled().await;
        drop(using);
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn ledgers_agree(known: bool, steps in prop::collection::vec(ledger_step(), 0..8)) {
        in_paused_time(async {
            let real = RealLedger::new(known);
            let mut entry = if known { Entry::Claimed(0) } else { Entry::Unknown };
            for step in steps {
                let settled = real.step(step).await;
                let (next, by_model) = by_model(entry, step);
                assert_eq!(settled, by_model, "{step:?} of {entry:?}");
                entry = next;
                real.looks_like(entry);
            }
        });
    }

    #[test]
    fn memories_agree(steps in prop::collection::vec(memory_step(), 0..8)) {
        in_paused_time(async {
            let real = UsedTickets::default();
            let sealed = draft().seal(&token(), 1000);
            let mut memory = Memory::Nothing;
            let mut active = None;
            for step in steps {
                match step {
                    MemoryStep::Use => {
                        let used = real.use_once(&sealed);
                        let (next, usable) = memory.use_once();
                        assert_eq!(used.is_ok(), usable, "{memory:?}");
                        memory = next;
                        active = used.ok().or(active);
                    }
                    MemoryStep::End(answered) => {
                        let fate = if answered { Fate::Answered } else { Fate::Cut };
                        memory = memory.end(fate);
                        match active.take() {
                            Some(using) if answered => using.fetched(),
                            using => drop(using),
                        }
                    }
                    MemoryStep::Revoke => {
                        let leg = active.take().map(leg);
                        let revoked = real.revoke(&ticket()).await.unwrap();
                        let (next, fate) = memory.revoke();
                        assert_eq!(revoked, Revoked::from(fate), "{memory:?}");
                        memory = next;
                        if let Some(leg) = leg {
                            leg.await.unwrap();
                        }
                    }
                }
            }
        });
    }
}
