"""A release, made and tried but not published: `make release`.

Version and changelog must agree; the sdist and the wheels are built into an empty dist/; the sdist must give the same
wheel as this tree; and this machine's wheel, in an empty environment, must answer a question.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from wheels import ROOT, build_wheels, hatchling, write_checksums

import localspec
from localspec.native.build import this_machine


def complaints(version: str, changelog: str, changes: str) -> list[str]:
    """Return what speaks against a release: the version, the changelog's top entry, the output of `git status`."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        found.append(f"localspec/__init__.py has version {version!r}; a release has one such as 1.2.3 or 1.2.3rc1.")
    top = re.search(r"^## (\S+) · (.+)$", changelog, re.MULTILINE)
    if top is None:
        found.append("CHANGELOG.md has no entry such as '## 1.2.3 · 2030-01-31'.")
    elif top[1] != version:
        found.append(f"CHANGELOG.md begins with {top[1]}, but the version is {version}; write what is new in it.")
    elif not re.fullmatch(r"\d{4}-\d{2}-\d{2}", top[2]):
        found.append(f"CHANGELOG.md says that {version} is {top[2]!r}; give it the day of the release.")
    if changes:
        found.append(f"There are changes that no commit has:\n{changes}")
    return found


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def different(one: Path, other: Path) -> list[str]:
    """Return the names of files that differ between two wheels."""
    first, second = contents(one), contents(other)
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def environment(folder: Path) -> Path:
    """Make an empty environment and return its Python."""
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
    where = subprocess.run([python, "-c", code], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert str(folder) in where, f"not the wheel's own: {where}"
    asked = [str(python), "-m", "localspec", "run", "Who are you?", "-m", "demo", "--json", "--temp", "0", "--no-log"]
    said = subprocess.run(asked, cwd=folder, check=True, capture_output=True, text=True).stdout
    print(f"  asked who it is, it says: {json.loads(said)['text']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearsal", action="store_true", help="go on where a release would be refused")
    rehearsal = parser.parse_args().rehearsal
    git = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True)
    found = complaints(localspec.__version__, (ROOT / "CHANGELOG.md").read_text("utf-8"), git.stdout)
    for complaint in found:
        print(complaint, file=sys.stderr)
    if found and not rehearsal:
        sys.exit(1)
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    sdist = hatchling("sdist", dist)
    wheels = build_wheels(dist)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory).resolve()
        print(f"{sdist.name}: a wheel is built from it, in an empty environment", flush=True)
        pip(environment(folder / "builder"), "wheel", "--no-deps", "-w", str(folder / "from-sdist"), str(sdist))
        (again,) = (folder / "from-sdist").iterdir()
        ours = wheels.get(this_machine())
        if ours is not None and (again.name != ours.name or (names := different(ours, again))):
            sys.exit(f"The sdist gives another wheel than this tree, {again.name}: {', '.join(names)}")
        print(f"{again.name}: installed in an empty environment", flush=True)
        try_wheel(again, folder)
    write_checksums(dist)
    print(f"{dist}: localspec {localspec.__version__}, to be published by you" + " (a rehearsal)" * rehearsal)


if __name__ == "__main__":
    main()
