//! `wheel`: the Python package built, installed where nothing else is, and tested there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::system::{self, Missing, Need};
use crate::workspace::{self, cargo, run};

/// What makes wheels of crates. Exact, so that a wheel of today can be made tomorrow.
const MATURIN: &str = "maturin==1.16.0";

/// Manifest of the crate, which is a workspace of its own.
pub(crate) const MANIFEST: &str = "python/Cargo.toml";

/// Builds the wheel, and tests it beside the binaries of a release build.
pub(crate) fn test(missing: Missing) -> Result<()> {
    system::ensure_present(&[&system::BUILD[..], &[Need::Python]].concat(), missing)?;
    let folder = workspace::target_dir().join("wheel");
    let tools = Venv::make(&folder.join("tools"))?;
    tools.install(MATURIN).with_context(|| {
        format!("{MATURIN} was not installed: it comes from PyPI, or from where pip's own settings (PIP_INDEX_URL) say")
    })?;
    let wheel = build(&tools, &folder.join("dist"))?;
    let venv = Venv::anew(&folder.join("venv"))?;
    venv.install(&wheel.display().to_string())
        .with_context(|| format!("{} cannot be installed", wheel.display()))?;
    workspace::build_release()?;
    let binaries = workspace::release_binary("");
    run(Command::new(venv.program("python"))
        .args([
            "-m",
            "unittest",
            "discover",
            "--verbose",
            "--start-directory",
        ])
        .arg(workspace::root().join("python/tests"))
        .env("BATON_BINARIES", binaries)
        .env("PYTHONDONTWRITEBYTECODE", "1"))
    .context("the Python package does not do what it should")?;
    eprintln!("the wheel is {}", wheel.display());
    Ok(())
}

/// Builds the wheel; where it is.
fn build(tools: &Venv, dist: &Path) -> Result<PathBuf> {
    if dist.exists() {
        fs::remove_dir_all(dist).with_context(|| format!("could not empty {}", dist.display()))?;
    }
    let mut maturin = Command::new(tools.program("maturin"));
    maturin
        .current_dir(workspace::root())
        .args([
            "build",
            "--release",
            "--manifest-path",
            MANIFEST,
            "--interpreter",
        ])
        .arg(tools.program("python"))
        .arg("--target-dir")
        .arg(workspace::target_dir())
        .arg("--out")
        .arg(dist)
        // Maturin asks the cargo that it finds for the crate's metadata.
        .env("CARGO", cargo().get_program());
    run(&mut maturin)?;
    let mut made = fs::read_dir(dist)?;
    let wheel = made.next().context("maturin has made nothing")??;
    ensure!(
        made.next().is_none(),
        "maturin has made more than one thing"
    );
    Ok(wheel.path())
}

/// A Python environment.
struct Venv(PathBuf);

impl Venv {
    /// The one in this folder, made if it is not there.
    fn make(folder: &Path) -> Result<Self> {
        let venv = Self(std::path::absolute(folder)?);
        if !venv.program("python").exists() {
            let python = system::python()
                .context("no Python that can make virtual environments was found")?;
            run(Command::new(python).args(["-m", "venv"]).arg(&venv.0))?;
        }
        Ok(venv)
    }

    /// One in this folder that has nothing in it.
    fn anew(folder: &Path) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder)
                .with_context(|| format!("could not empty {}", folder.display()))?;
        }
        Self::make(folder)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.0.join("bin").join(name)
    }

    fn install(&self, what: &str) -> Result<()> {
        let pip = [
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "install",
            what,
        ];
        run(Command::new(self.program("python")).args(pip))
    }
}
