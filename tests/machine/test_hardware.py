"""The machine: the conditions of a measurement, and the bandwidth of memory."""

import os
import sys
from itertools import pairwise

import pytest
import torch
from clocks import Clock
from each import each
from golden import matching

from localspec.errors import UsageMistake
from localspec.machine import compiled, hardware, memory
from localspec.machine.hardware import disk_bandwidth, memory_bandwidth, versions


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hardware, "time", clock)
    return clock


def test_versions_change_with_what_changes_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "instruction_set", lambda: "avx2")
    before = versions("cpu")
    assert before.startswith("native ") and "avx2" in before and hardware.cpu_name() in before and "\n" not in before
    assert versions() == before and "torch" not in before, "no other version of torch changes a bit of it"
    monkeypatch.setattr(hardware, "physical_cores", lambda: 77)
    assert "77 cores" in versions("cpu") and versions("cpu") != before
    monkeypatch.setattr(compiled, "instruction_set", lambda: "c")
    assert versions("cpu").replace("with c,", "with avx2,") != before
    monkeypatch.setattr(compiled, "instruction_set", lambda: "")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    before = versions("cpu")
    assert before.startswith(f"torch {torch.__version__}, ")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert versions("cpu") == f"{before}, ONEDNN_MAX_CPU_ISA=AVX2", "torch's libraries take other kernels by it"


def test_cores_may_be_limited_and_not_beyond_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware._Allowed, "cores", None)
    monkeypatch.setattr(hardware, "_cores_here", lambda: 4)
    assert hardware.physical_cores() == 4
    hardware.limit_cores(3)
    assert hardware.physical_cores() == 3 and "3 cores" in versions("cpu"), (
        "a measurement is valid for this number of cores"
    )
    assert hardware.IdleCores()() <= 3
    with pytest.raises(UsageMistake, match=matching("n5_threads_more_than_4_cores_here")):
        hardware.limit_cores(5)
    assert hardware.physical_cores() == 3
    hardware.limit_cores(None)
    assert hardware.physical_cores() == 4


def test_a_gpu_is_named_and_not_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert versions("cuda:1") == f"torch {torch.__version__}, GPU cuda:1, CUDA 13.0"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 if device == "cuda:1" else 9, 100))
    assert memory.free_memory("cuda:1") == 7


def test_what_torch_holds_and_nothing_uses_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """After another model was unloaded, torch still holds the memory, and returns it when it needs more."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 60 if device == "cuda:1" else 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20 if device == "cuda:1" else 0)
    assert memory.free_memory("cuda:1") == 47 and memory.free_memory("cuda:0") == 7


def test_the_cpu_has_a_name_even_if_nothing_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.cpu_name()
    monkeypatch.setattr(hardware.platform, "processor", lambda: "")
    monkeypatch.setattr(hardware.platform, "machine", lambda: "riscv64")

    class Nowhere:
        def __init__(self, path: str) -> None: ...

        def read_text(self, *how: str) -> str:
            raise FileNotFoundError

    monkeypatch.setattr(hardware, "Path", Nowhere)
    assert hardware.cpu_name() == "riscv64"


def test_bandwidth_is_bytes_over_the_quickest_of_several(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, asked = iter([0.5, 0.02, 0.01, 0.02]), []

    def read(address: int, count: int, threads: int) -> float:
        passed = next(seconds)
        clock.now += passed
        asked.append((count, threads))
        return passed

    monkeypatch.setattr(compiled, "missing", lambda: "")
    monkeypatch.setattr(compiled, "read_seconds", read)
    monkeypatch.setattr(hardware, "free_memory", lambda device: 8 * 2**20)
    monkeypatch.setattr(hardware, "physical_cores", lambda: 2)
    assert memory_bandwidth() == pytest.approx(2**20 / 0.01)
    assert asked == [(2**20, 2)] * 3, "half a second is spent after the first, and three are the least"


def test_the_disk_is_read_at_many_places_for_half_a_second_at_most(clock, monkeypatch, tmp_path) -> None:
    (file := tmp_path / "weights").touch()
    os.truncate(file, 2**29)
    places: list[int] = []

    def read(handle: int, buffers: list[object], at: int) -> int:
        clock.now += 0.001
        places.append(at)
        return 2**20

    monkeypatch.setattr(hardware.os, "preadv", read)
    monkeypatch.setattr(hardware.os, "O_DIRECT", 0o40000 if sys.platform == "linux" else 1, raising=False)
    monkeypatch.setattr(hardware.os, "open", lambda path, flags, usual=os.open: usual(path, os.O_RDONLY))
    assert disk_bandwidth(file) == pytest.approx(2**20 / 0.001)
    assert len({*places}) == 256 and max(places) <= 2**29 - 2**20 and all(at % 2**20 == 0 for at in places)
    assert len({after - before for before, after in pairwise(places)}) > 64, "at random places"
    monkeypatch.setattr(hardware.os, "preadv", lambda *given: setattr(clock, "now", clock.now + 0.2) or 2**20)
    assert disk_bandwidth(file) == pytest.approx(2**20 / 0.2) and clock.now == pytest.approx(100.0 + 0.256 + 0.6)
    (small := tmp_path / "small").write_bytes(bytes(2**20))
    assert disk_bandwidth(small) is None and disk_bandwidth(tmp_path / "missing") is None


@pytest.mark.slow
def test_bandwidth_of_this_machine_with_and_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "free_memory", lambda device: 8 * 64 * 2**20)
    assert 1e8 < memory_bandwidth("cpu") < 1e13
    monkeypatch.setattr(compiled, "missing", lambda: "there is no library")
    assert 1e8 < memory_bandwidth("cpu") < 1e13


@each("limit, total, free", [("3000000\n", 3_000_000, 2_500_000), ("max\n", None, None), ("", None, None)])
def test_a_container_has_the_memory_that_it_was_given(monkeypatch, tmp_path, limit: str, total, free) -> None:
    host = type("memory", (), {"total": 64_000_000, "available": 60_000_000})
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: host)
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("1500000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\nactive_file 0\ninactive_file 1000000\n")
    assert memory.total_memory() == (total or 64_000_000) and memory.free_memory() == (free or 60_000_000)
    host.available = 1_000_000
    assert memory.free_memory() == 1_000_000, "no more than the host has"


@each("limit, total, free", [("3000000\n", 3_000_000, 2_500_000), ("9223372036854771712\n", None, None)])
def test_control_groups_of_version_1_limit_a_container_too(monkeypatch, tmp_path, limit: str, total, free) -> None:
    host = type("memory", (), {"total": 64_000_000, "available": 60_000_000})
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: host)
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    (group := tmp_path / "memory").mkdir()
    (group / "memory.limit_in_bytes").write_text(limit)
    (group / "memory.usage_in_bytes").write_text("1500000\n")
    (group / "memory.stat").write_text("inactive_file 7\ntotal_inactive_file 1000000\n")
    assert memory.total_memory() == (total or 64_000_000) and memory.free_memory() == (free or 60_000_000)
