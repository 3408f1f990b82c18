"""Compiles the sources in `cuda/` for an NVIDIA GPU on first use, caches the binaries, and starts kernels.

The compiler is NVRTC, which comes with torch's packages for CUDA, so no toolkit is needed. Compiling a function takes a
few tenths of a second, once.
"""

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from localspec.environment import home
from localspec.paths import Paths, private_directory, write_anew

SOURCES = Path(__file__).parent / "cuda"
SHARED = "tensor_cores.cuh"
OUT_OF_MEMORY = 2  # the driver's code
Argument = torch.Tensor | int | float | None  # a pointer, a C int, a C float, or a null pointer


class Module:
    """A CUDA source compiled for one GPU."""

    def __init__(self, binary: bytes, device: torch.device) -> None:
        self.device, self._handle = device, ctypes.c_void_p()
        _driven(_driver().cuModuleLoadData(ctypes.byref(self._handle), binary), "the compiled code cannot be loaded")

    def function(self, name: str) -> ctypes.c_void_p:
        """Return a function of the module. Raises RuntimeError if there is none with this name."""
        function = ctypes.c_void_p()
        _driven(
            _driver().cuModuleGetFunction(ctypes.byref(function), self._handle, name.encode()),
            f"the compiled code has no {name}",
        )
        return function


class Kernel:
    """A CUDA function of a compiled module, ready to start."""

    def __init__(self, module: Module, name: str) -> None:
        self._module, self._function, self._device = module, module.function(name), module.device

    def __call__(self, grid: Sequence[int], threads: int, *arguments: Argument) -> None:
        """Start the kernel on the current stream of its GPU, with this many blocks and threads.

        Raises RuntimeError if CUDA fails.
        """
        passed = [_passed(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(passed))(*(ctypes.addressof(value) for value in passed))
        with torch.cuda.device(self._device):  # a model may be on another GPU than the current one
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            code = _driver().cuLaunchKernel(self._function, *grid, threads, 1, 1, 0, stream, addresses, None)
        _driven(code, "the compiled code cannot be started")


def _passed(argument: Argument) -> Any:
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if argument is None:
        return ctypes.c_void_p()
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_longlong(argument)


@cache
def compiled(device: torch.device, file: str, name: str, **defined: int) -> Kernel:
    """Return the function `name` of a source, compiled for a GPU with the constants `defined`. Raises RuntimeError."""
    return Kernel(_module(device, file, **defined), name)


@cache
def _module(device: torch.device, file: str, **defined: int) -> Module:
    with torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability(device)
        torch.zeros(1, device=device)  # the driver loads into the context that torch has opened
        text, flags = source(file), [f"--gpu-architecture=sm_{major}{minor}", *options(defined)]
        # torch's version identifies the compiler before that is loaded.
        made_of = [torch.__version__, str(torch.version.cuda), *flags, text]
        return Module(cached_or_compiled(made_of, lambda: binary_of(text, flags)), device)


def digest() -> str:
    """Return a digest of the CUDA sources."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(SOURCES.glob("*.cu*")))).hexdigest()[:16]


def source(file: str) -> str:
    """Return the text of a source file, with the shared part before it."""
    return "".join((SOURCES / name).read_text("utf-8") for name in (SHARED, file))


def options(defined: Mapping[str, int]) -> list[str]:
    """Return constants as options for the compiler."""
    return [f"-D{name}={value}" for name, value in sorted(defined.items())]


def binary_of(text: str, flags: Sequence[str]) -> bytes:
    """Compile a source. Raises RuntimeError with the compiler's message."""
    compiler, program = _compiler(), ctypes.c_void_p()
    words = (ctypes.c_char_p * len(flags))(*(word.encode() for word in flags))
    created = compiler.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"localspec.cu", 0, None, None)
    _succeeds(created, "there is no compiler")
    try:
        if compiler.nvrtcCompileProgram(program, len(flags), words):
            problem = _content(program, "ProgramLog").decode().strip()
            raise RuntimeError(f"NVIDIA's compiler refuses a GPU kernel of localspec: {problem}")
        return _content(program, "CUBIN")
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _content(program: ctypes.c_void_p, kind: str) -> bytes:
    size = ctypes.c_size_t()
    _succeeds(getattr(_compiler(), f"nvrtcGet{kind}Size")(program, ctypes.byref(size)), "the compiled code has no size")
    content = ctypes.create_string_buffer(size.value)
    _succeeds(getattr(_compiler(), f"nvrtcGet{kind}")(program, content), "the compiled code cannot be read")
    return content.raw


def _succeeds(code: int, problem: str) -> None:
    if code:
        raise RuntimeError(f"A GPU kernel of localspec cannot be used: {problem} (CUDA's code {code}).")


def _driven(code: int, problem: str) -> None:
    # These words let a reply free memory and try again.
    _succeeds(code, "the GPU is out of memory" if code == OUT_OF_MEMORY else problem)


@cache
def _compiler() -> Any:
    """Return NVRTC, of the version that torch was built with."""
    major = str(torch.version.cuda).partition(".")[0]
    name = f"nvrtc64_{major}0_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{major}"
    # torch's own first: the system's may be older and not know the GPU.
    return _library(name, *map(str, _packages().glob(f"nvidia/**/{name}")))


@cache
def _driver() -> Any:
    return _library("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _packages() -> Path:
    return Path(torch.__file__).parent.parent


def _library(name: str, *paths: str) -> Any:
    for path in (*paths, name):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise RuntimeError(f"The library {name} is not installed.")


MOST = 256  # files; a model uses about twenty, and other versions leave theirs behind
DIGEST = hashlib.sha256
SUFFIX = ".cubin"


def cached_or_compiled(made_of: Sequence[str], compile_: Callable[[], bytes]) -> bytes:
    """Return the cached binary, or else the result of `compile_`, which is then cached if possible.

    `made_of` are all texts that determine the binary. Raises the errors of `compile_`.
    """
    file = Paths(home()).kernels / (DIGEST("\0".join(made_of).encode()).hexdigest() + SUFFIX)
    if (binary := _read(file)) is None:
        binary = compile_()
        with suppress(OSError):
            private_directory(file.parent)
            write_anew(file, DIGEST(binary).digest() + binary)
            _forget_oldest(file.parent)
    return binary


def _read(file: Path) -> bytes | None:
    """Return a cached file; None if it is missing or damaged. A driver does not check for damage."""
    try:
        content = file.read_bytes() if file.is_file() else b""  # reading a pipe would block
    except OSError:
        return None
    digest, binary = content[: DIGEST().digest_size], content[DIGEST().digest_size :]
    return binary if DIGEST(binary).digest() == digest else None


def _forget_oldest(directory: Path) -> None:
    files = [file for file in directory.glob("*" + SUFFIX) if file.is_file()]
    for file in sorted(files, key=lambda file: file.stat().st_mtime)[:-MOST]:
        file.unlink(missing_ok=True)
