"""Makes and tests a release, but does not publish it: `make release`. Only the wheels: `make wheels`.

Wheels for every platform of the native library come into dist/, with SHA256SUMS. For a release, version and changelog
must agree, the sdist must give the same wheel as this tree, and the wheel of this machine must answer a question.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import localspec
from localspec.native.build import TARGETS, this_machine

ROOT = Path(__file__).resolve().parent.parent
# The other targets are compiled from the same sources by the same compiler, and were never run.
TRIED = {"linux-x86_64": "all tests", "linux-aarch64": "part of the native tests under qemu (make test-aarch64)"}


def hatchling(kind: str, dist: Path, **variables: str) -> Path:
    """Return the wheel or sdist that hatchling makes of this tree."""
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dist) as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]
        result = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True, check=False
        )
        if result.returncode:
            sys.exit(result.stderr.rstrip())
        (archive,) = Path(folder).iterdir()
        return archive.replace(dist / archive.name)


def write_checksums(dist: Path) -> None:
    """Write SHA256SUMS with the checksums of the wheels and the sdist in `dist`, for `sha256sum --check`."""
    files = sorted(path for path in dist.iterdir() if path.suffix in (".whl", ".gz"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / "SHA256SUMS").write_text("".join(lines))


def build_wheels(dist: Path) -> dict[str, Path]:
    """Build a wheel for each target, print the tests that its library has passed, and return the wheels by target."""
    wheels = {}
    for name in TARGETS:
        wheels[name] = hatchling("wheel", dist, BUILD_NATIVE_FOR=name)
        tried = f"tried: {TRIED[name]}" if name in TRIED else "compiled here, NEVER RUN: nobody has such a machine here"
        here = ", this machine's" if name == this_machine() else ""
        print(f"{wheels[name].name}  {wheels[name].stat().st_size / 1e6:.1f} MB{here}; {tried}", flush=True)
    return wheels


def complaints(version: str, changelog: str, changes: str) -> list[str]:
    """Return the reasons why this version cannot be released. `changes` is the output of `git status`."""
    reasons = []
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        reasons.append(f"localspec/__init__.py has version {version!r}; a release has one such as 1.2.3 or 1.2.3rc1.")
    top = re.search(r"^## (\S+) · (.+)$", changelog, re.MULTILINE)
    if top is None:
        reasons.append("CHANGELOG.md has no entry such as '## 1.2.3 · 2030-01-31'.")
    elif top[1] != version:
        reasons.append(f"CHANGELOG.md begins with {top[1]}, but the version is {version}; write what is new in it.")
    elif not re.fullmatch(r"\d{4}-\d{2}-\d{2}", top[2]):
        reasons.append(f"CHANGELOG.md says that {version} is {top[2]!r}; give it the day of the release.")
    if changes:
        reasons.append(f"There are changes that no commit has:\n{changes}")
    return reasons


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def different(wheel: Path, other: Path) -> list[str]:
    """Return the names of files that differ between two wheels."""
    first, second = contents(wheel), contents(other)
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def environment(folder: Path) -> Path:
    """Make an empty virtual environment, and return the path of its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True)


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install a wheel with its dependencies, and ask the demo model."""
    python = environment(folder / "env")
    pip(python, "install", "-c", str(ROOT / "constraints.txt"), str(wheel))
    code = "import localspec.machine.library as l; assert l.library().ls_abi(); print(l.__file__)"
    path = subprocess.run([python, "-c", code], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert str(folder) in path, f"not the wheel's own: {path}"
    command = [str(python), "-m", "localspec", "run", "Who are you?", "-m", "demo", "--json", "--temp", "0", "--no-log"]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    print(f"  asked who it is, it says: {json.loads(output)['text']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearsal", action="store_true", help="go on where a release would be refused")
    parser.add_argument("--wheels", action="store_true", help="build the wheels for every platform, and nothing else")
    options, dist = parser.parse_args(), ROOT / "dist"
    if options.wheels:
        build_wheels(dist)
        write_checksums(dist)
        print(dist / "SHA256SUMS")
        return
    rehearsal = options.rehearsal
    git = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True)
    reasons = complaints(localspec.__version__, (ROOT / "CHANGELOG.md").read_text("utf-8"), git.stdout)
    for reason in reasons:
        print(reason, file=sys.stderr)
    if reasons and not rehearsal:
        sys.exit(1)
    shutil.rmtree(dist, ignore_errors=True)
    sdist = hatchling("sdist", dist)
    wheels = build_wheels(dist)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory).resolve()
        print(f"{sdist.name}: a wheel is built from it, in an empty environment", flush=True)
        pip(environment(folder / "builder"), "wheel", "--no-deps", "-w", str(folder / "from-sdist"), str(sdist))
        (rebuilt,) = (folder / "from-sdist").iterdir()
        wheel = wheels.get(this_machine())
        if wheel is not None and (rebuilt.name != wheel.name or (names := different(wheel, rebuilt))):
            sys.exit(f"The sdist gives another wheel than this tree, {rebuilt.name}: {', '.join(names)}")
        print(f"{rebuilt.name}: installed in an empty environment", flush=True)
        try_wheel(rebuilt, folder)
    write_checksums(dist)
    print(f"{dist}: localspec {localspec.__version__}, to be published by you" + " (a rehearsal)" * rehearsal)


if __name__ == "__main__":
    main()
