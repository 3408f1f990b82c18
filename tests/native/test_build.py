"""Compilation of the library: what is compiled again, what is refused, and the messages about a wrong set-up."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from golden import matching, wording
from packaging.tags import platform_tags

from localspec.native import build

HOST = build.TARGETS.get(build.this_machine())
HEADER = """
#define LS_API __attribute__((visibility("default")))
int twice(int);
"""
API = """
#include "twice.h"
extern "C" LS_API int ls_answer() { return twice(21); }
"""
TWICE = """
#include "twice.h"
int twice(int number) { return 2 * number; }
"""

pytestmark = pytest.mark.skipif(HOST is None, reason="no native library is made for this machine")


@pytest.fixture
def sources(tmp_path, monkeypatch) -> Path:
    for name in ("CXX", "BUILD_NATIVE_FOR"):
        monkeypatch.delenv(name, raising=False)
    pytest.importorskip("ziglang", reason="part of the dev extra")
    folder = tmp_path / "src"
    folder.mkdir()
    for name, text in (("twice.h", HEADER), ("api.cpp", API), ("twice.cpp", TWICE)):
        (folder / name).write_text(text)
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    found: list[str] = []
    run = build.run
    monkeypatch.setattr(build, "run", lambda command, task: found.append(task) or run(command, task))
    return found


def built(folder: Path) -> Path:
    return build.build(HOST, folder / HOST.library, folder / "objects")


@pytest.mark.slow
def test_only_what_changed_is_compiled_again(sources, runs, tmp_path):
    library = built(tmp_path)
    assert ctypes.CDLL(str(library)).ls_answer() == 42
    linking = f"Linking {HOST.library}"
    assert sorted(runs) == ["Compiling api.cpp", "Compiling twice.cpp", linking]

    runs.clear()
    built(tmp_path)
    assert runs == []

    (sources / "twice.cpp").write_text(TWICE.replace("2 *", "3 *"))
    changed = shutil.copy(built(tmp_path), tmp_path / "changed.so")  # under its old name it would not be opened again
    assert ctypes.CDLL(str(changed)).ls_answer() == 63
    assert runs == ["Compiling twice.cpp", linking]

    runs.clear()
    (sources / "twice.h").write_text(HEADER + "// anything may have changed\n")
    built(tmp_path)
    assert sorted(runs) == ["Compiling api.cpp", "Compiling twice.cpp", linking]

    runs.clear()
    whole = library.read_bytes()
    library.write_bytes(whole[:-1])
    assert built(tmp_path).read_bytes() == whole and runs == [linking], "what is not what was linked"

    (sources / "twice.cpp").unlink()
    with pytest.raises(build.BuildFailed, match=r"^Linking .* failed: (?s:.*)twice"):
        built(tmp_path)


@pytest.mark.slow
def test_a_source_that_cannot_be_compiled_is_named_in_a_sentence(sources, tmp_path, monkeypatch, capsys):
    (sources / "api.cpp").write_text("int f( {")
    with pytest.raises(
        build.BuildFailed, match=r"^Compiling api\.cpp failed: .* ended with 1 and said:\n[^\n]*api\.cpp:1"
    ):
        built(tmp_path)
    monkeypatch.setattr(sys, "argv", ["build.py", "--out", str(tmp_path / HOST.library)])
    monkeypatch.setattr(build.build, "__defaults__", (None, tmp_path / "objects"))
    assert build.main() == 1
    assert capsys.readouterr().err.startswith("localspec: Compiling api.cpp failed: ")
    assert not (tmp_path / HOST.library).exists()


def test_another_compiler_serves_only_this_machine(sources, monkeypatch):
    other = next(target for target in build.TARGETS.values() if target is not HOST)
    monkeypatch.setenv("CXX", f"{sys.executable} -E")  # a command with an option, which answers to --version
    assert build.compiler(HOST).compile == (sys.executable, "-E")
    assert "ziglang" in build.compiler(other).compile
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildFailed, match=f"^{matching('cxx_no_such_compiler_no_such')}"):
        build.compiler(HOST)


def test_without_any_compiler_it_says_how_to_get_one(sources, monkeypatch):
    def missing(name: str) -> str:
        raise build.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(build.metadata, "version", missing)
    with pytest.raises(build.BuildFailed, match=f"{matching('pip_install')} .*ziglang"):
        build.compiler(HOST)


def test_what_is_built_can_be_chosen(monkeypatch):
    monkeypatch.delenv("BUILD_NATIVE_FOR", raising=False)
    assert build.wanted_target() is HOST
    monkeypatch.setenv("BUILD_NATIVE_FOR", "macos-arm64")
    assert build.wanted_target().wheel_tag == "macosx_11_0_arm64"
    monkeypatch.setenv("BUILD_NATIVE_FOR", "none")
    assert build.wanted_target() is None
    assert build.why_none() == wording("build_native_for_is_none")
    monkeypatch.setenv("BUILD_NATIVE_FOR", "amiga")
    with pytest.raises(build.BuildFailed, match=matching("amiga_one_none_linux_x86_64")):
        build.wanted_target()


def test_a_machine_without_a_library_names_those_that_have_one(monkeypatch):
    monkeypatch.delenv("BUILD_NATIVE_FOR", raising=False)
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    assert build.wanted_target() is None
    assert build.why_none().startswith(wording("it_is_not_made_for"))
    assert "riscv64, only for linux-x86_64, " in build.why_none()


def test_the_wheel_of_this_machine_is_one_that_it_installs():
    assert HOST.wheel_tag in set(platform_tags())


@pytest.mark.slow
@pytest.mark.skipif(not (HOST and HOST.name.startswith("linux-")), reason="about glibc")
def test_the_library_asks_for_no_newer_glibc_than_its_wheel_says_and_shows_only_its_functions():
    pytest.importorskip("ziglang", reason="part of the dev extra")
    library = build.HERE / HOST.library
    stamp = build.OBJECTS / HOST.name / "linked"  # where zig made the library that is used, it need not be made again
    if not (library.is_file() and stamp.is_file() and stamp.read_text().endswith(build.digest(library.read_bytes()))):
        library = build.build(HOST, build.OBJECTS / HOST.name / HOST.library)
    newest = tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)_", HOST.wheel_tag).groups()))
    wanted = {tuple(map(int, version)) for version in re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())}
    assert wanted
    assert max(wanted) <= newest
    if shutil.which("nm"):
        table = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
        names = {line.split()[-1] for line in table.stdout.splitlines()}
        assert {name for name in names if not name.startswith("ls_")} == set()
        assert "ls_abi" in names
