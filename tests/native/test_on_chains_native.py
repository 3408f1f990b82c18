"""Trained drafters on the CPU engine for a target that reads only chains: the same texts, in every packing."""

import pytest
from drafters.test_on_chains import (  # noqa: F401
    FORMS,
    SAMPLING,
    SHARED,
    assert_drawn_by_rejection,
    on_chains,
    test_every_draft_is_a_chain_and_the_text_the_stock_models,
    test_trained_on_a_text_it_foresees_it_and_every_text_is_plain_decodings,
    trained,
)
from drafting import drafting
from session_replies import reply
from slow_cases import covering
from tiny_models import RECURRENT, prompt_ids

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "packing"),
    [
        (SHARED, "semi", "int8"),
        *covering(RECURRENT, FORMS, ["int8", "int4"], fast=1),
        *((SHARED, form, "bf16") for form in ("medusa", "eagle3")),
    ],
)
def test_in_few_bits_it_foresees_a_text_and_changes_no_id(tiny, name, form, packing):
    """Trained by torch on the text of the packed model, whose states differ a little from those it learnt from."""
    target, prompt = tiny(name, packing).target, prompt_ids(23, seed=23)
    plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 30)
    steps = 60 if form == "parallelspec, model" else 30  # which begins with nothing of the target
    drafter = drafting(trained(target, form, [*prompt, *plain], 23, steps), target)
    ids, statistics = reply(on_chains(target, 8, drafter), prompt, 30)
    assert ids == plain and statistics.acceptance_length > (1.3 if packing == "int4" else 2)
    for sampling in ("drawn", "top-p"):
        plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 30, SAMPLING[sampling])
        assert reply(on_chains(target, 8, drafter), prompt, 30, SAMPLING[sampling])[0] == plain


@pytest.mark.slow
@pytest.mark.parametrize("form", ["medusa", "semi", "eagle3", "parallelspec"])
def test_by_rejection_three_tokens_have_the_stock_models_joint_distribution(tmp_path, own_read, form):
    assert_drawn_by_rejection(tmp_path, own_read, form)
