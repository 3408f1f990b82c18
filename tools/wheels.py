"""Wheels for every platform that the native library is made for, into dist/, with SHA256SUMS: `make wheels`."""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from localspec.native.build import TARGETS, this_machine

ROOT = Path(__file__).resolve().parent.parent
# The other targets are compiled by the same compiler from the same sources, and were not run.
TRIED = {"linux-x86_64": "all tests", "linux-aarch64": "part of the native tests under qemu (make test-aarch64)"}


def hatchling(kind: str, dist: Path, **variables: str) -> Path:
    """Return the wheel or sdist that hatchling makes of this tree."""
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dist) as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr.rstrip())
        (made,) = Path(folder).iterdir()
        return made.replace(dist / made.name)


def write_checksums(dist: Path) -> None:
    """Write SHA256SUMS for `sha256sum --check`."""
    files = sorted(path for path in dist.iterdir() if path.suffix in (".whl", ".gz"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / "SHA256SUMS").write_text("".join(lines))


def build_wheels(dist: Path) -> dict[str, Path]:
    """Build a wheel for each target, print what it was tried with, and return the wheels by target."""
    wheels = {}
    for name in TARGETS:
        wheels[name] = hatchling("wheel", dist, BUILD_NATIVE_FOR=name)
        tried = f"tried: {TRIED[name]}" if name in TRIED else "compiled here, NEVER RUN: nobody has such a machine here"
        here = ", this machine's" if name == this_machine() else ""
        print(f"{wheels[name].name}  {wheels[name].stat().st_size / 1e6:.1f} MB{here}; {tried}", flush=True)
    return wheels


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    dist = parser.parse_args().dist.resolve()
    build_wheels(dist)
    write_checksums(dist)
    print(dist / "SHA256SUMS")
