"""What the installers of all engines do: an engine's install.py names its `Recipe` and calls `main`.

    install.py DIRECTORY [--venv VENV]

Leaves DIRECTORY/venv (the engine) and DIRECTORY/model (the tiny model it serves). Each is stamped, last of
all, with a hash of the files and the Python it was made by: a run that finds its stamp does nothing, a changed
recipe installs again, and an interrupted install never counts as done. `--venv` uses an environment that
is already there and makes only the model.

Prints `step N/M NAME` and `package N/M NAME` as it goes; what the tools say is in DIRECTORY/install.log.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from stubs import build_stubs

HERE = Path(__file__).resolve().parent
PIP = "pip==26.3"
MODEL_MAKER = HERE / "make_model.py"
STEPS = ["virtual environment", "packages", "CUDA stand-ins", "engine check", "tiny model"]
# Chosen by what the pinned wheels exist for; 3.11 is the one it is tested with.
PYTHONS = ((3, 11), (3, 13))
# A registry that stalls is tried again rather than waited for.
DOWNLOAD_OPTIONS = ["--retries", "8", "--timeout", "60", "--progress-bar", "off", "--disable-pip-version-check"]


@dataclass(frozen=True)
class Recipe:
    """What differs between engines."""

    folder: Path
    """Where its install.py and its requirements.lock are."""
    check: str
    """Python that fails if what was installed cannot be used."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment of the check, beside the usual one."""

    @property
    def lock(self) -> Path:
        return self.folder / "requirements.lock"

    def files(self) -> list[Path]:
        """All that an environment is made by."""
        return [self.folder / "install.py", self.lock, HERE / "installer.py", HERE / "stubs.py"]


def fail(sentence: str) -> NoReturn:
    sys.exit(sentence)


def step(name: str) -> None:
    print(f"step {STEPS.index(name) + 1}/{len(STEPS)} {name}", flush=True)


class Stamp:
    """Proof that a directory was made, to the end, by these files and this Python."""

    def __init__(self, made: Path, recipe: list[Path], basis: str = "") -> None:
        self.file = made.with_name(made.name + ".stamp")
        digest = hashlib.sha256(f"{sys.version}\n{basis}\n".encode())
        for path in recipe:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        self.value = digest.hexdigest()

    def holds(self) -> bool:
        return self.file.exists() and self.file.read_text() == self.value

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)

    def write(self) -> None:
        unfinished = self.file.with_suffix(".unfinished")
        unfinished.write_text(self.value)
        unfinished.rename(self.file)


def run(command: list, log: IO[str], failure: str, more: dict[str, str] | None = None) -> None:
    log.write(f"+ {' '.join(map(str, command))}\n")
    log.flush()
    environment = os.environ | (more or {})
    done = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode != 0:
        fail(f"{failure}; see {log.name}")


def install_packages(python: Path, lock: Path, log: IO[str]) -> None:
    """All of the lock file, and nothing that is not in it: without resolution, what nobody here needs stays away."""
    total = len(re.findall(r"^[A-Za-z0-9]", lock.read_text(), re.MULTILINE))
    command = [python, "-m", "pip", "install", "--no-deps", *DOWNLOAD_OPTIONS, "-r", lock]
    log.write(f"+ {' '.join(map(str, command))}\n")
    package, collected, reason = "the first package", 0, ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    ) as pip:
        for line in pip.stdout:
            log.write(line)
            if started := re.match(r"Collecting (\S+)", line):
                package, collected = started[1], collected + 1
                print(f"package {collected}/{total} {package}", flush=True)
            elif line.startswith("Installing collected packages"):
                package = "all packages"
                print(f"package {total}/{total} unpacking", flush=True)
            elif line.startswith("ERROR: "):
                reason = reason or line.removeprefix("ERROR: ").strip()
    if pip.returncode != 0:
        what = "install" if package == "all packages" else "download"
        fail(f"could not {what} {package}: {reason or 'pip gave no reason'}; see {log.name}, then run again")


def make_venv(recipe: Recipe, venv: Path, log: IO[str]) -> None:
    step("virtual environment")
    shutil.rmtree(venv, ignore_errors=True)
    run([sys.executable, "-m", "venv", venv], log, "could not make a virtual environment")
    python = venv / "bin" / "python"
    pip_upgrade = [python, "-m", "pip", "install", *DOWNLOAD_OPTIONS, PIP]
    run(pip_upgrade, log, f"could not download {PIP}")

    step("packages")
    install_packages(python, recipe.lock, log)

    step("CUDA stand-ins")
    site_packages = next(venv.glob("lib/python3.*/site-packages"))
    try:
        log.write(f"stand-ins: {' '.join(build_stubs(site_packages))}\n")
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"could not build stand-ins for CUDA libraries (cc, readelf, nm and ldconfig are needed): {error}")

    step("engine check")
    run([python, "-c", recipe.check], log, "the installed engine cannot be imported", recipe.environment)


def make_model(python: Path, model: Path, log: IO[str]) -> None:
    step("tiny model")
    shutil.rmtree(model, ignore_errors=True)
    run([python, MODEL_MAKER, model], log, "could not make the tiny model")


def install(recipe: Recipe, directory: Path, given_venv: Path | None) -> None:
    venv, model = directory / "venv", directory / "model"
    with open(directory / "install.log", "a") as log:
        if given_venv:
            venv, basis = given_venv, str(given_venv)
        else:
            stamp = Stamp(venv, recipe.files())
            basis = stamp.value
            if not stamp.holds():
                stamp.remove()
                make_venv(recipe, venv, log)
                stamp.write()
        stamp = Stamp(model, [MODEL_MAKER], basis)
        if not stamp.holds():
            stamp.remove()
            make_model(venv / "bin" / "python", model, log)
            stamp.write()


def main(recipe: Recipe) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--venv", type=Path, help="use this environment instead of installing one")
    args = parser.parse_args()
    oldest, newest = PYTHONS
    if not oldest <= sys.version_info[:2] <= newest:
        fail(f"the engine's packages need Python 3.{oldest[1]} to 3.{newest[1]}, and this is {sys.version.split()[0]}")
    directory = args.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "install.lock", "w") as lock:
        # Two runs share one installation: the second waits for the first and finds its stamps.
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(recipe, directory, args.venv and args.venv.resolve())
