"""How a long-lived process chooses again."""

from types import SimpleNamespace
from typing import Any

import pytest
from machines import GIB, cpu, gpu, machine

from localspec.serving import loaded


def test_the_memory_that_engines_hold_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    there = machine(gpu(24, free=2), gpu(12, free=1, index=1), cpu(64, free=30))
    monkeypatch.setattr(loaded, "this_machine", lambda: there)
    engines: list[Any] = [
        SimpleNamespace(freed_memory=held) for held in (("cuda:0", 3 * GIB), ("cuda:0", GIB), ("cpu", 0))
    ]
    found = loaded.machine_without(engines)
    assert [(one.name, one.free / GIB) for one in found.devices] == [("cuda:0", 6), ("cuda:1", 1), ("cpu", 30)]
    assert loaded.machine_without([]) == there
