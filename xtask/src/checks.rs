//! `test` and `lint`: the checks that need no engine.

use std::process::Command;

use anyhow::Result;

use crate::system::{self, Missing};
use crate::wheel::{self, MANIFEST};
use crate::workspace::{cargo, run};

/// The cargo-deny whose configuration format `deny.toml` is written in; a newer one is fine.
const CARGO_DENY: (u32, u32, u32) = (0, 20, 2);

/// The workspace's own tests.
pub(crate) fn test(missing: Missing) -> Result<()> {
    system::ensure_present(&system::BUILD, missing)?;
    let runner: &[&str] = if system::find("cargo-nextest").is_some() {
        &["nextest", "run"]
    } else {
        &["test"]
    };
    run(cargo().args(runner).args(["--workspace", "--locked"]))
}

/// Formatting, lints, dependencies. Of the Python package, too, whose crate is a workspace of its own.
pub(crate) fn lint(missing: Missing) -> Result<()> {
    system::ensure_present(&system::BUILD, missing)?;
    run(cargo().args(["fmt", "--all", "--check"]))?;
    run(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "--deny",
        "warnings",
    ]))?;
    run(cargo().args(["fmt", "--manifest-path", MANIFEST, "--check"]))?;
    run(cargo()
        .args([
            "clippy",
            "--manifest-path",
            MANIFEST,
            "--locked",
            "--target-dir",
        ])
        .arg(wheel::target_dir())
        .args(["--", "--deny", "warnings"]))?;
    install_cargo_deny()?;
    for manifest in ["Cargo.toml", MANIFEST] {
        run(cargo()
            .args(["deny", "--locked", "--config", "deny.toml"])
            .args(["--manifest-path", manifest, "check"])
            // Each workspace has some of the crates that may depend on another.
            .args(["--allow", "unused-wrapper", "bans", "licenses", "sources"]))?;
    }
    Ok(())
}

fn install_cargo_deny() -> Result<()> {
    let (major, minor, patch) = CARGO_DENY;
    if installed_cargo_deny().is_some_and(|installed| installed >= CARGO_DENY) {
        return Ok(());
    }
    eprintln!(
        "cargo-deny {major}.{minor}.{patch} is not installed yet: compiling it once, some minutes"
    );
    let version = format!("cargo-deny@{major}.{minor}.{patch}");
    // An unoptimised one is ready in half the time and fast enough for one workspace.
    run(cargo().args(["install", "--locked", "--debug", &version]))
}

fn installed_cargo_deny() -> Option<(u32, u32, u32)> {
    let output = Command::new(system::find("cargo-deny")?)
        .arg("--version")
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    let mut numbers = version
        .split_whitespace()
        .nth(1)?
        .splitn(3, '.')
        .map(str::parse);
    Some((
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
    ))
}
