"""How kernels are compiled and started, with a stand-in for driver and compiler; a GPU tests their results."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from each import each
from golden import matching

from localspec.errors import out_of_memory
from localspec.nn import cuda_kernels

DEVICE = torch.device("cuda", 0)


class Driver:
    def __init__(self) -> None:
        self.code = 0
        self.started: list[tuple[Any, ...]] = []

    def cuModuleLoadData(  # noqa: N802
        self, module: Any, binary: bytes
    ) -> int:
        return self.code

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        return 0 if name == b"known" else 500

    def cuLaunchKernel(self, function: Any, *given: Any) -> int:  # noqa: N802
        *sizes, _, places, _ = given
        numbers = [ctypes.cast(place, ctypes.POINTER(ctypes.c_longlong))[0] for place in places]
        self.started.append((sizes, numbers))
        return self.code


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(cuda_kernels, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    return driver


def test_a_kernel_gets_pointers_and_numbers_in_their_order(driver):
    kernel = cuda_kernels.Kernel(cuda_kernels.Module(b"", DEVICE), "known")
    x = torch.ones(3)
    kernel((2, 3, 1), 64, x, None, 2**40, 0.5)
    ((sizes, numbers),) = driver.started
    assert sizes == [2, 3, 1, 64, 1, 1, 0]
    assert numbers[:3] == [x.data_ptr(), 0, 2**40]
    assert numbers[3] & 0xFFFFFFFF == 0x3F000000, "a C float"


def test_what_cuda_refuses_is_an_error_in_words(driver):
    module = cuda_kernels.Module(b"", DEVICE)
    with pytest.raises(RuntimeError, match=matching("other_cuda_s_code_500")):
        module.function("other")
    kernel = cuda_kernels.Kernel(module, "known")
    driver.code = 719
    with pytest.raises(RuntimeError, match=matching("cannot_started_cuda_s_code_719")):
        kernel((1, 1, 1), 32)
    with pytest.raises(RuntimeError, match=matching("it_cannot_be_loaded")) as raised:
        cuda_kernels.Module(b"", DEVICE)
    assert not out_of_memory(raised.value)
    driver.code = 2
    with pytest.raises(RuntimeError, match=matching("card_out_memory")) as raised:
        cuda_kernels.Module(b"", DEVICE)
    assert out_of_memory(raised.value)


def test_what_is_not_there_is_named():
    with pytest.raises(RuntimeError, match=matching("there_libmissing_here")):
        cuda_kernels._library("libmissing.so", "/nowhere/libmissing.so")


@each(
    "file, names",
    [
        ("linear_dense.cu", ["linear_dense"]),
        ("linear_nf4.cu", ["linear_nf4"]),
        ("attention.cu", ["attend", "add_pages"]),
        ("layer.cu", ["add_norm", "gated", "rotate_and_place"]),
    ],
)
def test_the_sources_are_part_of_the_package(file, names):
    text = cuda_kernels.source(file)
    assert text.startswith("// Sixteen-bit numbers") and "#include" not in text, "NVRTC comes without headers"
    assert all(f" {name}(" in text for name in names)
    assert cuda_kernels.options({"B": 2, "A": 1}) == ["-DA=1", "-DB=2"]
