"""Environment variables that are not settings."""

import re
import tomllib
from pathlib import Path

from command import ROOT
from golden import wording

from localspec.environment import (
    dumb_terminal,
    home,
    in_screen,
    install_extra,
    kernel_settings,
    light_background,
    terminal_kind,
)


def test_dumb_terminal():
    assert dumb_terminal({"TERM": "dumb"})
    assert not dumb_terminal({"TERM": "xterm"}) and not dumb_terminal({})


def test_what_terminals_say_about_themselves():
    for ground, light in (("15;0", False), ("0;15", True), ("0;default;15", True), ("0;7", True), ("12;8", False)):
        assert light_background({"COLORFGBG": ground}) is light
    assert [light_background({"COLORFGBG": text}) for text in ("", "0;default", "0;255", "x")] == [None] * 4
    assert in_screen({"STY": "1.x"}) and not in_screen({})
    assert terminal_kind({"TERM": "linux"}) == "linux" and terminal_kind({}) == ""


def test_variables_that_choose_kernels():
    environ = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE", "DNNL_MAX_CPU_ISA": "", "PATH": "/bin"}
    assert kernel_settings(environ) == ["MKL_CBWR=COMPATIBLE", "ONEDNN_MAX_CPU_ISA=AVX2"]
    assert kernel_settings({}) == []


def test_home():
    assert home({}) is None and home({"LOCALSPEC_HOME": ""}) is None
    assert home({"LOCALSPEC_HOME": "here"}) == Path.cwd() / "here"
    assert home({"LOCALSPEC_HOME": "~/there"}) == Path.home() / "there"


def test_every_hint_names_an_extra_that_exists_and_no_index_that_lacks_localspec() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    sources = [file.read_text("utf-8") for file in (ROOT / "localspec").rglob("*.py")]
    pages = [file.read_text("utf-8") for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    named = {extra for text in sources for extra in re.findall(r"install_extra\(['\"](\w+)", text)}
    named |= {extra for text in pages for extra in re.findall(r"install '?\.\[(\w+)\]", text)}
    assert named == {"ui", "plot"} and named <= known.keys()
    assert [text for text in (*sources, *pages) if "install localspec[" in text.replace('"', "")] == []
    assert install_extra("ui").startswith(wording("run_uv_tool_install_ui"))
