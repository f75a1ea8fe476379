use std::sync::Arc;

use super::*;
use crate::Kind;

const fn uncached(tokens: u64) -> Work {
    Work { tokens, cached: 0 }
}

#[test]
fn books_are_even_when_all_is_over() {
    let [one, other] = [Worker::new(), Worker::new()];
    let idle = |worker: &Worker| {
        let figures = worker.figures(100.0);
        figures.waiting == 0.0
            && figures.sequences == 0
            && figures.kv_tokens == 0
            && figures.bytes_in + figures.bytes_out == 0
    };
    let mut prefill = one.book(
        Work {
            tokens: 500,
            cached: 5,
        },
        505,
        0.0,
    );
    let refused = one.book(
        Work {
            tokens: 500,
            cached: 5,
        },
        505,
        0.0,
    );
    let mut decode = other.book(Work::default(), 505, 0.1);
    decode.moves(50_000, &one);
    assert_eq!(one.figures(0.1).bytes_out, 50_000);
    assert_eq!(other.figures(0.1).bytes_in, 50_000);
    prefill.computed(0.2);
    prefill.computed(0.3);
    decode.grown(700);
    decode.moves(1, &one);
    drop((refused, decode, prefill));
    assert!(idle(&one) && idle(&other));
}

#[test]
fn a_slow_worker_is_learnt() {
    let worker = Worker::new();
    let work = Work {
        tokens: 4000,
        cached: 0,
    };
    let mut now = 0.0;
    for _ in 0..30 {
        // Two at a time: the second waits for the first.
        let pair = [0; 2].map(|_| worker.book(work, 4000, now));
        for mut booked in pair {
            now += 2.0;
            booked.computed(now);
        }
        now += 5.0;
    }
    let predicted = worker.figures(now).prefill(work);
    assert!((1.8..2.2).contains(&predicted), "{predicted}");
}

/// A prompt that is quicker than expected was not computed together with one that was done long before.
#[test]
fn a_prompt_that_comes_later_is_learnt_alone() {
    let worker = Worker::new();
    let compute = |tokens, from, seconds| {
        worker
            .book(uncached(tokens), tokens, from)
            .computed(from + seconds);
    };
    for turn in 0..20 {
        compute(20_000, 100.0 * f64::from(turn), 10.0);
    }
    for turn in 20..60 {
        compute(1000, 100.0 * f64::from(turn), 0.1);
    }
    let predicted = worker.figures(1e4).prefill(uncached(1000));
    assert!((0.05..0.2).contains(&predicted), "{predicted}");
}

/// Four prompts that are computed in one step are done at one moment.
#[test]
fn prompts_of_one_step_share_its_time() {
    let worker = Worker::new();
    let work = Work {
        tokens: 1000,
        cached: 0,
    };
    let mut now = 0.0;
    for _ in 0..100 {
        let four = [0; 4].map(|_| worker.book(work, 1000, now));
        now += 0.4;
        for mut booked in four {
            booked.computed(now);
        }
        now += 1.0;
    }
    let four = Work {
        tokens: 4000,
        cached: 0,
    };
    let predicted = worker.figures(now).prefill(four);
    assert!((0.3..0.6).contains(&predicted), "{predicted}");
}

#[test]
fn what_others_gave_is_what_is_reported_beyond_the_own() {
    let worker = Worker::new();
    let _own = worker.book(
        Work {
            tokens: 3000,
            cached: 0,
        },
        3000,
        0.0,
    );
    let report = |seq, queued, sequences| Load {
        seq,
        sequences: Some(sequences),
        queued_tokens: Some(queued),
        kv_tokens: Some(9000),
    };
    let before = worker.figures(0.0).waiting;
    worker.report(report(5, 3000, 1));
    assert!((worker.figures(0.0).waiting - before).abs() < 1e-9);
    worker.report(report(6, 8000, 4));
    let figures = worker.figures(0.0);
    assert!(figures.waiting > before * 2.0);
    assert_eq!((figures.sequences, figures.kv_tokens), (4, 9000));
    worker.report(report(3, 100_000, 400));
    assert_eq!(
        worker.figures(0.0).sequences,
        4,
        "an old report says nothing"
    );
    worker.forget_reports();
    assert_eq!(worker.figures(0.0).sequences, 1);
}

/// Workers of one kind learn from each other; one that differs is found out.
#[test]
fn a_kind_is_learnt_by_all_and_left_by_who_differs() {
    let kind = Arc::new(Kind::default());
    let workers = [0; 4].map(|_| Worker::new());
    for worker in &workers {
        worker.is_of(&kind);
    }
    let work = Work {
        tokens: 4000,
        cached: 0,
    };
    let mut now = 0.0;
    for round in 0..60_u32 {
        for (at, worker) in workers[..3].iter().enumerate() {
            let mut booked = worker.book(work, 4000, now);
            let jitter = 0.9 + 0.2 * f64::from(round % 3) / 2.0;
            now += if at == 0 { 2.0 } else { 0.8 } * jitter;
            booked.computed(now);
        }
    }
    let predicted = workers
        .each_ref()
        .map(|worker| worker.figures(now).prefill(work));
    assert!((1.7..2.3).contains(&predicted[0]), "{predicted:?}");
    assert!((0.6..1.2).contains(&predicted[1]), "{predicted:?}");
    assert!(
        (0.6..1.2).contains(&predicted[3]),
        "who was never asked is like its kind: {predicted:?}"
    );
}

/// An answer that comes whole says nothing of when its prompt was computed.
#[test]
fn what_is_not_seen_is_not_learnt_and_passes_by_itself() {
    let worker = Worker::new();
    let work = Work {
        tokens: 4000,
        cached: 0,
    };
    let takes = worker.figures(0.0).prefill(work);
    let mut unseen = worker.book(work, 4000, 0.0);
    unseen.unseen();
    let _behind = worker.book(work, 4000, 0.0);
    assert!((worker.figures(0.0).waiting - 2.0 * takes).abs() < 1e-9);
    assert!((worker.figures(takes).waiting - takes).abs() < 1e-9);
    let late = worker.figures(50.0).waiting;
    assert!(
        late > 0.0 && late < takes,
        "the one behind is seen, and not done: {late}"
    );
    unseen.computed(50.0);
    assert_eq!(worker.figures(50.0).learnt_from(), 0);
    assert!((worker.figures(50.0).prefill(work) - takes).abs() < 1e-9);
}
