"""MTP on the CPU engine: the same plain loop, the same texts, in every packing."""

import pytest
from drafters.test_mtp import (  # noqa: F401
    make,
    published,
    stock_layer,
    test_a_long_prompt_is_read_in_parts_and_a_chain_has_no_more_than_is_asked,
    test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own,
)
from each import each
from native.packings import PACKINGS, assert_plain_text
from slow_cases import covering
from tiny_models import RECURRENT, prompt_ids

from localspec.drafters.mtp import Drafter


@pytest.mark.slow
@each("name, packing", covering(RECURRENT, PACKINGS))
def test_in_few_bits_it_changes_no_id(tiny, tmp_path, name, packing):
    model = tiny(name, packing)
    path = published(model.path, tmp_path / "whole", stock_layer(model.stock.config))
    prompt = prompt_ids(17, seed=23)
    assert_plain_text(model.target, Drafter.from_model(path, model.target, depth=4), prompt, 30)
