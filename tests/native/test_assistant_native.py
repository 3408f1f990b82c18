"""Gemma 4's assistants on the CPU engine: the same plain loop, the same texts, in every packing."""

import numpy as np
import pytest
from distributions import assert_drawn_from
from drafters.test_assistant import (  # noqa: F401
    FORMS,
    GEMMAS,
    Plain,
    check,
    made,
    modes,
    test_a_seed_gives_the_same_ids_with_and_without_it,
    test_it_drafts_for_a_text_that_is_read_in_parts_and_again,
    unlearning,
)
from drafting import watched
from each import each
from native.packings import PACKINGS, assert_plain_text
from session_replies import reply
from six_words import PROMPT, drawn, joint_chances, six_words_gemma4
from slow_cases import covering
from tiny_models import prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.errors import LocalspecError


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, GEMMAS, fast=3), ids=str)
def test_every_tree_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, tmp_path, name, form):
    model, prompt = tiny(name), prompt_ids(17, seed=23)
    drafter, head = made(model, tmp_path, **form)
    unlearning(drafter)
    seen = watched(drafter)
    ids, statistics = reply(Session(model.target, drafter, Budget(7)), prompt, 10)
    assert ids == stock_reply(model.stock, prompt, 10) and statistics.drafted > 0
    for committed, tree in (seen[0], seen[-1]):
        check(Plain(head), model, committed, tree)


@pytest.mark.slow
def test_by_rejection_three_tokens_have_the_stock_models_joint_distribution(tmp_path, own_read):
    letters, sampling = six_words_gemma4(tmp_path, own_read), Sampling(1.0, rule="rejection")
    drafter, _ = made(letters, tmp_path)
    found = drawn(Session(letters.target, drafter, Budget(5)), PROMPT, sampling, 400)
    assert found.accepted > 80
    assert_drawn_from(joint_chances(letters.stock, PROMPT, sampling), found.counts)


@pytest.mark.slow
@each("packing", PACKINGS)
def test_the_text_is_plain_decodings_in_every_packing(tiny, tmp_path, monkeypatch, packing):
    model, prompt = tiny(GEMMAS[0], packing), prompt_ids(12, seed=4)
    monkeypatch.setattr(model.target, "stop_tokens", frozenset())
    drafter, _ = made(model, tmp_path, **FORMS[1])
    assert_plain_text(model.target, drafter, prompt)


def test_a_cache_that_lends_no_such_keys_is_refused(tiny, tmp_path):
    model = tiny(GEMMAS[0])
    drafter, _ = made(model, tmp_path)
    rows = np.zeros((2, 24), np.float32)
    with pytest.raises(LocalspecError, match="lends no keys"):
        drafter._layers.read_borrowed(rows, model.target.cache(8), 3)
    other = tiny("llama-many-heads-biases-llama3").target
    cache = other.cache(8)
    cache.assume(4)
    with pytest.raises(LocalspecError, match="cannot read the keys of layer"):
        drafter._layers.read_borrowed(rows, cache, 4)
    with pytest.raises(LocalspecError, match="has no cache"):
        drafter._layers.cache(4)
