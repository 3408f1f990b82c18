"""DSpark on the CPU engine: the same plain loop, the same texts, in every packing."""

import pytest
from drafters.test_dspark import (  # noqa: F401
    FORMS,
    Spark,
    check,
    made,
    test_both_layouts_draft_the_same,
    test_what_is_not_believed_is_not_proposed_deep,
    unlearning,
)
from drafting import watched
from each import each
from native.packings import PACKINGS, assert_plain_text
from session_replies import reply
from slow_cases import covering
from tiny_models import FAMILIES, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, FAMILIES, fast=4), ids=str)
def test_every_tree_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, tmp_path, name, form):
    model, prompt = tiny(name), prompt_ids(17, seed=23)
    drafter, head = made(model, tmp_path, **form)
    unlearning(drafter)
    seen, loop = watched(drafter), Spark(head)
    ids, statistics = reply(Session(model.target, drafter, Budget(7)), prompt, 10)
    assert ids == stock_reply(model.stock, prompt, 10) and statistics.drafted > 0
    for committed, tree in (seen[0], seen[-1]):
        check(loop, model, committed, tree)


@pytest.mark.slow
@each("packing", PACKINGS)
def test_the_text_is_plain_decodings_in_every_packing(tiny, tmp_path, monkeypatch, packing):
    model, prompt = tiny(FAMILIES[0], packing), prompt_ids(12, seed=4)
    monkeypatch.setattr(model.target, "stop_tokens", frozenset())
    drafter, _ = made(model, tmp_path, **FORMS[0])
    assert_plain_text(model.target, drafter, prompt)
