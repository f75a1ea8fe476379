use baton_proto::digest::RequestDigest;
use baton_proto::ticket::TransferMetadata;

use super::*;

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
        prompt_tokens: 3,
        bytes: 10,
        lease_ms: 30_000,
        metadata: TransferMetadata::new(&b"{}"[..]),
    }
}

fn held(ledger: &Ledger, name: &str) -> Ticket {
    ledger.open(&id(name)).unwrap().hold(draft(name), LEASE)
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
            .claim(&id("t"), "d1".parse().unwrap())
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
            .claim(&id("t"), "d1".parse().unwrap())
            .unwrap_err()
            .kind,
        ErrorKind::LeaseExpired
    );
    ledger.sweep();
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
    let moved = ledger.claim(&id("t"), "d1".parse().unwrap()).unwrap();
    assert_eq!((first.decode.as_str(), moved.decode.as_str()), ("d0", "d1"));
    assert!(first.is_genuine(&token) && moved.is_genuine(&token));
    assert_eq!(
        (first.lease_remaining_ms, moved.lease_remaining_ms),
        (30_000, 20_000)
    );
    ledger.settle(&id("t"), &life("a")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_nobody_fetches_is_stranded_until_its_lease() {
    let ledger = ledger();
    held(&ledger, "t");
    ledger.open(&id("u")).unwrap().strand(life("a"), LEASE);
    ledger.release(&id("t"));
    ledger.release(&id("t"));
    assert_eq!(
        ledger.counts(),
        Counts {
            stranded: 2,
            ..Counts::default()
        }
    );
    assert_eq!(ledger.metrics.stranded.get(), 2);
    assert_eq!(
        ledger.settle(&id("t"), &life("a")).unwrap_err().kind,
        ErrorKind::TicketRefused
    );
    tokio::time::advance(LEASE).await;
    ledger.sweep();
    assert_eq!(ledger.counts(), Counts::default());
    tokio::time::advance(REMEMBERED).await;
    ledger.sweep();
    assert!(ledger.lock().is_empty(), "memory is given back");
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
            TicketState::Stranded,
        ]
        .map(|state| ledger.metrics.in_state(state))
    };
    assert_eq!(gauges(&ledger), [1, 0, 1]);
    drop(leg);
    ledger.void_others(&life("b"));
    assert_eq!(gauges(&ledger), [0, 0, 0]);
}
