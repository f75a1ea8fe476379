//! What is measured: one interface to Baton's index and to its peers.

use anyhow::Result;
use dynamo_kv_router::indexer::KvIndexerInterface;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use dynamo_kv_router::{RadixTree, SyncIndexer, ThreadPoolIndexer};

use crate::workload::{Event, Sequence};

/// An index with whatever its events pass through.
pub(crate) trait Subject {
    /// An event as it wants it: making one is no part of what is measured.
    type Event: Send;
    /// A question as it wants it: making one is no part of what is measured.
    type Query: Clone;
    /// An answer; dropping it is no part of what is measured.
    type Answer;

    fn event(event: &Event<'_>, number: u64) -> Self::Event;
    fn query(sequence: &Sequence) -> Self::Query;
    fn apply(&mut self, event: Self::Event) -> Result<()>;
    /// Waits until everything is applied.
    fn settle(&mut self) {}
    fn find(&mut self, query: Self::Query) -> Self::Answer;
    /// How many hold anything, and the most blocks that any of them holds.
    fn read(&self, answer: &Self::Answer) -> (usize, u32);
    /// Begins to apply events while there are finds. Gives back what is to be applied between finds, since nothing else
    /// can apply it.
    fn churn(&mut self, events: Vec<Self::Event>) -> Result<Vec<Self::Event>>;
    /// Ends that.
    fn rest(&mut self) -> Result<()>;
}

/// An event in the peers' words.
pub(crate) fn router_event(event: &Event<'_>, number: u64) -> RouterEvent {
    let (worker, data) = match *event {
        Event::Stored {
            worker,
            start,
            parent,
            blocks,
        } => {
            let block = |block: &crate::workload::Block| KvCacheStoredBlockData {
                block_hash: ExternalSequenceBlockHash(block.sequence),
                tokens_hash: LocalBlockHash(block.local),
                mm_extra_info: None,
            };
            let stored = KvCacheStoreData {
                parent_hash: parent.map(ExternalSequenceBlockHash),
                start_position: u32::try_from(start).ok(),
                blocks: blocks.iter().map(block).collect(),
            };
            (worker, KvCacheEventData::Stored(stored))
        }
        Event::Removed { worker, blocks } => {
            let block_hashes = blocks
                .iter()
                .copied()
                .map(ExternalSequenceBlockHash)
                .collect();
            (
                worker,
                KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }),
            )
        }
    };
    let event = KvCacheEvent {
        event_id: number,
        data,
        dp_rank: 0,
    };
    RouterEvent::new(worker as u64, event)
}

fn most(found: &OverlapScores) -> (usize, u32) {
    let most = found.scores.values().copied().max();
    (found.scores.len(), most.unwrap_or(0))
}

fn locals(sequence: &Sequence) -> Vec<LocalBlockHash> {
    sequence
        .iter()
        .map(|block| LocalBlockHash(block.local))
        .collect()
}

impl Subject for RadixTree {
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;
    type Answer = OverlapScores;

    fn event(event: &Event<'_>, number: u64) -> RouterEvent {
        router_event(event, number)
    }

    fn apply(&mut self, event: RouterEvent) -> Result<()> {
        Ok(self.apply_event(event)?)
    }

    fn query(sequence: &Sequence) -> Self::Query {
        locals(sequence)
    }

    fn find(&mut self, query: Self::Query) -> OverlapScores {
        self.find_matches(query, false)
    }

    fn read(&self, answer: &OverlapScores) -> (usize, u32) {
        most(answer)
    }

    fn churn(&mut self, events: Vec<RouterEvent>) -> Result<Vec<RouterEvent>> {
        Ok(events)
    }

    fn rest(&mut self) -> Result<()> {
        Ok(())
    }
}

/// An index of the peers' that threads apply events to.
pub(crate) struct Threaded<B: SyncIndexer> {
    pub(crate) indexer: ThreadPoolIndexer<B>,
    runtime: tokio::runtime::Runtime,
}

impl<B: SyncIndexer> Threaded<B> {
    /// With one thread, which is what takes it the least CPU time.
    pub(crate) fn new(index: B) -> Result<Self> {
        Ok(Self {
            indexer: ThreadPoolIndexer::new(index, 1, 16),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
        })
    }
}

impl<B: SyncIndexer> Subject for Threaded<B> {
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;
    type Answer = OverlapScores;

    fn event(event: &Event<'_>, number: u64) -> RouterEvent {
        router_event(event, number)
    }

    fn apply(&mut self, event: RouterEvent) -> Result<()> {
        Ok(self.indexer.enqueue_event(event)?)
    }

    fn settle(&mut self) {
        let indexer = &self.indexer;
        self.runtime.block_on(async {
            while KvIndexerInterface::flush(indexer).await > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        });
    }

    fn query(sequence: &Sequence) -> Self::Query {
        locals(sequence)
    }

    fn find(&mut self, query: Self::Query) -> OverlapScores {
        self.indexer.backend().find_matches(&query, false)
    }

    fn read(&self, answer: &OverlapScores) -> (usize, u32) {
        most(answer)
    }

    fn churn(&mut self, events: Vec<RouterEvent>) -> Result<Vec<RouterEvent>> {
        for event in events {
            self.indexer.enqueue_event(event)?;
        }
        Ok(Vec::new())
    }

    fn rest(&mut self) -> Result<()> {
        self.settle();
        Ok(())
    }
}
