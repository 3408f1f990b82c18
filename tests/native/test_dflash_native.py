"""DFlash on the CPU engine: the same plain loop, the same texts."""

import pytest
from drafters.test_dflash import (  # noqa: F401
    FORMS,
    bent_twice,
    check,
    made,
    plain_loop,
    test_a_long_prompt_is_read_in_parts,
    test_among_several_drafters_each_gets_the_states_that_it_requested,
    watched,
)
from session_replies import reply
from slow_cases import covering
from tiny_models import FAMILIES, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, FAMILIES, fast=4), ids=str)
def test_every_block_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, tmp_path, name, form):
    model, prompt = tiny(name), prompt_ids(17, seed=23)
    drafter, head = made(model, tmp_path, **form)
    seen = watched(drafter)
    ids, statistics = reply(Session(model.target, drafter, Budget(7)), prompt, 10)
    assert ids == stock_reply(model.stock, prompt, 10) and statistics.drafted > 0
    if bent_twice(name, form):
        return
    for committed, logits in (seen[0], seen[-1]):
        check(plain_loop(head), model, committed, logits)
