"""The published packages: the wheel, the sdist, and an editable install."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from command import ROOT
from golden import wording

from localspec.machine import compiled
from localspec.native import build

pytestmark = pytest.mark.slow

PACKAGES = {"localspec": ROOT, "localspec_tui": ROOT / "tui"}  # each with its folder


NATIVE = "localspec/native/"
# `python -m hatchling`, which compresses quickly: no test looks at sizes
HATCHLING = """
import runpy, zlib
real = zlib.compressobj
zlib.compressobj = lambda level, *given: real(1, *given)
runpy.run_module("hatchling", run_name="__main__")
"""
HOST = build.TARGETS.get(build.this_machine())


def hatchling(target: str, directory: Path, root: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    for name in ("hatchling", "ziglang"):
        pytest.importorskip(name, reason="part of the dev extra")
    inherited = {name: value for name, value in os.environ.items() if name not in ("CXX", "BUILD_NATIVE_FOR")}
    return subprocess.run(
        [sys.executable, "-c", HATCHLING, "build", "-t", target, "-d", str(directory)],
        cwd=root, env={**inherited, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def built(target: str, directory: Path, root: Path = ROOT, **variables: str) -> Path:
    """Return a wheel or sdist of this source tree."""
    done = hatchling(target, directory, root, **variables)
    assert done.returncode == 0, done.stderr
    (file,) = directory.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return built("sdist", tmp_path_factory.mktemp("sdist"))


def native(wheel: Path) -> set[str]:
    """Return the files of the native library in a package, built or to be built."""
    with zipfile.ZipFile(wheel) as content:
        return {name for name in content.namelist() if name.startswith(NATIVE) and not name.endswith(".py")}


def sources(package: str) -> set[str]:
    """Return the files of a package, as paths that begin with its name."""
    parent = PACKAGES[package]
    files = (path for path in (parent / package).rglob("*") if path.suffix in (".py", ".tcss", ".html", ".js"))
    return {path.relative_to(parent).as_posix() for path in files}


def test_the_wheel_holds_what_the_program_needs(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        assert content.read("localspec/models.toml") == (ROOT / "models.toml").read_bytes()
        metadata = next(name for name in names if name.endswith("METADATA"))
        assert b"\nLicense-Expression: Apache-2.0\n" in content.read(metadata)
    demo = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert {f"localspec/demo/{place}{name}" for place in ("", "draft/") for name in demo} <= names
    drafters = {
        f"localspec/demo/drafters/{kind}/drafter" for kind in ("eagle3", "medusa", "parallelspec", "s3d", "semi")
    }
    assert {f"{name}{end}" for name in drafters for end in (".json", ".safetensors")} <= names
    assert (sources("localspec") | sources("localspec_tui")) - names == {NATIVE + "build.py"}
    # A package named `tui` could belong to any other program.
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {*PACKAGES}


@pytest.mark.skipif(HOST is None, reason="no native library is made for this machine")
def test_a_wheel_has_the_library_and_is_for_its_platform_and_every_python(wheel):
    assert native(wheel) == {NATIVE + HOST.library}
    assert wheel.name.endswith(f"-py3-none-{HOST.wheel_tag}.whl")
    with zipfile.ZipFile(wheel) as content:
        tags = content.read(next(name for name in content.namelist() if name.endswith("/WHEEL"))).decode()
    assert "Root-Is-Purelib: false" in tags
    assert [line for line in tags.splitlines() if line.startswith("Tag:")] == [f"Tag: py3-none-{HOST.wheel_tag}"]


@pytest.mark.skipif(HOST is None, reason="no native library is made for this machine")
def test_in_an_empty_environment_the_library_of_the_wheel_is_loaded(wheel, tmp_path):
    """The environment has only Python: the wheel must not need anything of this environment."""
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    pip += ["install", "--quiet", "--no-index", "--no-deps", wheel]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LOCALSPEC_"))}
    subprocess.run(pip, cwd=tmp_path, env=clean, check=True, capture_output=True)
    code = (
        "import ctypes, pathlib, localspec; folder = pathlib.Path(localspec.__file__).parent / 'native'; "
        f"library = ctypes.CDLL(str(folder / '{HOST.library}')); print(folder, library.ls_abi(), sep='\\n')"
    )
    done = subprocess.run([python, "-c", code], cwd=tmp_path, env=clean, check=True, capture_output=True, text=True)
    folder, abi = done.stdout.splitlines()
    assert tmp_path in Path(folder).parents
    assert int(abi) == compiled.ABI


@pytest.mark.skipif(HOST is None, reason="no native library is made for this machine")
def test_the_sdist_builds_the_same_wheel_from_the_same_sources(wheel, sdist, tmp_path):
    """Without the library, so for all platforms; its sources are compared, since compiling them takes minutes."""
    with tarfile.open(sdist) as content:
        content.extractall(tmp_path / "tree", filter="data")
    (tree,) = (tmp_path / "tree").iterdir()
    assert not [*tree.glob(f"{NATIVE}localspec_native.*")]  # a library built here would belong to another machine there
    assert not (tree / "build").exists()
    for source in build.SOURCES.iterdir():
        assert (tree / source.relative_to(ROOT)).read_bytes() == source.read_bytes()
    done = hatchling("wheel", tmp_path / "again", tree, BUILD_NATIVE_FOR="none")
    assert done.returncode == 0, done.stderr
    assert (
        "localspec is built without its native library: the environment variable BUILD_NATIVE_FOR is none; unset it to build the library."
        in done.stdout + done.stderr
    )
    (again,) = (tmp_path / "again").iterdir()
    assert again.name.endswith("-py3-none-any.whl") and native(again) == set()
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(again) as theirs:
        assert {*ours.namelist()} - {*theirs.namelist()} == native(wheel)
        differ = {Path(name).name for name in theirs.namelist() if ours.read(name) != theirs.read(name)}
        assert differ == {"WHEEL", "RECORD"}


@pytest.mark.skipif(HOST is None, reason="no native library is made for this machine")
@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"CXX": "no-such-compiler"},
            "CXX=no-such-compiler: no-such-compiler cannot be run (No such file or directory).",
        ),
        (
            {"BUILD_NATIVE_FOR": "amiga"},
            wording("build_native_amiga_one_none", join=", ".join(build.TARGETS)),
        ),
    ],
)
def test_a_build_that_fails_says_why_in_one_sentence(tmp_path, variables, sentence):
    done = hatchling("wheel", tmp_path / "wheel", **variables)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).strip() == sentence


def test_the_sdist_holds_the_terminal_interface_where_a_wheel_is_built_from(sdist):
    with tarfile.open(sdist) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert sources("localspec") | {f"tui/{name}" for name in sources("localspec_tui")} <= names
    assert {"models.toml", "pyproject.toml", "hatch_build.py", "Makefile", "tests/test_package.py"} <= names
    native = {path.relative_to(ROOT).as_posix() for path in build.SOURCES.iterdir()}
    assert native <= names
    assert {Path(name).suffix for name in native} == {".cpp", ".h"}
    assert not any(name.startswith("localspec_tui/") for name in names)


def test_an_editable_install_finds_both_packages(tmp_path):
    """It is a wheel too, one whose .pth names the folders where the packages lie, and the library is in them."""
    for name in ("hatchling", "ziglang"):
        pytest.importorskip(name, reason="part of the dev extra")
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        (pth,) = (name for name in content.namelist() if name.endswith(".pth"))
        folders = content.read(pth).decode().split()
    assert {Path(folder) for folder in folders} == {*PACKAGES.values()}
    if HOST is not None:
        assert (ROOT / NATIVE / HOST.library).read_bytes() == build.build(HOST, tmp_path / HOST.library).read_bytes()
