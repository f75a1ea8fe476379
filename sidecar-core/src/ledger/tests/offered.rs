//! Tickets that exist before their prefill.

use super::*;
use crate::metrics::Metrics;

fn offered(ledger: &Ledger, name: &str) -> (OpenLeg, Ticket) {
    let leg = ledger.open(&id(name)).unwrap();
    let known_later = Draft {
        prompt_tokens: None,
        bytes: None,
        ..draft(name)
    };
    let ticket = leg.offer(known_later, LEASE, wanted());
    (leg, ticket)
}

fn must_end(leg: &OpenLeg) -> bool {
    leg.cancel.is_cancelled()
}

fn ends(ledger: &Ledger) -> String {
    let mut registry = baton_daemon::metrics::Registry::default();
    let mut metrics = Metrics::default();
    metrics.tickets = ledger.metrics.clone();
    metrics.register(&mut registry);
    let page = registry.page();
    let lines = page
        .lines()
        .filter_map(|line| line.split_once("_ended_total{end=\""));
    let ends = lines.map(|(_, end)| end.replace("\"}", ""));
    ends.collect::<Vec<_>>().join(", ")
}

fn claimed(claimed: usize) -> Counts {
    Counts {
        claimed,
        ..Counts::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_was_offered_is_over_when_its_leg_has_handed_over() {
    let ledger = ledger();
    let (leg, ticket) = offered(&ledger, "t");
    assert!(ticket.is_genuine(&ledger.token));
    assert_eq!((ticket.prompt_tokens, ticket.bytes), (None, None));
    assert_eq!(ledger.counts(), claimed(1));
    ledger.confirm(&id("t"), &life("a")).unwrap();
    leg.handed_over();
    assert_eq!(ledger.counts(), Counts::default());
    ledger.confirm(&id("t"), &life("a")).unwrap();
    ledger.release(&id("t"));
    assert_eq!(ledger.due(), [], "nothing is held any more");
    assert_eq!(ends(&ledger), "settled 1");
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_fails_takes_its_ticket_with_it() {
    let ledger = ledger();
    let (leg, _ticket) = offered(&ledger, "t");
    drop(leg);
    assert_eq!(ledger.counts(), Counts::default());
    let refused = ledger.confirm(&id("t"), &life("a")).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::TicketRefused);
    assert!(ledger.open(&id("t")).is_err(), "its name is used up");
    assert_eq!(ends(&ledger), "failed 1");
}

#[tokio::test(start_paused = true)]
async fn a_leg_ends_after_decode_was_asked_and_not_before() {
    let ledger = ledger();
    let (leg, _ticket) = offered(&ledger, "t");
    ledger.release(&id("t"));
    let [due] = &ledger.due()[..] else {
        panic!("decode is to be asked");
    };
    assert_eq!(due.fetcher, Fetcher::At("http://d".to_owned()));
    assert!(!must_end(&leg));
    ledger.revoked(&id("t"), Revoked::Cut);
    assert_eq!(ledger.due(), [], "its engine has to notice first");
    tokio::time::advance(Duration::from_secs(1)).await;
    let [due] = &ledger.due()[..] else {
        panic!("the leg is to end");
    };
    assert!(due.by_leg && due.fetcher == Fetcher::Nobody);
    ledger.end_leg(&due.id);
    assert!(must_end(&leg));
    assert_eq!(ledger.counts().leaving, 1, "until the leg has ended");
    drop(leg);
    assert_eq!(ledger.counts(), Counts::default());
    assert_eq!(ends(&ledger), "released 1");
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_hands_over_although_it_was_given_up_leaves_nothing() {
    let ledger = ledger();
    let (leg, _ticket) = offered(&ledger, "t");
    ledger.release(&id("t"));
    leg.handed_over();
    assert_eq!(ledger.counts(), Counts::default());
    assert_eq!(ends(&ledger), "released 1");
    ledger.revoked(&id("t"), Revoked::Answered);
    assert_eq!(ledger.due(), []);
}

#[tokio::test(start_paused = true)]
async fn legs_that_do_not_find_each_other_end_by_the_lease() {
    let ledger = ledger();
    let (leg, _ticket) = offered(&ledger, "t");
    assert_eq!(ledger.expiring(), [], "no engine can be asked for more");
    tokio::time::advance(LEASE).await;
    sweep(&ledger);
    assert!(!must_end(&leg), "decode is asked first");
    assert_eq!(ledger.due()[0].fetcher, Fetcher::At("http://d".to_owned()));
    tokio::time::advance(Duration::from_secs(10)).await;
    sweep(&ledger);
    assert!(must_end(&leg), "whatever decode says");
    assert_eq!(ledger.counts(), Counts::default());
    drop(leg);
    assert_eq!(ends(&ledger), "lapsed 1");
}

#[tokio::test(start_paused = true)]
async fn a_ticket_moves_while_its_prefill_runs() {
    let ledger = ledger();
    let (leg, _ticket) = offered(&ledger, "t");
    let other = ledger.claim(&id("t"), "d1".parse().unwrap(), None).unwrap();
    assert!(other.is_genuine(&ledger.token));
    assert_eq!(other.decode.as_str(), "d1");
    leg.handed_over();
    assert!(ledger.claim(&id("t"), "d2".parse().unwrap(), None).is_err());
}

#[tokio::test(start_paused = true)]
async fn legs_of_another_life_end() {
    let ledger = ledger();
    let (leg, _ticket) = offered(&ledger, "t");
    ledger.void_others(&life("b"));
    assert!(must_end(&leg));
    drop(leg);
    assert_eq!(ledger.counts(), Counts::default());
    assert_eq!(ends(&ledger), "voided 1");
}
