//! The engines that faults befall: all in which one kind differs from another is told here.

mod sglang;
mod trtllm;
mod vllm;

use std::time::Duration;

use serde_json::Value;

use super::liar::Lie;
use super::schedule;
use super::stand::Sabotage;
use crate::emulated::speed::Speed;
use crate::fleet::{Emulated, EngineConfig, Kind};

/// Blocks of an engine.
const BLOCKS: u32 = 1024;

/// Longest sequence of an engine.
const LONGEST: usize = 2048;

/// An engine that takes milliseconds for a prompt and one for a token: long enough to be interrupted in.
const SPEED: Speed = Speed {
    step: 1.0e6,
    prefill_token: 10.0e3,
    attention_pair: 0.0,
    decode_sequence: 20.0e3,
    decode_context: 0.0,
    jitter: 0.1,
};

/// Which engines a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Engines {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// vLLM and SGLang behind the same routers.
    Mixed,
}

/// Which leg a worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It computes prompts.
    Prefill,
    /// It goes on from there.
    Decode,
}

/// Where a liar stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Between routers and the sidecar.
    BeforeSidecar,
    /// Between the sidecar and the engine.
    BeforeEngine,
}

/// What the bench has to know of engines of one kind.
pub trait Subject: Sync {
    /// How one is started that serves this side, where this is switched off.
    fn config(&self, side: Side, without: Option<Sabotage>) -> EngineConfig;

    /// How long a start of it takes at least.
    fn boot(&self) -> Duration;

    /// The handoff that the body of a decode leg is about, by a name that no other handoff has.
    fn handoff(&self, body: &Value) -> String;

    /// What the body of a decode leg has in it if this engine hands over to it; `None` if it does not run.
    fn mark(&self, engine: &Emulated) -> Option<String>;

    /// Who lies about a worker of this side, and where, where this is switched off.
    fn lie(&self, side: Side, without: Option<Sabotage>) -> Option<(Place, Lie)>;

    /// Whether its engines hear nothing of KV that is given back, where this is switched off.
    fn is_deaf(&self, without: Option<Sabotage>) -> bool;

    /// How long they may hold KV that nobody wants any more.
    fn holds_for(&self) -> Duration;

    /// Whether what was lost of their KV events can be had again.
    fn tells_again(&self) -> bool;

    /// The rarest of what a run must have seen befall decode workers.
    fn rare(&self) -> &'static [schedule::Kind];

    /// What protects its handoffs and can be switched off.
    fn protections(&self) -> &'static [Sabotage];
}

/// What is known of this kind.
pub fn of(kind: Kind) -> &'static dyn Subject {
    match kind {
        Kind::Vllm => &vllm::Vllm,
        Kind::Sglang => &sglang::Sglang,
        Kind::Trtllm => &trtllm::Trtllm,
    }
}

impl Engines {
    /// The engines of each role, one for each worker.
    pub fn cast(self) -> &'static [Kind] {
        match self {
            Self::Vllm => &[Kind::Vllm; 3],
            Self::Sglang => &[Kind::Sglang; 3],
            Self::Trtllm => &[Kind::Trtllm; 3],
            Self::Mixed => &[Kind::Vllm, Kind::Sglang, Kind::Vllm, Kind::Sglang],
        }
    }

    /// What its figures begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Vllm => "faults",
            Self::Sglang => "faults.sglang",
            Self::Trtllm => "faults.trtllm",
            Self::Mixed => "faults.mixed",
        }
    }

    /// What a run must have seen befall decode workers.
    pub fn rare(self) -> Vec<schedule::Kind> {
        let mut rare = Vec::new();
        for kind in self.cast() {
            let new = of(*kind).rare().iter();
            let new: Vec<_> = new.filter(|fault| !rare.contains(*fault)).collect();
            rare.extend(new);
        }
        rare
    }

    /// What can be switched off. Of engines of several kinds each kind is tried alone.
    pub fn protections(self) -> &'static [Sabotage] {
        match self {
            Self::Vllm => of(Kind::Vllm).protections(),
            Self::Sglang => of(Kind::Sglang).protections(),
            Self::Trtllm => of(Kind::Trtllm).protections(),
            Self::Mixed => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_a_mixed_fleet_has_two_workers_of_each_role() {
        let cast = Engines::Mixed.cast();
        for kind in [Kind::Vllm, Kind::Sglang] {
            assert_eq!(cast.iter().filter(|cast| **cast == kind).count(), 2);
        }
    }

    fn holds_for_ever(subject: &dyn Subject, without: Option<Sabotage>) -> bool {
        let engine = Emulated::new(subject.config(Side::Prefill, without));
        let flags = engine.sidecar_flags();
        flags
            .iter()
            .any(|flag| flag == "--allow-unbounded-transfer")
    }

    #[test]
    fn every_protection_of_a_kind_can_be_switched_off() {
        for subject in [Kind::Vllm, Kind::Sglang, Kind::Trtllm].map(of) {
            for one in subject.protections() {
                let without = Some(*one);
                let lied_to = |side| subject.lie(side, without) != subject.lie(side, None);
                let sides = [Side::Prefill, Side::Decode];
                // Lost events are the publisher's matter.
                let is_off = subject.is_deaf(without)
                    || *one == Sabotage::Gap
                    || holds_for_ever(subject, without);
                assert!(is_off || sides.into_iter().any(lied_to), "{one:?}");
            }
        }
    }

    #[test]
    fn whatever_is_rare_for_a_kind_is_rare_for_a_fleet_with_it() {
        let mixed = Engines::Mixed.rare();
        for kind in [Kind::Vllm, Kind::Sglang] {
            assert!(of(kind).rare().iter().all(|fault| mixed.contains(fault)));
        }
    }
}
