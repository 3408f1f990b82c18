"""What is handed to others: the wheel, the sdist, and an editable install."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from command import ROOT

from localspec.models.drafter_kinds import kinds

pytestmark = pytest.mark.slow

PACKAGES = {"localspec": ROOT, "localspec_tui": ROOT / "tui"}  # each with the folder that it lies in


def built(target: str, directory: Path) -> Path:
    """A wheel or sdist of this source tree."""
    pytest.importorskip("hatchling", reason="part of the dev extra")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = directory.iterdir()
    return file


def sources(package: str) -> set[str]:
    """Its files, as paths that begin with its name."""
    parent = PACKAGES[package]
    files = (path for path in (parent / package).rglob("*") if path.suffix in (".py", ".tcss"))
    return {path.relative_to(parent).as_posix() for path in files}


def test_the_wheel_holds_what_the_program_needs(tmp_path):
    with zipfile.ZipFile(built("wheel", tmp_path)) as content:
        names = set(content.namelist())
        assert content.read("localspec/models.toml") == (ROOT / "models.toml").read_bytes()
        metadata = next(name for name in names if name.endswith("METADATA"))
        assert b"\nLicense-Expression: Apache-2.0\n" in content.read(metadata)
    demo = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert {f"localspec/demo/{place}{name}" for place in ("", "draft/") for name in demo} <= names
    drafters = {f"localspec/demo/drafters/{kind}/drafter" for kind in kinds("weights")}
    assert {f"{name}{end}" for name in drafters for end in (".json", ".safetensors")} <= names
    assert sources("localspec") | sources("localspec_tui") <= names
    # An installed `tui` would belong to anybody.
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {*PACKAGES}


def test_the_sdist_holds_the_terminal_interface_where_a_wheel_is_built_from(tmp_path):
    with tarfile.open(built("sdist", tmp_path)) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert sources("localspec") | {f"tui/{name}" for name in sources("localspec_tui")} <= names
    assert {"models.toml", "pyproject.toml", "Makefile", "tests/test_package.py"} <= names
    assert not any(name.startswith("localspec_tui/") for name in names)


def test_an_editable_install_finds_both_packages(tmp_path):
    """It is a wheel too, one whose .pth names the folders where the packages lie."""
    pytest.importorskip("hatchling", reason="part of the dev extra")
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        (pth,) = (name for name in content.namelist() if name.endswith(".pth"))
        folders = content.read(pth).decode().split()
    assert {Path(folder) for folder in folders} == {*PACKAGES.values()}
