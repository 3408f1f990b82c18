"""Recordings on the device: they end with caches and are made again, and what they hold has a bound."""

from collections.abc import Callable

import pytest
import torch
from gpu_models import DEMO, GREEDY, MAKERS, QUESTIONS, SAMPLED, prompt_of
from session_replies import reply

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session
from localspec.nn.step_forms import find_step_form
from localspec.nn.target import Target

NODES = 12


@pytest.mark.parametrize("packing", ["nf4", "int8"])
def test_the_self_check_takes_recorded_steps_of_packed_models(cuda: str, packing: str) -> None:
    target = Target.load(DEMO, device=cuda, dtype=torch.bfloat16, quantize=packing)
    assert find_step_form(target) == ("captured", None)


@pytest.fixture
def recorded(cuda: str) -> Target:
    target = Target.load(DEMO, device=cuda, dtype=torch.bfloat16)
    target.use_step_form("captured")
    return target


def test_recordings_end_and_begin_again(recorded: Target) -> None:
    """Caches grow and go, and with them every recording: later ones must still be made."""
    for _ in range(3):
        session = Session(recorded, MAKERS["phrases"](recorded), Budget(NODES))
        reply(session, prompt_of(recorded, QUESTIONS[1]) * 12, 200)
        assert recorded.step_trouble is None and session.cache.recordings  # type: ignore[attr-defined]
        del session


@pytest.mark.parametrize("kind", ["semi", "eagle3", "dflash"])
def test_what_a_drafter_computes_is_recorded(recorded: Target, kind: str) -> None:
    session = Session(recorded, MAKERS[kind](recorded), Budget(NODES))
    for sampling in (GREEDY, SAMPLED):
        _, figures = reply(session, prompt_of(recorded, QUESTIONS[0]), 60, sampling)
        assert figures.drafted > 0 and recorded.step_trouble is recorded.draft_trouble is None


def test_memory_of_recordings_has_a_bound(recorded: Target, record_property: Callable[[str, object], None]) -> None:
    held = []
    for turn in range(6):
        session = Session(recorded, MAKERS["phrases"](recorded), Budget(NODES))
        reply(session, prompt_of(recorded, QUESTIONS[turn % 3]), 120)
        del session
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    record_property("bytes after each reply", held)
    assert held[-1] <= held[2] + 2**21
