"""The devices for which torch was built, read from its files."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from each import each

from localspec.machine import hardware as module
from localspec.machine.hardware import TorchBuild, torch_build

TYPED = "from typing import Optional\n\n__version__ = '2.13.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
UNTYPED = "__version__ = '2.6.0+rocm6.4'\ndebug = False\ncuda = None\nhip = '6.4.43482'\n"


@pytest.fixture
def fresh():
    torch_build.cache_clear()
    yield
    torch_build.cache_clear()


@each(
    "text, build",
    [
        (TYPED, TorchBuild("2.13.0+cu130", "13.0")),
        (UNTYPED, TorchBuild("2.6.0+rocm6.4", None, "6.4.43482")),
        ("nothing of this kind", TorchBuild("unknown")),
        (None, TorchBuild("unknown")),
    ],
)
def test_it_is_read_from_the_file_that_torch_itself_reads(monkeypatch, tmp_path, fresh, text, build):
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    spec = importlib.util.spec_from_file_location("torch", tmp_path / "__init__.py")
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    torch_build.cache_clear()
    assert torch_build() == build


def test_without_torch_there_is_no_build(monkeypatch, fresh):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_build() == TorchBuild("missing")


@pytest.mark.slow
def test_the_file_says_what_torch_says():
    code = "from localspec.machine.hardware import *; b = torch_build(); print(b.version, b.cuda, b.hip)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert said == [str(torch.__version__), str(torch.version.cuda), str(torch.version.hip)]
