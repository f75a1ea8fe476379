//! The order of messages, case by case and against an engine that dies, forgets, and is heard badly.

use proptest::prelude::*;

use super::*;

fn message(seq: u64) -> Vec<u8> {
    format!("life 1, message {seq}").into_bytes()
}

fn other(seq: u64) -> Vec<u8> {
    format!("life 2, message {seq}").into_bytes()
}

fn apply(seqs: impl IntoIterator<Item = u64>) -> Vec<Step> {
    seqs.into_iter()
        .map(|seq| Step::Apply(seq, message(seq)))
        .collect()
}

/// One that has applied messages 0 to `last`, over a connection that holds.
fn following(last: u64) -> Sequencer {
    let mut sequencer = Sequencer::new(true);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Ask(0)]);
    assert_eq!(sequencer.hear(Heard::End), [Step::Silent]);
    for seq in 0..=last {
        let steps = sequencer.hear(Heard::Live(seq, message(seq)));
        assert_eq!(steps, apply([seq]));
    }
    sequencer
}

#[test]
fn messages_before_the_first_connection_are_asked_for() {
    let mut sequencer = Sequencer::new(true);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Ask(0)]);
    assert_eq!(sequencer.hear(Heard::Live(2, message(2))), []);
    assert_eq!(sequencer.hear(Heard::Again(0, message(0))), apply([0]));
    assert_eq!(sequencer.hear(Heard::Again(1, message(1))), apply([1, 2]));
    assert_eq!(sequencer.hear(Heard::Again(2, message(2))), []);
    assert_eq!(sequencer.hear(Heard::End), []);
    assert_eq!(sequencer.hear(Heard::Live(3, message(3))), apply([3]));
}

#[test]
fn a_gap_is_filled_and_what_cannot_be_filled_is_left_to_the_mirror() {
    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Live(4, message(4))), [Step::Ask(1)]);
    assert_eq!(sequencer.hear(Heard::Live(5, message(5))), []);
    assert_eq!(sequencer.hear(Heard::Again(1, message(1))), []);
    assert_eq!(sequencer.hear(Heard::Again(2, message(2))), apply([2]));
    assert_eq!(sequencer.hear(Heard::End), apply([4, 5]), "3 is missing");
    assert!(!sequencer.is_asking());
}

#[test]
fn what_was_lost_at_the_end_shows_when_it_is_quiet() {
    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Quiet), [Step::Ask(1)]);
    assert_eq!(sequencer.hear(Heard::Quiet), []);
    assert_eq!(sequencer.hear(Heard::Again(1, message(1))), []);
    assert_eq!(sequencer.hear(Heard::Again(2, message(2))), apply([2]));
    assert_eq!(sequencer.hear(Heard::End), []);
}

#[test]
fn a_question_holds_up_nothing_that_is_in_order() {
    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Quiet), [Step::Ask(1)]);
    assert_eq!(sequencer.hear(Heard::Live(2, message(2))), apply([2]));
    assert_eq!(sequencer.hear(Heard::Again(1, message(1))), []);
    assert_eq!(sequencer.hear(Heard::Again(2, message(2))), []);
    assert_eq!(sequencer.hear(Heard::End), []);
}

#[test]
fn after_a_broken_connection_the_same_life_goes_on() {
    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Disconnected), []);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Ask(1)]);
    assert_eq!(sequencer.hear(Heard::Live(3, message(3))), []);
    assert_eq!(sequencer.hear(Heard::Again(1, message(1))), []);
    assert_eq!(sequencer.hear(Heard::Again(2, message(2))), apply([2, 3]));
    assert_eq!(sequencer.hear(Heard::End), []);
}

#[test]
fn after_a_broken_connection_a_new_life_shows_by_its_messages() {
    // Another message under the last number, with just the number that would have come next.
    let mut sequencer = following(1);
    sequencer.hear(Heard::Disconnected);
    assert_eq!(sequencer.hear(Heard::Live(2, other(2))), [Step::Ask(1)]);
    let steps = sequencer.hear(Heard::Again(1, other(1)));
    assert_eq!(steps, [Step::Restart, Step::Ask(0)]);
    for seq in 0..=2 {
        let steps = sequencer.hear(Heard::Again(seq, other(seq)));
        assert_eq!(steps, [Step::Apply(seq, other(seq))]);
    }
    assert_eq!(sequencer.hear(Heard::End), []);

    // Messages of the old life may be read after its connection's end.
    let mut sequencer = Sequencer::new(true);
    assert_eq!(sequencer.hear(Heard::Live(0, message(0))), [Step::Ask(0)]);
    let steps = sequencer.hear(Heard::Again(0, other(0)));
    assert_eq!(steps, [Step::Apply(0, other(0))]);

    // Fewer messages than there were.
    let mut sequencer = following(5);
    sequencer.hear(Heard::Disconnected);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Ask(5)]);
    assert_eq!(sequencer.hear(Heard::End), [Step::Restart, Step::Ask(0)]);
    assert_eq!(sequencer.hear(Heard::End), [Step::Silent]);
}

#[test]
fn what_was_learnt_without_a_connection_is_looked_at_again() {
    let mut sequencer = following(1);
    sequencer.hear(Heard::Disconnected);
    assert_eq!(sequencer.hear(Heard::Live(2, message(2))), [Step::Ask(1)]);
    let steps = sequencer.hear(Heard::End);
    assert_eq!(steps, [Step::Restart, Step::Ask(0)]);
    let steps = sequencer.hear(Heard::Again(0, other(0)));
    assert_eq!(steps, [Step::Apply(0, other(0))]);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Hush, Step::Ask(0)]);
    let steps = sequencer.hear(Heard::Again(0, message(0)));
    assert_eq!(steps, [Step::Restart, Step::Ask(0)], "a third life");
}

#[test]
fn numbers_that_begin_again_over_a_connection_that_holds_are_a_new_life() {
    let mut sequencer = following(5);
    let steps = sequencer.hear(Heard::Live(0, other(0)));
    assert_eq!(steps, [Step::Older, Step::Ask(5)]);
    assert_eq!(sequencer.hear(Heard::End), [Step::Restart, Step::Ask(0)]);
    let steps = sequencer.hear(Heard::Again(0, other(0)));
    assert_eq!(steps, [Step::Apply(0, other(0))]);
    assert_eq!(sequencer.hear(Heard::End), []);
}

#[test]
fn messages_that_come_twice_or_late_are_passed_over() {
    let mut sequencer = following(5);
    assert_eq!(sequencer.hear(Heard::Live(5, message(5))), [Step::Older]);
    let steps = sequencer.hear(Heard::Live(3, message(3)));
    assert_eq!(steps, [Step::Older, Step::Ask(5)]);
    assert_eq!(sequencer.hear(Heard::Again(5, message(5))), []);
    assert_eq!(sequencer.hear(Heard::End), []);
    assert_eq!(sequencer.hear(Heard::Live(6, message(6))), apply([6]));
}

#[test]
fn an_engine_that_contradicts_itself_is_not_believed_until_its_connection_ends() {
    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Quiet), [Step::Ask(1)]);
    let steps = sequencer.hear(Heard::Again(1, message(2)));
    assert_eq!(steps, [Step::Hush, Step::Lose]);
    assert_eq!(sequencer.hear(Heard::Quiet), []);
    assert_eq!(sequencer.hear(Heard::Live(2, message(2))), apply([2]));

    // It was in a new life, and the end of the old one's connection showed only now.
    assert_eq!(sequencer.hear(Heard::Disconnected), []);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Ask(2)]);
    assert_eq!(sequencer.hear(Heard::End), [Step::Restart, Step::Ask(0)]);

    // Nor was it: it is given another chance, after a long while.
    let mut sequencer = following(1);
    sequencer.hear(Heard::Quiet);
    sequencer.hear(Heard::Again(1, message(2)));
    for _ in 1..DISBELIEF {
        assert_eq!(sequencer.hear(Heard::Quiet), []);
    }
    assert_eq!(sequencer.hear(Heard::Quiet), [Step::Ask(1)]);

    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Live(3, message(3))), [Step::Ask(1)]);
    let mut steps = vec![Step::Hush, Step::Lose];
    steps.extend(apply([3]));
    assert_eq!(sequencer.hear(Heard::Again(3, message(4))), steps);
}

#[test]
fn without_an_answer_what_came_is_taken_and_a_broken_connection_is_a_loss() {
    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Live(3, message(3))), [Step::Ask(1)]);
    assert_eq!(
        sequencer.hear(Heard::Unanswered),
        [Step::Ask(1)],
        "once more"
    );
    assert_eq!(sequencer.hear(Heard::Unanswered), apply([3]));
    sequencer.hear(Heard::Disconnected);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Ask(3)]);
    assert_eq!(sequencer.hear(Heard::Unanswered), [Step::Ask(3)]);
    assert_eq!(sequencer.hear(Heard::Unanswered), [Step::Lose]);
    assert_eq!(sequencer.hear(Heard::Unanswered), [], "nothing was asked");
    assert_eq!(sequencer.hear(Heard::Live(4, message(4))), apply([4]));
}

#[test]
fn an_engine_that_cannot_be_asked_is_taken_at_its_word() {
    let mut sequencer = Sequencer::new(false);
    assert_eq!(sequencer.hear(Heard::Connected), []);
    assert_eq!(
        sequencer.hear(Heard::Disconnected),
        [],
        "nothing was heard that could be lost"
    );
    assert_eq!(sequencer.hear(Heard::Live(0, message(0))), apply([0]));
    assert_eq!(sequencer.hear(Heard::Live(7, message(7))), apply([7]));
    assert_eq!(sequencer.hear(Heard::Quiet), []);
    assert_eq!(sequencer.hear(Heard::Disconnected), [Step::Lose]);
}

#[test]
fn a_connection_that_ends_ends_the_question() {
    let mut sequencer = following(1);
    assert_eq!(sequencer.hear(Heard::Quiet), [Step::Ask(1)]);
    assert_eq!(sequencer.hear(Heard::Disconnected), [Step::Hush]);
    assert_eq!(sequencer.hear(Heard::Connected), [Step::Ask(1)]);
}

#[test]
fn what_waits_is_bounded() {
    let mut sequencer = following(1);
    let big = vec![0; MOST_WAITING / 2];
    assert_eq!(sequencer.hear(Heard::Live(3, big.clone())), [Step::Ask(1)]);
    assert_eq!(sequencer.hear(Heard::Live(4, big.clone())), []);
    let steps = sequencer.hear(Heard::Live(5, vec![0]));
    assert_eq!(steps[0], Step::Hush);
    assert_eq!(steps.len(), 4);
    assert_eq!(sequencer.waiting_bytes, 0);
}

/// What happens between an engine and who follows it.
#[derive(Debug, Clone)]
enum Event {
    Publish { heard: bool },
    Twice,
    Die { published: u8 },
    Break,
    Connect,
    Answer { parts: u8 },
    Silence,
    Forget { keep: u8 },
    Quiet,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => prop::bool::weighted(0.8).prop_map(|heard| Event::Publish { heard }),
        1 => Just(Event::Twice),
        1 => (0u8..6).prop_map(|published| Event::Die { published }),
        1 => Just(Event::Break),
        3 => Just(Event::Connect),
        6 => (0u8..9).prop_map(|parts| Event::Answer { parts }),
        1 => Just(Event::Silence),
        1 => (1u8..5).prop_map(|keep| Event::Forget { keep }),
        2 => Just(Event::Quiet),
    ]
}

/// An engine, the way from it, and what was made of it.
struct Scene {
    sequencer: Sequencer,
    life: u32,
    published: Vec<Vec<u8>>,
    forgotten: usize,
    connected: bool,
    /// The answer under way: its life, and the numbers that are still to come.
    answer: Option<(u32, Vec<u64>)>,
    /// What was applied since the last restart.
    applied: Vec<(u64, Vec<u8>)>,
    lost: bool,
}

impl Scene {
    fn new() -> Self {
        Self {
            sequencer: Sequencer::new(true),
            life: 0,
            published: vec![],
            forgotten: 0,
            connected: false,
            answer: None,
            applied: vec![],
            lost: false,
        }
    }

    fn hear(&mut self, heard: Heard) {
        for step in self.sequencer.hear(heard) {
            match step {
                Step::Ask(from) => {
                    let kept = self.forgotten as u64..self.published.len() as u64;
                    let answer = kept.filter(|seq| *seq >= from).collect();
                    self.answer = Some((self.life, answer));
                }
                Step::Hush => self.answer = None,
                Step::Apply(seq, payload) => {
                    let last = self.applied.last().map(|(seq, _)| *seq);
                    assert!(last.is_none_or(|last| seq > last), "applied out of order");
                    self.lost |= last.map_or(0, |last| last + 1) != seq;
                    self.applied.push((seq, payload));
                }
                Step::Older | Step::Silent => {}
                Step::Restart => {
                    self.applied.clear();
                    self.lost = false;
                }
                Step::Lose => self.lost = true,
            }
        }
    }

    fn answer(&mut self, parts: usize) {
        for _ in 0..parts {
            let Some((life, rest)) = &mut self.answer else {
                return;
            };
            if *life != self.life {
                return;
            }
            if rest.is_empty() {
                self.answer = None;
                return self.hear(Heard::End);
            }
            let seq = rest.remove(0);
            let payload = self.published[usize::try_from(seq).unwrap()].clone();
            self.hear(Heard::Again(seq, payload));
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Publish { heard } => {
                let seq = self.published.len() as u64;
                let payload = format!("{} {seq}", self.life).into_bytes();
                self.published.push(payload.clone());
                if heard && self.connected {
                    self.hear(Heard::Live(seq, payload));
                }
            }
            Event::Twice => {
                if let (Some(payload), true) = (self.published.last().cloned(), self.connected) {
                    self.hear(Heard::Live(self.published.len() as u64 - 1, payload));
                }
            }
            Event::Die { published } => {
                self.happen(&Event::Break);
                self.life += 1;
                self.forgotten = 0;
                let messages = 0..published;
                self.published = messages
                    .map(|seq| format!("{} {seq}", self.life).into_bytes())
                    .collect();
            }
            Event::Break => {
                if std::mem::replace(&mut self.connected, false) {
                    self.hear(Heard::Disconnected);
                }
            }
            Event::Connect => {
                if !std::mem::replace(&mut self.connected, true) {
                    self.hear(Heard::Connected);
                }
            }
            Event::Answer { parts } => self.answer(parts.into()),
            Event::Silence => {
                if self.sequencer.is_asking() {
                    self.answer = None;
                    self.hear(Heard::Unanswered);
                }
            }
            Event::Forget { keep } => {
                let kept = self.published.len().saturating_sub(keep.into());
                self.forgotten = self.forgotten.max(kept);
            }
            Event::Quiet => {
                if self.connected {
                    self.hear(Heard::Quiet);
                }
            }
        }
    }

    /// Everything that can be heard is heard.
    fn rest(&mut self) {
        self.happen(&Event::Connect);
        for _ in 0..4 {
            self.happen(&Event::Quiet);
            self.answer(usize::MAX / 2);
            self.happen(&Event::Silence);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn in_the_end_all_is_applied_or_known_to_be_lost(events in prop::collection::vec(event(), 1..60)) {
        let mut scene = Scene::new();
        for event in &events {
            scene.happen(event);
        }
        scene.rest();
        let published = scene.published.iter().cloned();
        let published: Vec<(u64, Vec<u8>)> = (0u64..).zip(published).collect();
        if scene.lost {
            let known = published.iter().filter(|message| scene.applied.contains(message));
            prop_assert!(known.count() >= published.len().min(1), "at least the last one is known");
        } else {
            prop_assert_eq!(&scene.applied, &published);
        }
        let last = scene.applied.last().map(|message| message.1.clone());
        prop_assert_eq!(last, scene.published.last().cloned());
    }
}
