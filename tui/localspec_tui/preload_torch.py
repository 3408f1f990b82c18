"""Torch's libraries, loaded so that one can type meanwhile."""

import ctypes
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

FIRST, ALL = "libtorch_global_deps", "libtorch_python"  # as `import torch` has them; the second brings all others along


def load() -> None:
    """Takes most of the time of `import torch`, which for a third of a second would let no other thread work.

    Called by ctypes, dlopen does. Where it fails nothing is lost: the import does it again, and says why.
    """
    spec = find_spec("torch")
    if os.name != "posix" or spec is None or spec.origin is None:
        return
    ending = ".dylib" if sys.platform == "darwin" else ".so"
    with suppress(OSError, AttributeError):
        dlopen = ctypes.CDLL(None).dlopen
        dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
        for name, visible in ((FIRST, os.RTLD_GLOBAL), (ALL, os.RTLD_LOCAL)):
            dlopen(os.fsencode(Path(spec.origin).parent / "lib" / f"{name}{ending}"), os.RTLD_LAZY | visible)
