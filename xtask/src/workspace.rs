//! Where things are in this checkout, and running cargo in it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Cargo's target folder.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A binary of a release build.
pub(crate) fn release_binary(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// A folder for the logs of a run: one of its own, or the one that every run of this name empties.
pub(crate) fn logs_directory(kept: Option<&Path>, name: &str) -> Result<PathBuf> {
    let directory = kept.map_or_else(|| target_dir().join(name), Path::to_owned);
    if kept.is_none() && directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("could not empty {}", directory.display()))?;
    }
    fs::create_dir_all(&directory)
        .with_context(|| format!("could not make {}", directory.display()))?;
    Ok(directory)
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command with the terminal as its own, after printing it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    eprintln!("$ {line}");
    let status = command
        .status()
        .with_context(|| format!("could not start {line}"))?;
    ensure!(status.success(), "{line} failed ({status})");
    Ok(())
}

/// Release builds of the binaries that run beside engines, and of those that probe them.
pub(crate) fn build_release() -> Result<()> {
    let packages = [
        "baton-router",
        "baton-sidecar-vllm",
        "baton-sidecar-sglang",
        "baton-sidecar-trtllm",
        "baton-integration",
    ];
    run(cargo()
        .args(["build", "--release", "--locked"])
        .args(packages.iter().flat_map(|name| ["--package", name])))
}

fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let words: Vec<_> = std::iter::once(program)
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    words.join(" ")
}
