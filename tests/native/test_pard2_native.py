"""PARD-2 on the CPU engine: the same plain loop, the same texts, in every packing."""

import pytest
from drafters.test_pard2 import (  # noqa: F401
    pair,
    test_a_map_that_is_damaged_or_a_pickle_is_refused,
    test_beside_others_each_gets_the_states_that_it_asked_for,
    test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own,
    test_files_of_another_target_are_refused,
    test_its_numbers_count_and_what_it_keeps_grows_with_the_text,
    test_only_a_drafter_that_reads_layers_asks_for_their_states,
)
from each import each
from native.packings import PACKINGS, assert_plain_text
from tiny_models import FAMILIES, prompt_ids

from localspec.drafters.parallelspec import Drafter


@pytest.mark.slow
@each("packing", PACKINGS)
def test_the_text_is_plain_decodings_in_every_packing(tiny, tmp_path, monkeypatch, packing):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    target, prompt = tiny(FAMILIES[0], packing).target, prompt_ids(12, seed=4)
    monkeypatch.setattr(target, "stop_tokens", frozenset())
    drafter = Drafter.from_model(pair(tmp_path / "small", tiny(FAMILIES[0])), target, depth=4)
    assert_plain_text(target, drafter, prompt)
