"""Drafters of a target in NF4, as on a GPU: their matrices are packed as the target's, and the text stays the same."""

from importlib.util import find_spec

import pytest
import torch
from gpu_models import DEMO, MAKERS, QUESTIONS, prompt_of
from session_replies import reply

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.nn.linear import Linear
from localspec.nn.linear_bitsandbytes import NF4Linear
from localspec.nn.target import Target

pytestmark = pytest.mark.skipif(not find_spec("bitsandbytes"), reason="no bitsandbytes")


@pytest.fixture(scope="module")
def target() -> Target:
    """Return a target packed by bitsandbytes' kernels for CPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.nn.target.linear_class", lambda *given: NF4Linear)
        patch.setattr("localspec.nn.target.lm_head_class", lambda *given: Linear)
        return Target.load(DEMO, dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa", "eagle3", "parallelspec"])
def test_the_text_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, target: Target, kind: str) -> None:
    dense = MAKERS[kind](target)
    monkeypatch.setitem(vars(target.compute), "_packs", True)
    drafter, accepted = MAKERS[kind](target), []
    assert drafter.nbytes < dense.nbytes
    for question in QUESTIONS[:2]:
        prompt = prompt_of(target, question)
        plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 40)
        ids, figures = reply(Session(target, drafter, Budget(12)), prompt, 40)
        assert ids == plain
        accepted.append(figures.acceptance_length)
    assert max(accepted) > 1.5
