"""Stand-ins for the CUDA libraries that torch's wheel is linked with and never calls without a GPU.

The registry's torch for x86-64 is the CUDA build. Its shared objects name cuBLAS, cuDNN, NCCL and others as
needed, 2.5 GB that only a GPU could use. The loader asks that each exists and defines the versioned symbols
torch refers to; nothing calls them. So each becomes a few kilobytes of C that define those symbols.
The CUDA runtime, CUPTI and cuFile are the real (small) ones.
"""

import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

# Which undefined symbols of torch belong to which library.
SYMBOL_PREFIX = {
    "libcublas.so.13": "cublas(?!Lt)",
    "libcublasLt.so.13": "cublasLt",
    "libcudnn.so.9": "cudnn",
    "libcufft.so.12": "cufft",
    "libcurand.so.10": "curand",
    "libcusolver.so.12": "cusolver",
    "libcusparse.so.12": "cusparse(?!Lt)",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "p?nccl",
    "libnvrtc.so.13": "nvrtc",
    "libnvshmem_host.so.3": "nvshmem",
}
# `nm -D` types of a symbol that the object itself does not define.
UNDEFINED = set("Uwv")


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed_by(shared_object: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*?)\]", output_of("readelf", "-d", shared_object))


def dynamic_symbols(shared_object: Path) -> list[tuple[str, str, str]]:
    """(type, name, version) of each; the version is empty where there is none."""
    symbols = []
    for line in output_of("nm", "-D", shared_object).splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@")
        symbols.append((kind, name, version.lstrip("@")))
    return symbols


def missing_libraries(torch_objects: list[Path], real_objects: list[Path]) -> list[str]:
    present = {path.name for path in torch_objects + real_objects}
    of_the_system = output_of("ldconfig", "-p")
    needed = {name for path in torch_objects for name in needed_by(path)}
    return sorted(name for name in needed if name not in present and name not in of_the_system)


def version_script(by_version: dict[str, list[str]]) -> str:
    """The loader aborts on a library without the symbol versions it expects.

    Unversioned symbols cannot have a node of their own beside named ones; they go into the first.
    """
    unversioned = by_version.get("", [])
    nodes = []
    for version in sorted(v for v in by_version if v):
        names = by_version[version] + unversioned
        unversioned = []
        hide_others = "" if nodes else " local: *;"
        nodes.append(f"{version} {{ global: {'; '.join(names)};{hide_others} }};")
    return "\n".join(nodes)


def build_stub(library: Path, by_version: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "stub.c")
        names = sorted(name for names in by_version.values() for name in names)
        source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in names))
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library.name}"]
        if any(by_version):
            script = Path(scratch, "versions.map")
            script.write_text(version_script(by_version))
            options.append(f"-Wl,--version-script={script}")
        subprocess.run(["cc", *options, "-o", library, source], check=True)


def build_stubs(site_packages: Path) -> list[str]:
    """Builds every missing library into torch's own library folder; returns their names."""
    torch_lib = site_packages / "torch" / "lib"
    torch_objects = sorted(torch_lib.glob("*.so*"))
    real_objects = sorted(site_packages.glob("nvidia/*/lib/*.so*"))
    missing = missing_libraries(torch_objects, real_objects)

    wanted: dict[str, str] = {}
    defined: set[str] = set()
    for path in torch_objects + real_objects:
        for kind, name, version in dynamic_symbols(path):
            if kind not in UNDEFINED:
                defined.add(name)
            elif kind == "U" and path.parent == torch_lib:
                wanted.setdefault(name, version)

    for library in missing:
        prefix = SYMBOL_PREFIX.get(library)
        by_version = defaultdict(list)
        for name, version in sorted(wanted.items()):
            if prefix and name not in defined and re.match(prefix, name):
                by_version[version].append(name)
        build_stub(torch_lib / library, by_version)
    return missing
