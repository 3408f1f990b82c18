"""Torch's libraries are there before torch is imported, and the import goes on with them."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import environment

from localspec_tui import preload_torch

CODE = """
import sys
from localspec_tui import preload_torch
def loaded(): return "libtorch_cpu" in open("/proc/self/maps").read()
before = loaded()
preload_torch.load()
assert (before, loaded(), "torch" in sys.modules) == (False, True, False)
import torch
assert torch.ones(2).sum() == 2
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at the maps that Linux shows")
def test_the_libraries_come_before_the_import(tmp_path):
    subprocess.run([sys.executable, "-c", CODE], env=environment(tmp_path), check=True)


class Loader:
    """Stands for dlopen, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.trouble: Exception | None = None

    def __call__(self, path: bytes, mode: int) -> None:
        self.asked.append((os.fsdecode(path), mode))
        if self.trouble:
            raise self.trouble


@pytest.fixture
def dlopen(monkeypatch) -> Loader:
    loader = Loader()
    stand_in = SimpleNamespace(
        CDLL=lambda _: SimpleNamespace(dlopen=loader),
        c_void_p=ctypes.c_void_p,
        c_char_p=ctypes.c_char_p,
        c_int=ctypes.c_int,
    )
    monkeypatch.setattr(preload_torch, "ctypes", stand_in)
    monkeypatch.setattr(preload_torch, "find_spec", lambda name: SimpleNamespace(origin=f"/there/{name}/__init__.py"))
    return loader


@pytest.mark.skipif(os.name != "posix", reason="there is no dlopen")
def test_first_what_all_need_and_for_all_then_the_rest(dlopen):
    preload_torch.load()
    (first, first_mode), (rest, rest_mode) = dlopen.asked
    assert Path(first).parent == Path(rest).parent == Path("/there/torch/lib")
    assert (Path(first).stem, first_mode) == ("libtorch_global_deps", os.RTLD_LAZY | os.RTLD_GLOBAL)
    assert (Path(rest).stem, rest_mode) == ("libtorch_python", os.RTLD_LAZY | os.RTLD_LOCAL)


@pytest.mark.skipif(os.name != "posix", reason="there is no dlopen")
def test_trouble_is_left_to_the_import(dlopen):
    dlopen.trouble = OSError("no such library")
    preload_torch.load()
    assert len(dlopen.asked) == 1


@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)], ids=["no torch", "a folder of that name"])
def test_without_torch_nothing_is_loaded(dlopen, monkeypatch, spec):
    monkeypatch.setattr(preload_torch, "find_spec", lambda _: spec)
    preload_torch.load()
    assert dlopen.asked == []
