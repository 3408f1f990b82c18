"""The self-test on the device, in both forms; and forms of a step, which give the same bits."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_models import GREEDY, MAKERS, QUESTIONS, WIDEST, prompt_of
from session_replies import reply

from localspec.decoding.budget import Budget
from localspec.decoding.exactness import MULTIPLES, Exactness
from localspec.decoding.session import Session
from localspec.nn import exactness
from localspec.nn.exactness import measure
from localspec.nn.step_forms import find_step_form
from localspec.nn.target import Target

Demo = Callable[..., Target]


@pytest.mark.parametrize("exact", [False, True], ids=["fastest", "exact"])
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_self_test_says_what_this_device_does(
    demo: Demo,
    found_of: Callable[[str, bool], Exactness],
    device: str,
    record_property: Callable[[str, object], None],
    dtype: str,
    exact: bool,
) -> None:
    """Whatever it finds, it finds again; what is not bitwise differs by little.

    A CPU tries that again only with the fastest form, which takes a tenth of the time, and the exact form only in bf16;
    tests/nn/test_exactness.py has it in fp32.
    """
    if (device, dtype, exact) == ("cpu", "fp32", True) and "WHOLE_MATRIX" not in os.environ:
        pytest.skip("it takes long; `make test-all` runs it")
    found = found_of(dtype, exact)
    record_property(
        "exactness",
        f"{dtype}: {'bitwise' if found.bitwise else f'numerical, {found.largest:.1e}'}, rows by {found.multiple}",
    )
    assert (device == "cpu" and exact) or measure(demo(dtype, exact), WIDEST, exact) == found
    assert found.bitwise == (found.largest == 0.0) and found.multiple in MULTIPLES
    assert found.largest < (1e-3 if dtype == "fp32" else 0.1)


@pytest.mark.slow
def test_a_difference_that_is_there_is_seen(demo: Demo, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test can fail: rows behind the third of a forward that are off by one part in a thousand."""
    target = demo("fp32", True, "eager")
    forward = target.transformer.forward

    def off(tokens: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        hidden = forward(tokens, *more, **named)
        return torch.cat([hidden[:, :3], hidden[:, 3:] * 1.001], 1)

    monkeypatch.setattr(target.transformer, "forward", off)
    if device == "cpu":
        monkeypatch.setattr(exactness, "WIDE", ())
    found = measure(target, 5, True)
    assert not found.bitwise and found.largest > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_form_that_is_used_says_what_the_eager_one_says(
    demo: Demo, device: str, record_property: Callable[[str, object], None], dtype: str
) -> None:
    """Plain replies to the bit; with drafts, whose rows are filled up, in fp32."""
    used, eager = demo(dtype), demo(dtype, False, "eager")
    record_property("form of steps", f"{dtype}: {used.step_form}")
    for kind, nodes in (("none", 0), ("medusa", 12)):
        asked = QUESTIONS if device == "cuda" else QUESTIONS[:1]
        for question in asked if nodes == 0 or dtype == "fp32" else ():
            said = [
                reply(Session(target, MAKERS[kind](target), Budget(nodes)), prompt_of(target, question), 24, GREEDY)[0]
                for target in (used, eager)
            ]
            assert said[0] == said[1]
    assert used.step_trouble is None


def test_steps_are_recorded_here(demo: Demo, cuda: str, record_property: Callable[[str, object], None]) -> None:
    """The self-check turns on the quickest form; where it does not, it says why."""
    for dtype in ("fp32", "bf16"):
        target = demo(dtype, False, "eager")
        try:
            form, why = find_step_form(target)
        finally:
            target.use_step_form("eager")
        record_property("found", f"{dtype}: {form}, {why or 'all bits are the same'}")
        assert form == "captured", why
