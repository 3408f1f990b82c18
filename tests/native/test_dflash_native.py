"""DFlash on the CPU engine: the same plain loop, the same texts, in every packing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafters.test_dflash import (  # noqa: F401
    FORMS,
    bent_twice,
    check,
    made,
    plain_loop,
    test_a_long_prompt_is_read_in_parts,
    test_a_seed_gives_the_same_ids_with_and_without_it,
    test_beside_others_each_gets_the_states_that_it_asked_for,
    test_by_rejection_three_tokens_have_the_stock_models_joint_distribution,
    test_without_features_or_nodes_there_is_the_root_alone,
    watched,
)
from session_replies import reply
from slow_cases import covering
from tiny_models import FAMILIES, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, FAMILIES, fast=4), ids=str)
def test_every_block_is_that_of_a_plain_loop_and_the_text_the_targets_own(
    tiny: Callable[..., Tiny], tmp_path: Path, name: str, form: dict[str, Any]
) -> None:
    model, prompt = tiny(name), prompt_ids(17, seed=23)
    drafter, head = made(model, tmp_path, **form)
    seen = watched(drafter)
    ids, statistics = reply(Session(model.target, drafter, Budget(7)), prompt, 10)
    assert ids == stock_reply(model.stock, prompt, 10) and statistics.drafted > 0
    if bent_twice(name, form):
        return
    for committed, logits in (seen[0], seen[-1]):
        check(plain_loop(head), model, committed, logits)


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["int8", "int4", "bf16"])
def test_the_text_is_plain_decodings_in_every_packing(
    tiny: Callable[..., Tiny], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    model, prompt = tiny(FAMILIES[0], packing), prompt_ids(12, seed=4)
    monkeypatch.setattr(model.target, "stop_tokens", frozenset())
    drafter, _ = made(model, tmp_path, **FORMS[1])
    for sampling in (Sampling(), Sampling(0.8, top_p=0.95, seed=1)):
        plain, _ = reply(Session(model.target, Autoregressive(), Budget(0)), prompt, 16, sampling)
        ids, statistics = reply(Session(model.target, drafter, Budget(6)), prompt, 16, sampling)
        assert ids == plain and statistics.drafted > 0
