"""What a machine needs for the measurements in addition to torch and transformers, and the size of these files."""

import re
import subprocess
import zlib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from figures import table

from gpu_stages.request import ROOT

THERE = ("torch", "transformers")  # with all that they bring along
NEEDED = {
    "bitsandbytes": "NF4, int8, optimisers", "accelerate": "training", "psutil": "the machine", "jinja2": "chat templates",
    "platformdirs": "the home", "filelock": "locks", "huggingface-hub": "where models lie", "safetensors": "weights",
    "tokenizers": "tokens", "numpy": "figures", "typer": "`localspec train` of stage g", "rich": "the same",
    "pytest": "stage a", "markdown-it-py": "`rich`",
}  # fmt: skip
MOST = 60e6  # bytes of the whole kit
CUDA = "libbitsandbytes_cuda"
_REQUIRED = re.compile(r"^([A-Za-z0-9._-]+)")
_SUFFIXES = (".xz", ".gz", ".zip", ".png")  # which no archive makes smaller


def requirements(data: Path | None, prompts: Path | None) -> str:
    """Return a text that lists the needed packages and files with their sizes."""
    installed_here = closure(THERE)
    missing = {name: why for name, why in NEEDED.items() if normal(name) not in installed_here}
    lines, sum_, libraries = [], 0, dict[str, int]()
    for name in (name for name in closure(missing) if name not in installed_here):
        files, of_cuda = files_of(name)
        size, installed_size = packed(files), sum(file.stat().st_size for file in files)
        sum_ += size
        libraries |= {file.name: packed([file]) for file in sorted(of_cuda)}
        without = f", without its {len(of_cuda)} libraries for CUDA" if of_cuda else ""
        note = f"{NEEDED.get(name, 'needed by another')}{without}"
        lines.append([name, version_of(name), f"{installed_size / 1e6:.1f}", f"{size / 1e6:.1f}", note])
    places = {"data of stage g": data, "prompts": prompts}
    parts = {"repository with the native library": packed(repository()), "packages": sum_}
    parts |= {label: packed(every(path)) for label, path in places.items() if path is not None}
    return "\n".join([
        "In addition to torch and transformers, and what those require, the run needs (MB installed, MB as a wheel, about):",
        table(["package", "version", "installed", "wheel", "for"], lines),
        *(f"- {label}: {size / 1e6:.1f} MB" for label, size in parts.items()),
        f"- and one library of bitsandbytes, {CUDA}NNN.so, where NNN is torch.version.cuda without its point (130 for 13.0), or "
        "the newest below it of the same first number. The whole kit with it:",
        *(whole(name, size, sum(parts.values())) for name, size in libraries.items()),
        "torch.compile in stage e needs triton, which comes with torch for CUDA, and a C compiler; without one, a sentence says so.",
    ])  # fmt: skip


def whole(library: str, size: int, others: int) -> str:
    """Return a line about the size of all files together, if they include this library."""
    verdict = "below" if others + size < MOST else "ABOVE"
    return f"  - {library}, {size / 1e6:.1f} MB: {(others + size) / 1e6:.1f} MB, {verdict} the {MOST / 1e6:.0f} MB that it may have"


def normal(name: str) -> str:
    """Return a package's name in the normal form of package indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: Iterable[str]) -> list[str]:
    """Return these packages and all installed packages that they require, directly or indirectly."""
    packages: dict[str, None] = {}
    waiting = [normal(name) for name in names]
    while waiting:
        name = waiting.pop(0)
        if name in packages or (known := installed(name)) is None:
            continue
        packages[name] = None
        for required in known.requires or ():
            plain, _, marker = required.partition(";")
            if "extra" not in marker and (match := _REQUIRED.match(plain)):
                waiting.append(normal(match[1]))
    return list(packages)


def installed(name: str) -> Distribution | None:
    """Return an installed package; None if it is not installed."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def version_of(name: str) -> str:
    package = installed(name)
    return package.version if package else ""


def files_of(name: str) -> tuple[list[Path], list[Path]]:
    """Return a package's files, and separately its CUDA libraries. Libraries for other makers' GPUs are left out."""
    package = installed(name)
    listed = [] if package is None else [package.locate_file(file) for file in package.files or ()]
    every = [Path(str(file)) for file in listed]
    real = [file for file in every if file.is_file() and file.suffix != ".pyc"]
    libraries = [file for file in real if file.name.startswith(CUDA)]
    others = ("libbitsandbytes_rocm", "libbitsandbytes_xpu")
    return [file for file in real if file not in libraries and not file.name.startswith(others)], libraries


def repository() -> list[Path]:
    """Return the files that are in git, and the compiled library."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False).stdout
    files = [ROOT / line for line in listed.splitlines()]
    return [file for file in (*files, *(ROOT / "localspec" / "native").glob("localspec_native.so")) if file.is_file()]


def every(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]


def packed(files: Iterable[Path]) -> int:
    """Return about how many bytes the files take in an archive."""
    return sum(
        file.stat().st_size if file.suffix in _SUFFIXES else len(zlib.compress(file.read_bytes(), 6)) for file in files
    )
