"""The compiled library: where it is, whether it can be used here, and its facts about this CPU.

This file only asks the library for facts; `localspec/native/` computes with it.
"""

import ctypes
import platform
import struct
from functools import cache
from pathlib import Path

from localspec import environment
from localspec.config import nearest
from localspec.errors import UsageMistake

ABI = 13  # version of the functions in localspec/native/src/localspec.h
ISAS = ("c", "neon", "avx2", "avx_vnni", "avx512_vnni")  # by their numbers there
SUFFIX = {"Darwin": ".dylib", "Windows": ".dll"}.get(platform.system(), ".so")
FILE = Path(__file__).parent.parent / "native" / f"localspec_native{SUFFIX}"


@cache
def library() -> ctypes.CDLL | None:
    """Return the library, set to the instructions in LOCALSPEC_ISA or the CPU's best; None if it is missing or damaged.

    Raises UsageMistake for instructions that are unknown, or that this CPU does not have.
    """
    name = environment.instruction_set()
    shown = f"{environment.ISA} = {name!r}"
    if name is not None and name not in ISAS:
        raise UsageMistake(f"{shown} is unknown{nearest(name, ISAS)}; use one of {', '.join(ISAS)}.")
    try:
        lib = None if _is_cut_short(FILE) else ctypes.CDLL(str(FILE))
        if lib is None or lib.ls_abi() != ABI:  # damaged, or built from other sources
            return None
    except (OSError, AttributeError):  # it cannot be loaded, or is another library
        return None
    if name is not None:
        if not lib.ls_isa_supported(ISAS.index(name)):
            raise UsageMistake(f"{shown} needs instructions that this CPU does not have; leave it out.")
        lib.ls_isa_use(ISAS.index(name))
    return lib


def _is_cut_short(file: Path) -> bool:
    """Return whether the end of an ELF file is missing. The end has the table of the file's sections.

    Linux would load such a file, and the process would crash.
    """
    with file.open("rb") as stream:
        start = stream.read(64)
        if len(start) < 64 or start[:5] != b"\x7fELF\x02":
            return False  # other systems check this themselves
        (table,), (entry, count, names) = struct.unpack_from("<Q", start, 40), struct.unpack_from("<3H", start, 58)
        stream.seek(table + entry * names)
        section, size = stream.read(entry), file.stat().st_size
    return size < table + entry * count or section[4:8] != b"\3\0\0\0"  # a table of texts


def missing() -> str:
    """Return a clause with the reason why the library cannot be used; empty if it can."""
    if library() is not None:
        return ""
    if not FILE.exists():
        return f"this installation has no compiled library ({FILE.name})"
    return f"{FILE} is damaged, belongs to another version, or cannot be loaded"


def instruction_set() -> str:
    """Return the instructions that the library uses; empty without the library."""
    lib = library()
    return "" if lib is None else ISAS[lib.ls_isa_in_use()]


def read_seconds(address: int, count: int, threads: int) -> float:
    """Return the seconds that the library takes to read `count` bytes once with `threads` threads.

    The library must exist.
    """
    lib = library()
    assert lib is not None
    lib.ls_read_seconds.restype = ctypes.c_double
    return float(lib.ls_read_seconds(ctypes.c_void_p(address), ctypes.c_size_t(count), ctypes.c_int32(threads)))
