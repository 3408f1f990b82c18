"""What the installed torch was built for, read from its files: importing it takes seconds."""

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class TorchBuild:
    """The version of torch, and the versions of CUDA and of ROCm's HIP that it was built for, if it was."""

    version: str
    cuda: str | None = None
    hip: str | None = None


@cache
def torch_build() -> TorchBuild:
    """The build of torch that would be imported. Asks torch itself where it is loaded already."""
    if (loaded := sys.modules.get("torch")) is not None:
        return TorchBuild(str(loaded.__version__), loaded.version.cuda, loaded.version.hip)
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchBuild("missing")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text("utf-8")
    except OSError:
        return TorchBuild("unknown")
    values = dict(re.findall(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*'([^']*)'", text, re.MULTILINE))
    return TorchBuild(values.get("__version__", "unknown"), values.get("cuda"), values.get("hip"))
