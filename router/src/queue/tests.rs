//! Who is woken when, and who has to go.

use std::pin::pin;
use std::task::Poll;

use futures_util::poll;

use super::*;

fn queue(most: usize) -> Arc<Queue> {
    Queue::new(most, Metrics::default())
}

/// Whether one was told to look, without any time passing.
async fn is_woken(place: &Place) -> bool {
    let heard = pin!(place.wake.heard());
    poll!(heard) == Poll::Ready(())
}

fn end() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test(start_paused = true)]
async fn room_goes_to_the_first_who_wants_it_and_then_to_the_next() {
    let queue = queue(10);
    let [one, two, three] = [0; 3].map(|_| queue.enter(Some("m"), 1).unwrap());
    one.wants(&[1]);
    two.wants(&[1, 2]);
    three.wants(&[2]);
    queue.room_in(1);
    assert!(is_woken(&one).await);
    assert!(!is_woken(&two).await && !is_woken(&three).await);
    drop(one);
    assert!(is_woken(&two).await, "there may be more room");
    queue.room_in(2);
    assert!(is_woken(&two).await);
    assert!(!is_woken(&three).await);
    two.wants(&[1]);
    assert!(
        is_woken(&three).await,
        "nobody before it wants that room any more"
    );
    queue.room_in(7);
    assert!(!is_woken(&two).await && !is_woken(&three).await);
}

#[tokio::test(start_paused = true)]
async fn who_changes_his_mind_among_full_workers_wakes_nobody() {
    let queue = queue(10);
    let [one, two] = [0; 2].map(|_| queue.enter(None, 1).unwrap());
    one.wants(&[1]);
    two.wants(&[1]);
    one.wants(&[2]);
    two.wants(&[2]);
    assert!(!is_woken(&one).await && !is_woken(&two).await);
    // Either will do when it has room.
    queue.room_in(1);
    assert!(is_woken(&one).await);
    one.wants(&[2]);
    assert!(
        is_woken(&two).await,
        "what one does not take the next may have"
    );
    queue.room_in(1);
    assert!(!is_woken(&one).await && is_woken(&two).await);
}

#[tokio::test(start_paused = true)]
async fn a_word_is_not_lost_on_who_does_not_listen() {
    let queue = queue(10);
    let place = queue.enter(None, 1).unwrap();
    place.wants(&[1]);
    queue.room_in(1);
    let before = Instant::now();
    place.woken(end(), 1).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    place.woken(end(), 1).await.unwrap();
    assert_eq!(
        before.elapsed(),
        LOOK_AGAIN,
        "it looks again whatever it hears"
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_counts_for_those_behind() {
    let queue = queue(10);
    assert_eq!(queue.ahead(None).of(1), 0);
    let (one, two) = (queue.enter(None, 1).unwrap(), queue.enter(None, 1).unwrap());
    one.wants(&[1]);
    two.wants(&[1, 2]);
    let ahead = |place: Option<&Place>| {
        let ahead = queue.ahead(place);
        [1, 2, 3].map(|worker| ahead.of(worker))
    };
    assert_eq!(ahead(None), [2, 1, 0]);
    assert_eq!(ahead(Some(&two)), [1, 0, 0]);
    assert_eq!(ahead(Some(&one)), [0, 0, 0]);
    drop(one);
    assert_eq!(ahead(None), [1, 1, 0]);
    drop(two);
    assert_eq!(ahead(None), [0, 0, 0]);
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_past_his_time() {
    let queue = queue(1);
    let place = queue.enter(None, 1).unwrap();
    let (begun, end) = (Instant::now(), Instant::now() + LOOK_AGAIN * 3);
    let error = loop {
        if let Err(error) = place.woken(end, 1).await {
            break error;
        }
    };
    assert_eq!(begun.elapsed(), LOOK_AGAIN * 3);
    assert_eq!(error.kind, ErrorKind::Overloaded);
    assert!(
        error.message.contains("waited for 3 s"),
        "{}",
        error.message
    );
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_one_model_gives_way_to_others() {
    let queue = queue(4);
    let enter = |model| queue.enter(Some(model), 7);
    let flood: Vec<Place> = (0..4).map(|_| enter("flood").unwrap()).collect();
    let full = enter("flood").unwrap_err();
    assert_eq!(
        (full.kind, full.retry),
        (ErrorKind::Overloaded, Retry::Safe)
    );
    assert_eq!(full.retry_after_s, Some(7));
    let one = enter("quiet").unwrap();
    let two = enter("quiet").unwrap();
    assert!(enter("quiet").is_err(), "each has its share");
    for (place, stays) in flood.iter().zip([true, true, false, false]) {
        assert_eq!(place.wake.must_go(), !stays);
    }
    let gone = flood[3].woken(end(), 1).await.unwrap_err();
    assert!(gone.message.contains("this model"), "{}", gone.message);
    assert_eq!(queue.lock().len(), 4);
    drop((flood, one, two));
    assert_eq!((queue.waiting(), queue.lock().len()), (0, 0));
    assert!(queue.lock().ahead(None).is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_has_to_go_leaves_room_to_the_next() {
    let queue = queue(2);
    let (one, two) = (
        queue.enter(Some("a"), 1).unwrap(),
        queue.enter(Some("a"), 1).unwrap(),
    );
    one.wants(&[1]);
    two.wants(&[2]);
    let three = queue.enter(Some("b"), 1).unwrap();
    three.wants(&[2]);
    assert!(two.wake.must_go());
    queue.room_in(2);
    assert!(is_woken(&three).await);
}
