use super::*;

const FLOOR: Duration = Duration::from_secs(10);

/// An engine that is looked at once a second.
struct Scene {
    progress: Progress,
    own: Own,
}

impl Scene {
    fn new() -> Self {
        Self {
            progress: Progress::new(FLOOR),
            own: Own::default(),
        }
    }

    /// One leg that began at this moment, as the table of legs counts it.
    fn leg(&self, since: Instant, tokens: u64) -> Owed {
        let stalled = self.progress.stalled_at();
        Owed {
            legs: 1,
            tokens,
            since: Some(since).filter(|since| stalled.is_none_or(|stalled| *since > stalled)),
        }
    }

    /// Passes so many seconds, and says how often the engine was found to stall.
    async fn pass(&self, seconds: u32, since: Instant, tokens: u64) -> u32 {
        let mut times = 0;
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            let stall = self.progress.judge(self.leg(since, tokens), self.own);
            times = stall.map_or(0, |stall| stall.times);
        }
        times
    }

    async fn idle(&self, seconds: u32) {
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(self.progress.judge(Owed::default(), self.own), None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_never_stalls() {
    Scene::new().idle(3000).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_waits_longer_than_the_floor_is_a_stall_and_progress_ends_it() {
    let scene = Scene::new();
    let since = Instant::now();
    assert_eq!(scene.pass(10, since, 0).await, 0);
    assert_eq!(scene.pass(1, since, 0).await, 1);
    assert_eq!(scene.pass(100, since, 0).await, 1, "one leg is judged once");
    scene.progress.moved();
    assert_eq!(scene.pass(1, since, 0).await, 0);
}

#[tokio::test(start_paused = true)]
async fn time_before_a_leg_is_not_held_against_the_engine() {
    let scene = Scene::new();
    scene.idle(1000).await;
    assert_eq!(scene.pass(9, Instant::now(), 0).await, 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_tries_a_stalled_engine_in_vain_makes_it_stall_again() {
    let scene = Scene::new();
    assert_eq!(scene.pass(11, Instant::now(), 0).await, 1);
    scene.progress.judge(Owed::default(), scene.own).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(scene.pass(11, Instant::now(), 0).await, 2);
}

#[tokio::test(start_paused = true)]
async fn one_very_long_prompt_has_the_time_that_its_tokens_take() {
    let scene = Scene::new();
    // Never seen: a hundred tokens a second, six times over.
    assert_eq!(scene.pass(300, Instant::now(), 5_000).await, 0);
    // Seen: a thousand tokens a second at the slowest.
    scene.progress.computed(1_000, Duration::from_secs(1));
    scene.progress.computed(64_000, Duration::from_secs(1));
    let since = Instant::now();
    assert_eq!(scene.pass(50, since, 10_000).await, 0);
    assert_eq!(scene.pass(15, since, 10_000).await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_often_silent_for_long_is_given_longer() {
    let scene = Scene::new();
    for _ in 0..3 {
        assert_eq!(scene.pass(9, Instant::now(), 0).await, 0);
        scene.progress.moved();
    }
    // Six times nine seconds by now; no single silence made it more than twice as long.
    let since = Instant::now();
    assert_eq!(scene.pass(45, since, 0).await, 0);
    assert_eq!(scene.pass(15, since, 0).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stall_that_ends_is_no_licence_for_the_next() {
    let scene = Scene::new();
    assert_eq!(scene.pass(500, Instant::now(), 0).await, 1);
    scene.progress.moved();
    let since = Instant::now();
    assert_eq!(scene.pass(18, since, 0).await, 0);
    assert_eq!(
        scene.pass(5, since, 0).await,
        1,
        "twice the floor, and no more"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_learnt_is_forgotten() {
    let scene = Scene::new();
    assert_eq!(scene.pass(9, Instant::now(), 0).await, 0);
    scene.progress.moved();
    scene.idle(3600).await;
    assert_eq!(scene.pass(12, Instant::now(), 0).await, 1);
}

#[tokio::test(start_paused = true)]
async fn the_engines_own_count_is_progress() {
    let mut scene = Scene::new();
    let since = Instant::now();
    for work in 0..30 {
        scene.own.work = Some(work);
        assert_eq!(scene.pass(5, since, 0).await, 0);
    }
    assert_eq!(scene.pass(60, since, 0).await, 1);
}

#[tokio::test(start_paused = true)]
async fn another_life_starts_anew() {
    let scene = Scene::new();
    assert_eq!(scene.pass(11, Instant::now(), 0).await, 1);
    scene.progress.forget();
    assert_eq!(scene.pass(9, Instant::now(), 0).await, 0);
}
