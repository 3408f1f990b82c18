"""MTP on the CPU engine: the same plain loop, the same texts, in every packing."""

from collections.abc import Callable
from typing import Any

import pytest
from drafters.test_mtp import (  # noqa: F401
    make,
    published,
    stock_layer,
    test_a_long_prompt_is_read_in_parts_and_a_chain_has_no_more_than_is_asked,
    test_a_seed_gives_the_same_ids_with_and_without_it,
    test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own,
    test_without_states_or_nodes_there_is_the_root_alone,
)
from each import each
from session_replies import reply
from tiny_models import RECURRENT, Tiny, prompt_ids

from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.mtp import Drafter


@pytest.mark.slow
@each("packing", ["bf16", "int8", "int4"])
@each("name", RECURRENT)
def test_in_few_bits_it_changes_no_id(tiny: Callable[..., Tiny], tmp_path: Any, name: str, packing: str) -> None:
    model = tiny(name, packing)
    path = published(model.path, tmp_path / "whole", stock_layer(model.stock.config))
    prompt = prompt_ids(17, seed=23)
    for sampling in (Sampling(), Sampling(0.9, seed=7)):
        plain, _ = reply(Session(model.target, Autoregressive(), Budget(0)), prompt, 30, sampling)
        session = Session(model.target, Drafter.from_model(path, model.target, depth=4), Budget(6, branches=False))
        ids, statistics = reply(session, prompt, 30, sampling)
        assert ids == plain and statistics.drafted > 20
