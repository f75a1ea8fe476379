//! Calls of `nixl-sys` whose form needs a word.

use std::time::Duration;

use nixl_sys::{
    Agent, AgentConfig as NixlConfig, MemType, NixlError, NotificationMap, OptArgs, ThreadSync,
    XferDescList,
};

use crate::{AgentConfig, Notification, TransferError};

/// Devices of an agent that is not told which.
const LOOPBACK_DEVICE: &str = "lo";

/// With less, its progress thread takes all of a core.
const LEAST_DELAY: Duration = Duration::from_micros(10);

pub(super) fn start(config: &AgentConfig) -> Result<Agent, NixlError> {
    let delay = config.progress_delay.max(LEAST_DELAY).as_micros();
    let own = NixlConfig {
        enable_prog_thread: true,
        enable_listen_thread: false,
        // `nixl-sys` lets two threads call into one agent, which NIXL allows only with this.
        thread_sync: ThreadSync::Rw,
        pthr_delay_us: u64::try_from(delay).unwrap_or(u64::MAX),
        ..NixlConfig::default()
    };
    let agent = Agent::new_configured(&config.name, &own)?;
    let (_, mut parameters) = agent.get_plugin_params("UCX")?;
    let devices = config.devices.as_deref().unwrap_or(LOOPBACK_DEVICE);
    parameters.set("engine_config", &format!("NET_DEVICES={devices}"))?;
    agent.create_backend("UCX", &parameters)?;
    Ok(agent)
}

pub(super) fn list<'a>() -> Result<XferDescList<'a>, NixlError> {
    XferDescList::new(MemType::Dram)
}

pub(super) fn notifying(message: &[u8]) -> Result<OptArgs, NixlError> {
    let mut options = OptArgs::new()?;
    options.set_notification_message(message)?;
    options.set_has_notification(true)?;
    Ok(options)
}

/// As bytes: `nixl-sys` also offers them as text, and loses all of them if one is none.
pub(super) fn heard(agent: &Agent) -> Result<Vec<Notification>, NixlError> {
    let mut map = NotificationMap::new()?;
    agent.get_notifications(&mut map, None)?;
    let mut heard = Vec::new();
    for name in map.agents().flatten() {
        for message in map.get_notifications(name)?.flatten() {
            heard.push(Notification {
                agent: name.to_owned(),
                message,
            });
        }
    }
    Ok(heard)
}

/// NIXL folds a lost peer and most other failures into one code.
pub(super) fn lost(error: &NixlError, peer: &str) -> TransferError {
    match error {
        NixlError::NotFound => TransferError::Unknown(peer.to_owned()),
        _ => TransferError::Disconnected(peer.to_owned()),
    }
}
