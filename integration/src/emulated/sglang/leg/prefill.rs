//! Prefill's leg: it waits for decode, computes the prompt, and keeps its KV until decode has it.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::core::{Finish, Handoff, HeldKv, Mortal, Output, Sampling};
use super::super::super::legs::{Abort, Heard};
use super::super::super::rooms::{Entered, Kv, Line, Rooms, Word};
use super::{ABORTED, Leg, aborted, timed_out};

/// How long a notification may be under way when whoever sent it is gone.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// What comes of a prompt.
struct Computed {
    id: u32,
    text: String,
    cached: usize,
    finish: Box<Finish>,
}

impl Leg {
    pub(super) async fn prefill(&self, room: u64) -> Result<(), Abort> {
        let rooms = self.engine.rooms(self.rank);
        let Some(mut entered) = rooms.enter(room) else {
            return Err(self.second_in_room(room).await);
        };
        let mut line = self.wait_for_decode(room, &mut entered).await?;
        let mut computed = self.compute(room, &mut line).await?;
        if let Some(held) = computed.finish.held.take() {
            let kv = Kv::new(
                &self.engine.regions(self.rank),
                &held,
                computed.cached,
                computed.id,
            );
            self.hand_over(room, &rooms, &mut line, held, kv).await?;
        }
        computed.finish.reason = "length";
        let _ = self.said.try_send(Heard::Token {
            id: computed.id,
            text: computed.text,
            cached: computed.cached,
            finish: Some(computed.finish),
        });
        Ok(())
    }

    async fn wait_for_decode(&self, room: u64, entered: &mut Entered) -> Result<Line, Abort> {
        let bound = self.patience().bootstrap;
        let why = tokio::select! {
            biased;
            () = self.cancel.cancelled() => ABORTED.to_owned(),
            line = entered.decode() => return Ok(line),
            () = tokio::time::sleep(bound) => timed_out(room, bound, "Bootstrapping"),
        };
        Err(self.failed("Prefill", "bootstrap", room, &why))
    }

    async fn compute(&self, room: u64, line: &mut Line) -> Result<Computed, Abort> {
        let sampling = Sampling {
            limit: 1,
            ..self.sampling.clone()
        };
        let request = self.request(Handoff::Hold, sampling);
        let mut submitted = self.rank().core.submit(request);
        let output = tokio::select! {
            () = self.cancel.cancelled() => {
                line.say(&Word::Failed(ABORTED.to_owned())).await;
                return Err(self.failed("Prefill", "transfer", room, ABORTED));
            }
            output = submitted.next() => output,
        };
        match output {
            Some(Output::Token {
                id,
                text,
                cached,
                finish: Some(finish),
            }) => Ok(Computed {
                id,
                text,
                cached,
                finish,
            }),
            _ => Err(aborted()),
        }
    }

    /// Keeps the KV until decode has it or gives it up. An abort comes too late to be heard here: the leg ends well all the
    /// same.
    async fn hand_over(
        &self,
        room: u64,
        rooms: &Arc<Rooms>,
        line: &mut Line,
        held: HeldKv,
        kv: Kv,
    ) -> Result<(), Abort> {
        let mut arrival = rooms.arrival(&held.request_id);
        line.say(&Word::Kv(kv)).await;
        let why = tokio::select! {
            biased;
            _ = &mut arrival => return Ok(()),
            word = line.hear() => match word {
                Some(Word::Failed(why)) => why,
                // Decode may have left with all that it wanted: then its notification is on its own way.
                _ => match tokio::time::timeout(UNDER_WAY, &mut arrival).await {
                    Ok(_) => return Ok(()),
                    Err(_) => "Lost connection with decode instance".to_owned(),
                },
            },
        };
        let release = format!("{}:1", held.request_id);
        self.rank().core.notified(release.as_bytes());
        rooms.notified(release.as_bytes());
        Err(self.failed("Prefill", "transfer", room, &why))
    }

    /// Somebody uses the room already.
    async fn second_in_room(&self, room: u64) -> Abort {
        if self.engine.config().dies_of_used_rooms {
            self.life.death.die(&format!("KeyError: {room}"));
        }
        let bound = self.patience().bootstrap;
        let why = tokio::select! {
            () = self.cancel.cancelled() => ABORTED.to_owned(),
            () = tokio::time::sleep(bound) => timed_out(room, bound, "Bootstrapping"),
        };
        self.failed("Prefill", "bootstrap", room, &why)
    }
}
