"""Chat with language models on this machine. Speculative decoding makes replies faster, with the same text.

Public names are loaded when they are first used, so importing `localspec` does not import torch.
"""

import os
from importlib import import_module

TYPE_CHECKING = False  # importing typing's takes 10 ms, in which Ctrl+C would show a traceback
if TYPE_CHECKING:
    from localspec.choosing.choice import Choice
    from localspec.decoding.sampling import Sampling
    from localspec.decoding.session import Limits
    from localspec.engine.engine import Engine
    from localspec.errors import DoesNotFit, LocalspecError, NotAllowed, NotHere, UsageMistake
    from localspec.events import Done, Event, Memory, Prefill, Statistics, Text

__version__ = "0.1.0"

# OpenMP reads it when torch is imported: threads that spin while they wait slow down every other program, and this one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_HOME = {
    "Engine": "localspec.engine.engine",
    "Limits": "localspec.decoding.session",
    "Sampling": "localspec.decoding.sampling",
    "Choice": "localspec.choosing.choice",
    "DoesNotFit": "localspec.errors",
    "LocalspecError": "localspec.errors",
    "NotAllowed": "localspec.errors",
    "NotHere": "localspec.errors",
    "UsageMistake": "localspec.errors",
    "Done": "localspec.events",
    "Event": "localspec.events",
    "Memory": "localspec.events",
    "Prefill": "localspec.events",
    "Statistics": "localspec.events",
    "Text": "localspec.events",
}

__all__ = [
    "Choice",
    "DoesNotFit",
    "Done",
    "Engine",
    "Event",
    "Limits",
    "LocalspecError",
    "Memory",
    "NotAllowed",
    "NotHere",
    "Prefill",
    "Sampling",
    "Statistics",
    "Text",
    "UsageMistake",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'localspec' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
