"""What processes of `accelerate launch` must agree on, and how much of a shared target each one holds."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from localspec.errors import UsageMistake
from localspec.training import estimate, processes


def test_processes_that_found_different_things_are_stopped(monkeypatch: pytest.MonkeyPatch):
    found = {"data": "a", "step": 3}
    for other, told in (({**found, "step": 0}, r"differ in step \(3 and 0\)"), ({**found, "data": "b"}, "in data")):
        monkeypatch.setattr(processes, "gather_object", lambda own, other=other: [*own, other])
        with pytest.raises(UsageMistake, match=told):
            processes.agree(SimpleNamespace(num_processes=2), found)
        processes.agree(SimpleNamespace(num_processes=1), found)  # no other process to differ from
    monkeypatch.setattr(processes, "gather_object", lambda own: [*own, dict(found)])
    processes.agree(SimpleNamespace(num_processes=2), found)


def test_a_part_of_the_layers_is_what_one_process_holds(tiny):
    target = tiny("llama-grouped-dynamic").target
    drafter = SimpleNamespace(target=target)
    layer = sum(weight.nbytes for weight in target.transformer.layers[0].parameters())
    needed = estimate.Needs(fixed=10**9, token=1, files=1, trainable=1, recomputed=1)
    assert estimate.divided(needed, drafter, 3) == replace(needed, fixed=10**9 - 3 * layer + layer + 2 * layer)
    assert estimate.divided(needed, drafter, 1).fixed >= 10**9
