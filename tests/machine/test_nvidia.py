"""NVIDIA's driver as its own libraries report it, and the signs of a GPU that make us ask torch."""

import subprocess
import sys

import pytest
from each import each
from fake_nvml import FakeNvml

from localspec.machine import hardware
from localspec.machine.hardware import NvidiaDriver, TorchBuild, nvidia_driver


@pytest.fixture
def libraries(monkeypatch):
    """libraries(nvml, cuda, kernel): a system with these libraries and this version of the kernel's driver."""

    def be(nvml=None, cuda=None, kernel=""):
        monkeypatch.setattr(hardware, "_load", {hardware.MANAGEMENT: nvml, hardware.CUDA: cuda}.get)
        monkeypatch.setattr(hardware, "_kernel_version", lambda: kernel)
        nvidia_driver.cache_clear()

    yield be
    nvidia_driver.cache_clear()


def test_a_driver_with_a_gpu_is_found_and_let_go(libraries):
    nvml = FakeNvml("580.65.06", gpus=2)
    libraries(nvml)
    assert nvidia_driver() == NvidiaDriver("580.65.06")
    assert nvidia_driver().branch == 580 and nvml.open == 0


@each("nvml", [FakeNvml(gpus=0), FakeNvml(broken="init"), FakeNvml(broken="count")])
def test_a_driver_without_a_gpu_is_ignored(libraries, nvml):
    libraries(nvml, cuda=object())
    assert nvidia_driver() is None and nvml.open == 0


def test_where_only_the_computing_half_is_there_the_kernel_says_the_version(libraries):
    libraries(cuda=object(), kernel="535.104.05")
    assert nvidia_driver().branch == 535
    libraries(cuda=object())
    assert nvidia_driver() == NvidiaDriver("") and nvidia_driver().branch == 0
    libraries(FakeNvml(broken="version"), kernel="570.1")
    assert nvidia_driver().branch == 570


def test_without_libraries_there_is_no_driver(libraries):
    libraries()
    assert nvidia_driver() is None


@each(
    "system, arch, build, driver, expected",
    [
        ("linux", "x86_64", TorchBuild("2.13.0", cuda="13.0"), NvidiaDriver("580"), True),
        ("win32", "AMD64", TorchBuild("2.13.0", cuda="13.0"), NvidiaDriver("580"), True),
        ("linux", "x86_64", TorchBuild("2.13.0", cuda="13.0"), None, False),
        ("linux", "x86_64", TorchBuild("2.13.0+cpu"), NvidiaDriver("580"), False),
        ("linux", "x86_64", TorchBuild("2.13.0+rocm6.4", hip="6.4"), None, True),
        ("darwin", "arm64", TorchBuild("2.13.0"), None, True),
        ("darwin", "x86_64", TorchBuild("2.13.0"), None, False),
    ],
)
def test_torch_is_asked_where_there_are_signs_of_a_gpu_that_it_was_built_for(
    monkeypatch, system, arch, build, driver, expected
):
    monkeypatch.setattr(hardware.sys, "platform", system)
    monkeypatch.setattr(hardware.platform, "machine", lambda: arch)
    monkeypatch.setattr(hardware, "torch_build", lambda: build)
    monkeypatch.setattr(hardware, "nvidia_driver", lambda: driver)
    assert hardware.gpu_expected() is expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin" or hardware.gpu_expected(), reason="machines without a GPU")
def test_a_machine_without_a_gpu_is_inspected_without_torch():
    code = (
        "import sys; from localspec.machine.machine import this_machine, torch_trouble; "
        "this_machine(); torch_trouble(); assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
