//! Real engines: how each is installed and started.

use std::path::PathBuf;

use crate::workspace;

pub(crate) mod vllm;

/// Where engines are installed: big, kept between runs, never committed.
pub(crate) fn directory() -> PathBuf {
    std::env::var_os("BATON_ENGINES_DIR")
        .map_or_else(|| workspace::target_dir().join("engines"), PathBuf::from)
}
