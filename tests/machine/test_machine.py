"""The description of a machine, and the command that repairs a build of torch that cannot use it."""

import re
from types import SimpleNamespace

import pytest
import torch
from each import each
from golden import wording
from machines import GIB, apple, cpu, gpu, machine

from localspec.machine import compiled, hardware
from localspec.machine import machine as facts
from localspec.machine.hardware import NvidiaDriver, TorchBuild
from localspec.machine.machine import Device, this_machine, torch_trouble
from localspec.machine.memory import LEAST_FREE


@each(
    "total, free, usable",
    [
        (24 * GIB, 24 * GIB, 24 * GIB - 24 * GIB // 10),
        (24 * GIB, 12 * GIB, 12 * GIB - 24 * GIB // 10),
        (4 * GIB, 4 * GIB, 4 * GIB - 600_000_000),
        (6_000_000_000, 6_000_000_000, 5_400_000_000),
        (8 * GIB, 500_000_000, 0),
        (24 * GIB, 0, 0),
    ],
)
def test_a_tenth_of_all_memory_stays_free_or_600_mb(total: int, free: int, usable: int) -> None:
    assert Device("cuda:0", "", total, free, ("bf16",)).usable == usable
    assert LEAST_FREE == 600_000_000


def test_a_device_is_found_by_its_name_and_cuda_is_the_first_of_several() -> None:
    both = machine(gpu(), gpu(index=1))
    assert [device.type for device in both.devices] == ["cuda", "cuda", "cpu"]
    assert both.device("cuda") == both.device("cuda:0") == both.devices[0]
    assert both.device("cuda:1") == both.devices[1] and both.device("cpu") == both.devices[2]
    assert both.device("mps") is both.device("cuda:2") is both.device("cud") is None
    assert machine(apple()).devices[0].type == "mps" and machine(cpu()).device("cuda") is None


def test_this_machine_has_a_cpu_with_memory() -> None:
    here = this_machine(lambda device: 7.0)
    own = here.devices[-1]
    assert (own.name, own.bandwidth, here.cores) == ("cpu", 7.0, hardware.physical_cores())
    assert 0 < own.free <= own.total and own.dtypes[-1] == "fp32" and own.title
    assert own.packings == (() if compiled.missing() else ("int8", "int4"))
    assert this_machine().devices[-1].bandwidth is None


@each(
    "generation, dtypes, packings",
    [
        ((9, 0), ("bf16", "fp16", "fp32"), ("int8", "nf4")),
        ((8, 0), ("bf16", "fp16", "fp32"), ("int8", "nf4")),
        ((7, 5), ("fp16", "fp32"), ("int8", "nf4")),
        ((7, 0), ("fp16", "fp32"), ("nf4",)),
    ],
)
def test_a_gpu_is_judged_by_its_generation(monkeypatch, generation, dtypes, packings) -> None:
    monkeypatch.setattr(hardware, "devices", lambda: ["cuda:1", "cpu"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 * GIB, 8 * GIB))
    properties = SimpleNamespace(multi_processor_count=28)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr("localspec.machine.machine.find_spec", lambda name: object())
    device = this_machine().devices[0]
    assert (device.name, device.title, device.free, device.total) == ("cuda:1", "GPU cuda:1", 7 * GIB, 8 * GIB)
    assert (device.dtypes, device.packings, device.cores) == (dtypes, packings, 28)
    assert device.capability == f"compute capability {generation[0]}.{generation[1]}"


@each(
    "instructions, missing, dtypes, packings, capability",
    [
        ("avx2", "", ("bf16", "fp32"), ("int8", "int4"), "avx2"),
        ("", wording("there_is_no_library"), ("fp32",), (), wording("there_is_no_library")),
    ],
)
def test_a_cpu_computes_with_our_library_or_in_fp32(
    monkeypatch, instructions, missing, dtypes, packings, capability
) -> None:
    monkeypatch.setattr(compiled, "instruction_set", lambda: instructions)
    monkeypatch.setattr(compiled, "missing", lambda: missing)
    own = this_machine().devices[-1]
    assert (own.dtypes, own.packings, own.capability) == (dtypes, packings, capability)
    assert own.missing["nf4"] == wording("nf4_is_for_nvidia_s_gpus")
    assert own.missing.get("int8", "") == own.missing.get("int4", "") == missing


def test_where_torch_trains_a_cpu_has_the_packings_of_our_library_and_no_others(monkeypatch) -> None:
    for missing, packings in (("", ("int8", "int4")), ("there is no library", ())):
        monkeypatch.setattr(compiled, "missing", lambda missing=missing: missing)
        own = this_machine().as_torch_has_it().devices[-1]
        assert (own.engine, own.backend, own.dtypes, own.packings) == ("torch", "cpu", ("fp32", "bf16"), packings)
    graphics = machine(gpu(), apple())
    assert graphics.as_torch_has_it().devices[:2] == graphics.devices[:2]


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch):
    """Return `computer`, which makes a machine with this driver and a build of torch that finds no GPU."""

    def be(
        driver: str | None = None,
        version: str = "2.9.0+cpu",
        cuda: str | None = None,
        hip: str | None = None,
        amd: bool = False,
        platform: str = "linux",
        arch: str = "x86_64",
        name: str = "Some CPU",
    ) -> None:
        class Files:
            def __init__(self, path: str) -> None:
                self.path = path

            def exists(self) -> bool:
                return amd and self.path == "/dev/kfd"

        found = None if driver is None else NvidiaDriver(driver)
        for module in (facts, hardware):
            monkeypatch.setattr(module, "nvidia_driver", lambda: found)
            monkeypatch.setattr(module, "torch_build", lambda: TorchBuild(version, cuda, hip))
        monkeypatch.setattr(facts, "Path", Files)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        monkeypatch.setattr(facts.sys, "platform", platform)
        monkeypatch.setattr(facts.sys, "executable", "/venv/bin/python")
        monkeypatch.setattr(facts.platform, "machine", lambda: arch)
        monkeypatch.setattr(hardware, "cpu_name", lambda: name)

    return be


def test_a_machine_without_a_gpu_has_no_trouble(computer) -> None:
    computer()
    assert torch_trouble() is None


@each(
    "driver, build",
    [("580.65.06", "cu130"), ("595.10", "cu130"), ("579.99", "cu128"), ("570.26", "cu128"), ("525.60.13", "cu126")],
)
def test_a_cpu_build_with_an_nvidia_driver_is_named_with_the_command_that_fixes_it(
    computer, driver: str, build: str
) -> None:
    computer(driver)
    assert torch_trouble() == (
        f"NVIDIA driver {driver[:3]} found, torch 2.9.0+cpu is a CPU build: /venv/bin/python -m pip install "
        f"--force-reinstall torch==2.9.0 --index-url https://download.pytorch.org/whl/{build}"
    )


def test_a_driver_that_does_not_say_its_version_gets_the_build_that_most_run(computer) -> None:
    computer("")
    said = torch_trouble()
    assert said and wording("nvidia_driver_unknown_version") in said and said.endswith("/cu126")


def test_a_build_for_a_newer_driver_is_named(computer) -> None:
    computer("535.1", version="2.9.0+cu130", cuda="13.0")
    said = torch_trouble()
    assert said and said.startswith(wording("nvidia_driver_535_found_torch_2_9"))
    assert said.endswith("/cu126")


def test_a_gpu_that_a_right_build_does_not_see_is_hidden(computer) -> None:
    computer("580.65", version="2.9.0+cu128", cuda="12.8")
    said = torch_trouble()
    assert said and wording("sees_no_gpu") in said and "CUDA_VISIBLE_DEVICES" in said and "pip" not in said


def test_a_driver_that_is_too_old_for_every_build_is_to_be_updated(computer) -> None:
    computer("470.2")
    assert torch_trouble() == wording("nvidia_driver_470_found_torch_2_9")


def test_an_amd_gpu_wants_a_build_of_its_own(computer) -> None:
    computer(amd=True)
    said = torch_trouble()
    assert said and said.startswith(wording("amd_gpu_found_torch_2_9_0_cpu"))
    assert re.search(r"torch==2\.9\.0 --index-url https://download\.pytorch\.org/whl/rocm[\d.]+$", said)
    computer(amd=True, version="2.9.0+rocm6.4", hip="6.4")
    assert torch_trouble() is None, "the build is right, and something else is wrong"


def test_a_translated_python_on_a_mac_cannot_use_its_gpu(computer) -> None:
    computer(platform="darwin", arch="x86_64", name="Apple M2")
    assert wording("install_a_python_for_arm64") in (torch_trouble() or "")
    for arch, name in (("x86_64", "Intel(R) Core(TM) i7"), ("arm64", "Apple M2")):
        computer(platform="darwin", arch=arch, name=name)
        assert torch_trouble() is None


def test_where_torch_uses_the_gpu_nothing_is_said(computer, monkeypatch) -> None:
    computer("580.65", version="2.9.0+cu130", cuda="13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert torch_trouble() is None
