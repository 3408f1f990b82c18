"""Torch's libraries are there before torch is imported, and the import goes on with them."""

import subprocess
import sys
from pathlib import Path

import pytest
from command import environment

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


def test_without_torch_nothing_happens(monkeypatch):
    from localspec_tui import preload_torch

    monkeypatch.setattr(preload_torch, "find_spec", lambda _: None)
    preload_torch.load()
