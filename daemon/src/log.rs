//! Log lines: lowercase, data in fields, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Common, LogFormat};
use crate::run::Exit;

/// Starts logging for the whole process.
pub fn start(common: &Common) -> Result<(), Exit> {
    let filter = EnvFilter::try_new(&common.log).map_err(|error| {
        Exit::usage(format!("--log {:?} is no log filter: {error}", common.log))
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match common.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Exit::failure(format!("logging cannot start: {error}")))
}
