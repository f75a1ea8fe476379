//! Installing an engine by its recipe in `integration/engines`, unless that very recipe is installed.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Installation, directory, recipes};
use crate::EngineKind;
use crate::progress::Progress;
use crate::system::{self, Missing, Need};

impl EngineKind {
    /// Its folder among recipes, installations and logs.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
        }
    }

    /// Names a Python environment to use instead of installing one.
    fn venv_variable(self) -> &'static str {
        match self {
            Self::Vllm => "BATON_VLLM_VENV",
            Self::Sglang => "BATON_SGLANG_VENV",
        }
    }

    fn given_venv(self) -> Option<PathBuf> {
        std::env::var_os(self.venv_variable()).map(PathBuf::from)
    }
}

/// Installs the engine and makes its model, unless this very recipe is installed.
pub(crate) fn install(kind: EngineKind, missing: Missing) -> Result<()> {
    system::ensure_present(&[Need::CxxCompiler, Need::Binutils, Need::Python], missing)?;
    let python =
        system::python().context("no Python that can make virtual environments was found")?;
    let mut command = Command::new(python);
    command
        .arg(recipes().join(kind.folder()).join("install.py"))
        .arg(directory().join(kind.folder()));
    if let Some(venv) = kind.given_venv() {
        ensure!(
            venv.join("bin/python").exists(),
            "{} names no virtual environment: {}",
            kind.venv_variable(),
            venv.display()
        );
        command.arg("--venv").arg(venv);
    }
    run_installer(kind, &mut command)
}

/// The engine that [`install`] left, for a process that cannot install anything any more.
pub(crate) fn installed(kind: EngineKind) -> Result<Installation> {
    let directory = std::path::absolute(directory().join(kind.folder()))?;
    let venv = kind
        .given_venv()
        .map_or_else(|| Ok(directory.join("venv")), std::path::absolute)?;
    Ok(Installation {
        kind,
        directory,
        venv,
    })
}

/// Shows what the installer says it does; what goes wrong it says in one sentence.
fn run_installer(kind: EngineKind, command: &mut Command) -> Result<()> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut installer = command
        .spawn()
        .context("could not start the engine's installer")?;
    let mut progress = Progress::start(format!("{} installation", kind.title()));
    if let Some(output) = installer.stdout.take() {
        for line in BufReader::new(output).lines() {
            show(&mut progress, &line?);
        }
    }
    let mut reason = String::new();
    if let Some(mut errors) = installer.stderr.take() {
        errors.read_to_string(&mut reason)?;
    }
    if !installer.wait()?.success() {
        bail!("{} was not installed: {}", kind.title(), reason.trim());
    }
    progress.done("ready");
    Ok(())
}

/// `step N/M NAME` or `package N/M NAME`.
fn show(progress: &mut Progress, line: &str) {
    let mut words = line.splitn(3, ' ');
    let (kind, count, name) = (words.next(), words.next(), words.next().unwrap_or_default());
    let numbers = count.and_then(|count| count.split_once('/'));
    match (kind, numbers) {
        (Some("step"), Some(_)) => progress.note(name),
        (Some("package"), Some((done, total))) => {
            progress.at(done.parse().unwrap_or(0), total.parse().unwrap_or(0), name);
        }
        _ => {}
    }
}
