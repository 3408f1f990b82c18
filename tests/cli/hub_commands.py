"""Helpers for the tests of pull, rm and verify: a model on a local hub, and the program that fetches from it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from checkpoints import write_checkpoint
from command import called, environment
from hub_server import Hub, Repository, model_repository

WEIGHTS = "model.safetensors"
NUMBERS = 900_000  # of four bytes each: some pieces of a download


def repository(directory: Path, numbers: int = NUMBERS, **more: object) -> Repository:
    """Return a model whose weights are not zeros, so that every piece of them is different."""
    write_checkpoint(directory, shapes={"a": [numbers]})
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    repository = model_repository(directory, **more)
    content = repository.files[WEIGHTS]
    repository.files[WEIGHTS] = content[: -4 * numbers] + _counted(numbers)
    return repository


@cache
def _counted(numbers: int) -> bytes:
    return b"".join(b"%07d\n" % number for number in range(numbers // 2))


def rates_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process a memory bandwidth without timing it. Which drafter pays depends on it, but no file does."""
    for place in ("choosing.measure", "machine.hardware"):
        monkeypatch.setattr(f"localspec.{place}.memory_bandwidth", lambda device: 5e10)


def home_with_cache(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home that contains the common cache, also for this process, where rates cost nothing."""
    rates_cost_nothing(monkeypatch)
    (directory / "home").mkdir()
    monkeypatch.setenv("HF_HOME", str(directory / "home" / "hf"))
    return directory / "home"


def variables(home: Path, hub: Hub) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home / "hf"), "HF_TOKEN": "hf_secretsecret"}


def at(home: Path, hub: Hub, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `localspec ARGUMENTS` in this process."""
    return called(home, *arguments, **variables(home, hub), **more)


def started(home: Path, hub: Hub, *arguments: str, **how: object) -> subprocess.Popen[str]:
    """Start `localspec ARGUMENTS` in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", *arguments], cwd=home, env=environment(home, **variables(home, hub)),
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how},
    )  # fmt: skip


def common_cache(home: Path) -> Path:
    return home / "hf" / "hub"


def stray(home: Path) -> list[str]:
    """Return files in the cache that no complete pull leaves: unfinished ones, and broken links."""
    found = [path for path in common_cache(home).rglob("*") if path.name.endswith((".incomplete", ".tmp"))]
    return [
        str(path) for path in [*found, *(p for p in common_cache(home).rglob("*") if p.is_symlink() and not p.exists())]
    ]


def blobs(home: Path) -> dict[str, int]:
    """Return the contents in the cache with their mtimes: a file that was fetched again has another mtime."""
    return {path.name: os.stat(path).st_mtime_ns for path in common_cache(home).glob("models--*/blobs/*")}
