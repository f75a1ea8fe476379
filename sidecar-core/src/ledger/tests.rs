use baton_proto::call::Revoked;
use baton_proto::digest::RequestDigest;

use super::*;
use crate::engine::Foreseen;

mod offered;

const LEASE: Duration = Duration::from_secs(30);

fn ledger() -> Ledger {
    Ledger::new(
        FleetToken::new("0123456789abcdef").unwrap(),
        TicketMetrics::default(),
    )
}

fn id(text: &str) -> TicketId {
    text.parse().unwrap()
}

fn life(text: &str) -> Incarnation {
    text.parse().unwrap()
}

fn draft(name: &str) -> Draft {
    Draft {
        id: id(name),
        prefill: "p".parse().unwrap(),
        incarnation: life("a"),
        decode: "d0".parse().unwrap(),
        request_digest: RequestDigest::of("/v1/completions", b"{}"),
        prompt_tokens: Some(3),
        bytes: Some(10),
        lease_ms: 30_000,
        metadata: TransferMetadata::new(&b"{}"[..]),
    }
}

fn wanted() -> Wanted {
    Wanted {
        decode_at: Some("http://d".to_owned()),
        router: Some("r".parse().unwrap()),
        until: Instant::now() + 10 * LEASE,
    }
}

fn sweep(ledger: &Ledger) {
    ledger.sweep(|_| false);
}

fn held(ledger: &Ledger, name: &str) -> Ticket {
    ledger
        .open(&id(name))
        .unwrap()
        .hold(draft(name), LEASE, wanted())
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_settled_once() {
    let ledger = ledger();
    held(&ledger, "t");
    assert_eq!(
        ledger.counts(),
        Counts {
            claimed: 1,
            ..Counts::default()
        }
    );
    ledger.settle(&id("t"), &life("a")).unwrap();
    assert_eq!(
        ledger.settle(&id("t"), &life("a")).unwrap_err().kind,
        ErrorKind::TicketRefused
    );
    assert_eq!(
        ledger
            .claim(&id("t"), "d1".parse().unwrap(), None)
            .unwrap_err()
            .kind,
        ErrorKind::TicketRefused
    );
    assert_eq!(
        ledger.open(&id("t")).err().unwrap().kind,
        ErrorKind::Conflict
    );
    assert_eq!(ledger.counts(), Counts::default());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_settles_nothing() {
    let ledger = ledger();
    held(&ledger, "t");
    tokio::time::advance(LEASE).await;
    assert_eq!(
        ledger.settle(&id("t"), &life("a")).unwrap_err().kind,
        ErrorKind::LeaseExpired
    );
    assert_eq!(
        ledger
            .claim(&id("t"), "d1".parse().unwrap(), None)
            .unwrap_err()
            .kind,
        ErrorKind::LeaseExpired
    );
    sweep(&ledger);
    assert_eq!(ledger.counts(), Counts::default());
}

#[tokio::test(start_paused = true)]
async fn another_life_of_the_engine_voids_all() {
    let ledger = ledger();
    held(&ledger, "t");
    held(&ledger, "u");
    assert_eq!(
        ledger.settle(&id("t"), &life("b")).unwrap_err().kind,
        ErrorKind::IncarnationChanged
    );
    assert_eq!(ledger.counts(), Counts::default(), "u went with it");
    assert_eq!(
        ledger.settle(&id("u"), &life("a")).unwrap_err().kind,
        ErrorKind::TicketRefused
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_moves_the_ticket_and_keeps_its_lease() {
    let ledger = ledger();
    let token = FleetToken::new("0123456789abcdef").unwrap();
    let first = held(&ledger, "t");
    tokio::time::advance(Duration::from_secs(10)).await;
    let moved = ledger.claim(&id("t"), "d1".parse().unwrap(), None).unwrap();
    assert_eq!((first.decode.as_str(), moved.decode.as_str()), ("d0", "d1"));
    assert!(first.is_genuine(&token) && moved.is_genuine(&token));
    assert_eq!(
        (first.lease_remaining_ms, moved.lease_remaining_ms),
        (30_000, 20_000)
    );
    ledger.settle(&id("t"), &life("a")).unwrap();
}

fn leaving(ledger: &Ledger) -> usize {
    let counts = ledger.counts();
    assert_eq!((counts.running, counts.claimed), (0, 0));
    counts.leaving
}

#[tokio::test(start_paused = true)]
async fn what_nobody_may_be_fetching_is_given_back_at_once() {
    let ledger = ledger();
    let open = ledger.open(&id("u")).unwrap();
    open.leave(TransferMetadata::new(&b"{}"[..]), life("a"), LEASE);
    held(&ledger, "t");
    ledger.withdraw(&id("t"));
    ledger.left().await;
    let due = ledger.due();
    assert_eq!(due.len(), 2);
    assert!(due.iter().all(|due| due.fetcher == Fetcher::Nobody));
    assert_eq!(ledger.due(), [], "they are being seen to");
    assert_eq!(leaving(&ledger), 2);
    for due in due {
        ledger.given_back(&due.id);
        ledger.given_back(&due.id);
    }
    assert_eq!(leaving(&ledger), 0);
    assert_eq!(ledger.metrics.stranded.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_decode_worker_is_asked_before_its_ticket_is_given_back() {
    for (revoked, noticed) in [
        (Revoked::Unseen, Duration::ZERO),
        (Revoked::Answered, Duration::ZERO),
        (Revoked::Cut, Duration::from_secs(1)),
        (Revoked::Unknown, Duration::from_secs(1)),
    ] {
        let ledger = ledger();
        held(&ledger, "t");
        ledger.release(&id("t"));
        ledger.release(&id("t"));
        let due = ledger.due().pop().unwrap();
        assert_eq!(due.fetcher, Fetcher::At("http://d".to_owned()));
        ledger.put_off(&due.id);
        assert_eq!(ledger.due(), [], "not at once again");
        tokio::time::sleep_until(ledger.next_due().unwrap()).await;
        assert_eq!(ledger.due(), std::slice::from_ref(&due));
        ledger.revoked(&due.id, revoked);
        assert_eq!(ledger.next_due(), Some(Instant::now() + noticed));
        tokio::time::advance(noticed).await;
        assert_eq!(ledger.due().pop().unwrap().fetcher, Fetcher::Nobody);
        ledger.given_back(&due.id);
        assert_eq!((leaving(&ledger), ledger.next_due()), (0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn what_somebody_unknown_may_be_fetching_is_stranded_until_its_lease() {
    let ledger = ledger();
    let nobody_to_ask = Wanted {
        decode_at: None,
        ..wanted()
    };
    let open = ledger.open(&id("t")).unwrap();
    open.hold(draft("t"), LEASE, nobody_to_ask);
    ledger.release(&id("t"));
    assert_eq!((ledger.due(), ledger.next_due()), (vec![], None));
    assert_eq!(leaving(&ledger), 1);
    assert_eq!(
        ledger.settle(&id("t"), &life("a")).unwrap_err().kind,
        ErrorKind::TicketRefused
    );
    tokio::time::advance(LEASE).await;
    sweep(&ledger);
    assert_eq!((leaving(&ledger), ledger.metrics.stranded.get()), (0, 1));
    tokio::time::advance(REMEMBERED).await;
    sweep(&ledger);
    assert!(ledger.lock().is_empty(), "memory is given back");
}

#[tokio::test(start_paused = true)]
async fn what_the_engine_cannot_be_told_of_is_left_to_its_lease_and_counted() {
    let ledger = ledger();
    held(&ledger, "t");
    ledger.withdraw(&id("t"));
    assert_eq!(ledger.due().len(), 1);
    ledger.left_to_lease(&id("t"));
    tokio::time::advance(LEASE / 2).await;
    assert_eq!((ledger.due().len(), ledger.next_due()), (0, None));
    sweep(&ledger);
    assert_eq!((leaving(&ledger), ledger.metrics.stranded.get()), (1, 0));
    tokio::time::advance(LEASE / 2).await;
    sweep(&ledger);
    assert_eq!((leaving(&ledger), ledger.metrics.stranded.get()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn tickets_end_with_their_router() {
    let ledger = ledger();
    held(&ledger, "t");
    let nobodys = Wanted {
        router: None,
        ..wanted()
    };
    let open = ledger.open(&id("u")).unwrap();
    open.hold(draft("u"), LEASE, nobodys);
    ledger.sweep(|router| router.as_str() != "r");
    assert_eq!(ledger.counts().claimed, 2);
    ledger.sweep(|router| router.as_str() == "r");
    let counts = ledger.counts();
    assert_eq!((counts.claimed, counts.leaving), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_while_the_request_lives() {
    let ledger = ledger();
    held(&ledger, "t");
    assert_eq!(ledger.expiring(), []);
    let claimed_at = |seconds: u64| {
        let ledger = ledger.clone();
        async move {
            for _ in 0..seconds {
                tokio::time::advance(Duration::from_secs(1)).await;
                for (id, _) in ledger.expiring() {
                    ledger.extended(&[id], Instant::now() + LEASE.mul_f64(2.0 / 3.0));
                }
                sweep(&ledger);
            }
            ledger.is_claimed(&id("t")).is_ok()
        }
    };
    assert!(claimed_at(290).await, "as long as its request may want it");
    assert!(!claimed_at(40).await, "and hardly longer");
}

#[tokio::test(start_paused = true)]
async fn releasing_a_running_leg_cancels_it_and_an_unknown_one_never_starts() {
    let ledger = ledger();
    let leg = ledger.open(&id("t")).unwrap();
    ledger.release(&id("t"));
    leg.released().await;
    drop(leg);
    ledger.release(&id("late"));
    assert_eq!(
        ledger.open(&id("late")).err().unwrap().kind,
        ErrorKind::Conflict
    );
    assert_eq!(ledger.counts(), Counts::default());
}

#[tokio::test(start_paused = true)]
async fn gauges_follow_every_change() {
    let ledger = ledger();
    held(&ledger, "a");
    held(&ledger, "b");
    let leg = ledger.open(&id("c")).unwrap();
    ledger.release(&id("a"));
    ledger.settle(&id("b"), &life("a")).unwrap();
    let gauges = |ledger: &Ledger| {
        [
            TicketState::Running,
            TicketState::Claimed,
            TicketState::Leaving,
        ]
        .map(|state| ledger.metrics.in_state(state))
    };
    assert_eq!(gauges(&ledger), [1, 0, 1]);
    drop(leg);
    ledger.void_others(&life("b"));
    assert_eq!(gauges(&ledger), [0, 0, 0]);
}

fn unread() -> Unread {
    Unread {
        foreseen: Foreseen {
            metadata: TransferMetadata::new(&b"{}"[..]),
            lease: LEASE,
            certain: true,
        },
        incarnation: life("a"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_unread_prefill_may_hold_is_given_back_once_its_engine_has_answered_since() {
    let ledger = ledger();
    let asked_before = Instant::now();
    let mut leg = ledger.open(&id("cut")).unwrap();
    leg.asked(Some(unread()));
    tokio::time::advance(Duration::from_secs(1)).await;
    drop(leg);
    ledger.adopt_unread(&id("former"), unread());
    ledger.engine_answered(asked_before);
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(
        ledger.due(),
        [],
        "it may be frozen, and finish the prefill yet"
    );
    ledger.engine_answered(Instant::now());
    assert_eq!(ledger.due(), [], "it may not have noticed yet");
    tokio::time::advance(Duration::from_secs(1)).await;
    let due = ledger.due();
    assert_eq!(due.len(), 2);
    assert!(due.iter().all(|due| due.fetcher == Fetcher::Nobody));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_holds_nothing_leaves_nothing() {
    let ledger = ledger();
    let mut leg = ledger.open(&id("refused")).unwrap();
    leg.asked(Some(unread()));
    leg.holds_nothing();
    drop(leg);
    assert_eq!(ledger.counts(), Counts::default());
}
