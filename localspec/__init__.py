"""Chat with language models on this machine. Speculative decoding makes replies faster, with the same text.

Public names are loaded when they are first used, so importing `localspec` does not import torch.
"""

import os
from importlib import import_module

TYPE_CHECKING = False  # importing typing's takes 10 ms, in which Ctrl+C would show a traceback
if TYPE_CHECKING:
    from localspec.choosing.choice import Choice
    from localspec.decoding.limits import Limits
    from localspec.decoding.sampling import Sampling
    from localspec.engine.engine import Engine
    from localspec.errors import DoesNotFit, LocalspecError, NotAllowed, NotHere, UsageMistake
    from localspec.events import Done, Event, Memory, Prefill, Statistics, Text

__version__ = "0.1.0"

# OpenMP reads it when torch is imported: threads that spin while they wait slow down every other program, and this one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_NAMES = {
    "localspec.choosing.choice": ("Choice",),
    "localspec.decoding.limits": ("Limits",),
    "localspec.decoding.sampling": ("Sampling",),
    "localspec.engine.engine": ("Engine",),
    "localspec.errors": ("DoesNotFit", "LocalspecError", "NotAllowed", "NotHere", "UsageMistake"),
    "localspec.events": ("Done", "Event", "Memory", "Prefill", "Statistics", "Text"),
}

__all__ = [
    "Choice", "DoesNotFit", "Done", "Engine", "Event", "Limits", "LocalspecError", "Memory",
    "NotAllowed", "NotHere", "Prefill", "Sampling", "Statistics", "Text", "UsageMistake", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> object:
    for module, names in _NAMES.items():
        if name in names:
            value: object = getattr(import_module(module), name)
            globals()[name] = value  # the next look-up finds it at once
            return value
    raise AttributeError(f"module 'localspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
