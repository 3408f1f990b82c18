import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from each import each
from golden import wording

from localspec.machine import compiled
from localspec.machine import machine as module
from localspec.machine.machine import lacking


@pytest.fixture
def machine(monkeypatch):
    """Return `machine`: it may have bitsandbytes, our library, operators for Apple's GPUs, a GPU of some capability."""

    def made_of(library=True, ours="", apple=("int8", "int4"), capability=(8, 9)):
        names = {f"aten::_weight_{name}pack_mm" for name in apple}
        monkeypatch.setattr(module, "find_spec", lambda name: SimpleNamespace() if library else None)
        monkeypatch.setattr(compiled, "missing", lambda: ours)
        monkeypatch.setattr(
            torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: key == "MPS" and name in names
        )
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return made_of


@each(
    "quantize, device, clause",
    [
        *(("none", device, "") for device in ("cpu", "mps", "cuda:1", "xpu")),
        ("int8", "cpu", ""),
        ("int4", "cpu", ""),
        ("int8", "cuda:0", ""),
        ("nf4", "cuda:0", ""),
        ("nf4", "cuda", ""),
        ("int8", "mps", ""),
        ("int4", "mps", ""),
        ("nf4", "cpu", wording("nf4_is_for_nvidia_s_gpus")),
        ("int4", "cuda:0", wording("int4_cpus_apple_s_gpus")),
        ("nf4", "mps", wording("nf4_is_for_nvidia_s_gpus")),
        ("int8", "xpu:0", wording("int8_has_no_kernels_for_xpu")),
    ],
)
def test_where_nothing_is_missing_each_device_has_its_own(machine, quantize, device, clause):
    machine()
    assert lacking(quantize, device) == clause


@each(
    "missing, quantize, device, clause",
    [
        ({"library": False}, "nf4", "cuda:0", wording("bitsandbytes_installed_pip")),
        ({"library": False}, "int8", "cuda:0", wording("bitsandbytes_installed_pip")),
        ({"library": False}, "int8", "cpu", ""),
        ({"library": False}, "int8", "mps", ""),
        ({"ours": wording("there_is_no_library")}, "int8", "cpu", wording("there_is_no_library")),
        ({"ours": wording("there_is_no_library")}, "int4", "cpu", wording("there_is_no_library")),
        ({"ours": wording("there_is_no_library")}, "int8", "cuda:0", ""),
        ({"apple": ["int8"]}, "int4", "mps", wording("build_torch_int4_kernels_apple_s")),
        ({"apple": ["int4"]}, "int8", "mps", wording("build_torch_int8_kernels_apple_s")),
        ({"capability": (7, 0)}, "int8", "cuda:0", wording("int8_cuda_0_needs_gpu_compute")),
        ({"capability": (7, 5)}, "int8", "cuda:0", ""),
        ({"capability": (6, 1)}, "nf4", "cuda:0", ""),
    ],
)
def test_what_is_missing_is_named(machine, missing, quantize, device, clause):
    machine(**missing)
    assert lacking(quantize, device) == clause


def test_it_asks_the_library_by_its_name(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "find_spec", asked.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    lacking("nf4", "cuda:0")
    assert asked == ["bitsandbytes"]


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="machines without Apple's GPU")
def test_a_build_without_apples_operators_says_so():
    for quantize in ("int8", "int4"):
        assert quantize in lacking(quantize, "mps")


@pytest.mark.slow
def test_it_loads_neither_torch_at_import_nor_bitsandbytes_at_all():
    code = (
        "import sys; from localspec.machine import machine; assert 'torch' not in sys.modules; "
        "[machine.lacking(q, d) for q in ('none', 'int8', 'int4', 'nf4') for d in ('cpu', 'mps')]; "
        "assert 'bitsandbytes' not in sys.modules and 'transformers' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
