"""Compiled kernels on the disk: read where they are whole, compiled again where they are not."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from localspec.environment import home
from localspec.nn import cuda_kernels
from localspec.nn.cuda_kernels import cached_or_compiled
from localspec.paths import Paths


class Compiler:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> bytes:
        self.times += 1
        return b"\x7fELF of the %d. time" % self.times


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Paths(home()).kernels


def test_one_is_compiled_once_for_each_of_what_it_is_made_of(folder):
    compiler = Compiler()
    assert [cached_or_compiled(["torch", "a"], compiler) for _ in range(2)] == [b"\x7fELF of the 1. time"] * 2
    cached_or_compiled(["torch", "b"], compiler)
    cached_or_compiled(["torcha"], compiler)
    assert compiler.times == 3 and len(list(folder.iterdir())) == 3


def test_only_its_user_can_read_the_file(folder):
    cached_or_compiled(["a"], Compiler())
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", [lambda kept: kept[:-1], lambda kept: kept[:40] + b"!" + kept[41:]])
def test_a_damaged_file_is_compiled_again(folder, damage):
    compiler = Compiler()
    cached_or_compiled(["a"], compiler)
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert cached_or_compiled(["a"], compiler) == cached_or_compiled(["a"], compiler) == b"\x7fELF of the 2. time"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_what_is_no_file_keeps_nobody_waiting_and_no_kernel_from_going(folder, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "MOST", 2)
    compiler = Compiler()
    cached_or_compiled(["a"], compiler)
    (file,) = folder.iterdir()
    file.unlink()
    os.mkfifo(file)
    (folder / "directory.cubin").mkdir()
    (folder / "nowhere.cubin").symlink_to("missing")
    assert cached_or_compiled(["a"], compiler) == cached_or_compiled(["a"], compiler)
    for made_of in "bcd":
        cached_or_compiled([made_of], compiler)
    assert sum(one.is_file() for one in folder.iterdir()) == 2


def test_where_nothing_can_be_kept_it_is_compiled_each_time(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("no directory")
    compiler = Compiler()
    assert cached_or_compiled(["a"], compiler) != cached_or_compiled(["a"], compiler)


def test_the_oldest_go(folder, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "MOST", 2)
    compiler = Compiler()
    for age, made_of in ((3, "a"), (2, "b"), (1, "c")):
        before = set(folder.iterdir()) if folder.exists() else set()
        cached_or_compiled([made_of], compiler)
        for file in set(folder.iterdir()) - before:
            os.utime(file, (1e9 - age, 1e9 - age))
    for made_of in "bc":
        cached_or_compiled([made_of], compiler)
    assert compiler.times == 3
    cached_or_compiled(["a"], compiler)
    assert compiler.times == 4


def test_modules_are_made_of_what_was_kept_for_this_card_and_torch(folder, monkeypatch):
    from contextlib import nullcontext

    compiled: list[list[str]] = []
    loaded: list[bytes] = []
    capability = [8, 6]

    def compile_(text: str, told: list[str]) -> bytes:
        compiled.append(told)
        return text[-20:].encode()

    monkeypatch.setattr(cuda_kernels, "binary_of", compile_)
    monkeypatch.setattr(cuda_kernels, "Module", lambda binary, device: loaded.append(binary))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: tuple(capability))
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    module = cuda_kernels._module.__wrapped__
    card: Any = SimpleNamespace(type="cuda")
    module(card, "layer.cu", HEAD=64)
    module(card, "layer.cu", HEAD=64)
    assert compiled == [["--gpu-architecture=sm_86", "-DHEAD=64"]] and loaded[0] == loaded[1]
    module(card, "layer.cu", HEAD=128)
    module(card, "attention.cu", HEAD=64)
    capability[:] = [8, 9]
    module(card, "layer.cu", HEAD=64)
    monkeypatch.setattr(torch, "__version__", "9.9")
    module(card, "layer.cu", HEAD=64)
    monkeypatch.setattr(torch.version, "cuda", "99")
    module(card, "layer.cu", HEAD=64)
    assert len(compiled) == 6
