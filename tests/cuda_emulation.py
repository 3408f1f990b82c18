"""An emulation of our CUDA kernels on a CPU: their own sources as C++, whose threads take turns.

It replaces the driver and NVRTC. Conversions, loads and the products of tensor cores, which C++ lacks, are replaced by
code that does what PTX specifies.
"""

import ctypes
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from localspec.native import build
from localspec.nn import cuda_kernels, kernel_checks, row_kernels

HERE = Path(__file__).parent
EXCHANGED = (
    (r"#if FP16\n    float number;\n    asm\(.*?#endif", "return wide_number(bits);"),
    (r'u16 bits;\n    asm\("cvt.*?return bits;', "return narrow_number(number);"),
    (
        r'asm\("mma.*?"r"\(b1\)\);',
        "const u32 a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};\n    fragments_multiply(sums, a, b);",
    ),
    (r'asm volatile\("ld\..*?"l"\(place\)\);', "read = *place;"),
)
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(.*?\)+ )?(\w+)\((.*?)\) \{', re.DOTALL)


@cache
def as_cpp(source: str, name: str) -> str:
    """Return a source whose function `started` calls this kernel with the arguments that a driver gets."""
    for asked, told in EXCHANGED:
        source = re.sub(asked, lambda _, told=told: told, source, flags=re.DOTALL)
    assert "asm" not in source, "there is an instruction that is not emulated"
    parameters = next(found[1] for found in KERNEL.findall(source) if found[0] == name)
    given = ", ".join(f"Given{{given[{number}]}}" for number in range(parameters.count(",") + 1))
    return f'#include "cuda_emulation.h"\n{source}\nstatic void started(void** given) {{ {name}({given}); }}\n'


class Emulation:
    """Compiles kernels into a folder, and is the driver that starts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def compiled(self, device: torch.device, file: str, name: str, **defined: int) -> cuda_kernels.Kernel:
        text = as_cpp(cuda_kernels.source(file), name)
        return _kernel(self._folder, text, name, tuple(cuda_kernels.options(defined)))

    def cuLaunchKernel(self, function: Callable[..., int], *given: Any) -> int:  # noqa: N802  its own name
        x, y, z, threads, _, _, _, _, places, _ = given
        return function(places, x, y, z, threads)


@cache
def _kernel(folder: Path, text: str, name: str, defined: tuple[str, ...]) -> cuda_kernels.Kernel:
    """Return a kernel, compiled unless another process put the same one into the folder."""
    library = folder / f"{build.digest(text, *defined)[:16]}.so"
    if not library.exists():
        using = build.compiler(build.TARGETS[build.this_machine()])
        part = folder / f"{library.stem}-{os.getpid()}"
        source, made, linked = (part.with_suffix(end) for end in (".cpp", ".o", ".so"))
        source.write_text(text, "utf-8")
        flags = ("-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-exceptions")
        command = [*using.compile, *flags, *defined, f"-I{HERE}", "-c", str(source), "-o", str(made)]
        build.run(command, f"Compiling {name}")
        build.run([*using.link, "-shared", str(made), "-o", str(linked)], f"Linking {name}")
        linked.replace(library)
    function = ctypes.CDLL(str(library)).start
    module: Any = SimpleNamespace(device=torch.device("cpu"), function=lambda _: function)
    return cuda_kernels.Kernel(module, name)


def emulate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Emulation:
    """Let kernels run on the CPU, for tensors there, as on a GPU with one multiprocessor."""
    emulation = Emulation(folder)
    monkeypatch.setattr(cuda_kernels, "_driver", lambda: emulation)
    monkeypatch.setattr(row_kernels, "compiled", emulation.compiled)
    monkeypatch.setattr(row_kernels, "_multiprocessors", lambda device: 1)
    monkeypatch.setattr(row_kernels, "_blocks", lambda device: 2)
    monkeypatch.setattr(kernel_checks, "trouble", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return emulation
