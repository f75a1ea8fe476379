//! Debian packages that a command needs, checked before anything long starts.
//!
//! A missing compiler found ten minutes into a build costs ten minutes; one sentence here costs nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};
use nix::unistd::Uid;

/// What to do about a missing package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Say what to install.
    Refuse,
    /// Install it, if this is root.
    Install,
}

/// Something outside of cargo that a command needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// libzmq is compiled from source, and so is what loads NIXL at run time; its bindings are made from a C header.
    CxxCompiler,
    /// Reads that header.
    Libclang,
    /// Stand-ins for CUDA libraries are linked and inspected.
    Binutils,
    /// The engines, and the clients that test them.
    Python,
    /// Brings up the loopback device of a run.
    Ip,
    /// Makes the namespaces of a run.
    Namespaces,
}

impl Need {
    fn is_there(self) -> bool {
        match self {
            Self::CxxCompiler => find("cc").is_some() && find("c++").is_some(),
            Self::Libclang => libclang_is_there(),
            Self::Binutils => find("readelf").is_some() && find("nm").is_some(),
            Self::Python => python().is_some(),
            Self::Ip => find("ip").is_some(),
            Self::Namespaces => ["unshare", "setpriv", "mount"]
                .iter()
                .all(|tool| find(tool).is_some()),
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::CxxCompiler => &["gcc", "g++"],
            Self::Libclang => &["libclang-dev"],
            Self::Binutils => &["binutils"],
            Self::Python => &["python3", "python3-venv"],
            Self::Ip => &["iproute2"],
            Self::Namespaces => &["util-linux", "mount"],
        }
    }
}

/// What it takes to build all crates.
pub(crate) const BUILD: [Need; 2] = [Need::CxxCompiler, Need::Libclang];

/// Makes sure that everything needed is there.
pub(crate) fn ensure_present(needs: &[Need], missing: Missing) -> Result<()> {
    let absent = || {
        needs
            .iter()
            .copied()
            .filter(|need| !need.is_there())
            .collect::<Vec<_>>()
    };
    let packages: Vec<&str> = absent()
        .iter()
        .flat_map(|need| need.packages())
        .copied()
        .collect();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if missing == Missing::Refuse || !Uid::effective().is_root() {
        bail!("system packages are missing: run `apt-get install {list}` as root, then try again");
    }
    eprintln!("installing system packages: {list}");
    apt_get(&["update"])?;
    apt_get(
        &[
            &["install", "--yes", "--no-install-recommends"],
            packages.as_slice(),
        ]
        .concat(),
    )?;
    ensure!(
        absent().is_empty(),
        "apt-get installed {list}, and something of it is still not found"
    );
    Ok(())
}

/// A Python that the engines' packages exist for and that can make virtual environments.
pub(crate) fn python() -> Option<PathBuf> {
    let check =
        "import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))";
    ["python3.11", "python3.12", "python3.13", "python3"]
        .iter()
        .filter_map(|name| find(name))
        .find(|python| {
            let mut command = Command::new(python);
            command
                .args(["-c", check])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        })
}

/// Whether bindgen will find libclang: where a variable says, or where distributions put it. The headers that it reads C
/// with come with the same package.
fn libclang_is_there() -> bool {
    let told = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let architecture = std::env::consts::ARCH;
    let folders = [
        format!("/usr/lib/{architecture}-linux-gnu"),
        "/usr/lib64".to_owned(),
        "/usr/lib".to_owned(),
    ];
    let versions = entries(Path::new("/usr/lib"))
        .filter(|folder| starts_with(folder, "llvm"))
        .map(|folder| folder.join("lib"));
    told.into_iter()
        .chain(folders.map(PathBuf::from))
        .chain(versions)
        .flat_map(|folder| entries(&folder).collect::<Vec<_>>())
        .any(|file| starts_with(&file, "libclang.so") || starts_with(&file, "libclang-"))
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn starts_with(path: &Path, name: &str) -> bool {
    let last = path.file_name().unwrap_or_default();
    last.to_string_lossy().starts_with(name)
}

/// A program in PATH, or where programs of root are, which are not in everybody's PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command
        .args(["-qq", "-o", "Acquire::Retries=3"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let done = command
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    ensure!(done, "apt-get {} failed", arguments.join(" "));
    Ok(())
}
