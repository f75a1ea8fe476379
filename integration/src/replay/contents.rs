//! What messages say, counted.

use std::collections::BTreeMap;

use baton_sidecar_core::mirror::event::{BlockEvent, Content, Stored};
use baton_sidecar_core::mirror::oddity::Tally;
use baton_sidecar_core::mirror::order::Arrival;
use baton_sidecar_vllm::events::decoder::Batch;
use baton_sidecar_vllm::events::oddity::Oddity;

use super::report::{Gap, Namespace, RankSummary, Summary};

/// Most gaps that are listed; the others are in the count of missing messages.
const LISTED_GAPS: usize = 100;

#[derive(Default)]
pub(super) struct Contents {
    summary: Summary,
    ranks: BTreeMap<u32, RankSummary>,
    /// Sequences that began, by LoRA adapter and salt.
    namespaces: BTreeMap<(String, String), u64>,
    oddities: Tally<Oddity>,
}

impl Contents {
    pub(super) fn odd(&mut self, oddity: Oddity) {
        self.oddities.add(oddity);
    }

    pub(super) fn message(&mut self, topic: String) {
        self.summary.messages += 1;
        *self.summary.topics.entry(topic).or_default() += 1;
    }

    pub(super) fn not_applied(&mut self) {
        self.summary.after_until += 1;
    }

    /// How a message that was applied followed the one before.
    pub(super) fn arrived(&mut self, rank: u32, seq: u64, arrival: Arrival) {
        let summary = self.ranks.entry(rank).or_insert_with(|| RankSummary {
            rank,
            first_seq: seq,
            ..RankSummary::default()
        });
        summary.messages += 1;
        match arrival {
            Arrival::First | Arrival::Next => {}
            Arrival::Older => {
                summary.older += 1;
                return;
            }
            Arrival::Restart => summary.restarts += 1,
            Arrival::Gap { missing } => {
                summary.missing = summary.missing.saturating_add(missing);
                if summary.gaps.len() < LISTED_GAPS {
                    let after = summary.last_seq;
                    summary.gaps.push(Gap { after, missing });
                }
            }
        }
        summary.last_seq = seq;
    }

    pub(super) fn batch(&mut self, batch: &Batch<'_>) {
        for (oddity, times) in batch.oddities.iter() {
            self.oddities.add_many(oddity, times);
        }
        self.summary.first_time.get_or_insert(batch.time);
        self.summary.last_time = Some(batch.time);
        let mut names_blocks = false;
        for event in batch.events() {
            names_blocks |= self.event(&event);
        }
        if names_blocks {
            let form = if batch.has_digests() {
                "digests"
            } else {
                "numbers"
            };
            *self.summary.hash_forms.entry(form).or_default() += 1;
        }
    }

    /// Counts an event; whether it names blocks.
    fn event(&mut self, event: &BlockEvent<'_>) -> bool {
        let (kind, blocks) = match event {
            BlockEvent::Stored(stored) => {
                self.stored(stored);
                ("BlockStored", stored.hashes.len())
            }
            BlockEvent::Removed(removed) => {
                self.summary.removed_blocks += count(removed.hashes.len());
                ("BlockRemoved", removed.hashes.len())
            }
            BlockEvent::Cleared { .. } => ("AllBlocksCleared", 0),
            BlockEvent::Unreadable => ("unreadable", 0),
        };
        *self.summary.events.entry(kind).or_default() += 1;
        blocks > 0
    }

    fn stored(&mut self, stored: &Stored<'_>) {
        let blocks = count(stored.hashes.len());
        self.summary.stored_blocks += blocks;
        let Content::Told(told) = stored.content else {
            return;
        };
        self.summary.tokens += count(told.tokens.len());
        let sizes = &mut self.summary.block_sizes;
        *sizes.entry(told.block_size).or_default() += blocks;
        if told.parent.is_none() {
            let namespace = (told.lora.to_owned(), told.salt.to_owned());
            *self.namespaces.entry(namespace).or_default() += 1;
        }
    }

    pub(super) fn finish(self) -> Summary {
        let namespaces = self.namespaces.into_iter();
        let namespaces = namespaces.map(|((lora, salt), sequences)| Namespace {
            lora,
            salt,
            sequences,
        });
        let oddities = self.oddities.iter();
        Summary {
            ranks: self.ranks.into_values().collect(),
            namespaces: namespaces.collect(),
            counted: oddities
                .map(|(oddity, times)| (oddity.name(), times))
                .collect(),
            ..self.summary
        }
    }
}

pub(super) fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
