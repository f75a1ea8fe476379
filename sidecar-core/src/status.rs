//! What a sidecar tells the world about itself, and the one rule by which its state follows from the facts.

use std::sync::Arc;

use baton_proto::load::LoadReport;
use baton_proto::watch::{Hello, SidecarState};

use crate::engine::Attached;

/// What is known of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineStatus {
    /// It has never answered.
    Starting,
    /// It answers.
    Up(Arc<Attached>),
    /// It answered once and no longer does.
    Down,
}

impl EngineStatus {
    /// The engine, if it answers.
    pub fn attached(&self) -> Option<&Arc<Attached>> {
        match self {
            Self::Up(attached) => Some(attached),
            Self::Starting | Self::Down => None,
        }
    }
}

/// What routers are told.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Who this is.
    pub hello: Hello,
    /// What it can do now.
    pub state: SidecarState,
    /// How busy it is.
    pub load: LoadReport,
}

/// The state of a sidecar.
pub fn state_of(
    engine: &EngineStatus,
    draining: bool,
    in_flight: usize,
    handoffs: usize,
) -> SidecarState {
    match (draining, engine) {
        (true, _) if in_flight > 0 => SidecarState::Draining,
        (true, EngineStatus::Up(_)) if handoffs > 0 => SidecarState::ServingKv,
        (true, _) => SidecarState::Drained,
        (false, EngineStatus::Starting) => SidecarState::Starting,
        (false, EngineStatus::Up(_)) => SidecarState::Ready,
        (false, EngineStatus::Down) => SidecarState::EngineDown,
    }
}
