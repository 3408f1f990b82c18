"""ParallelSpec on the CPU engine: a layer or a small model that torch trained drafts there, and no text changes."""

import pytest
from drafters import test_parallelspec
from drafters.test_parallelspec import (  # noqa: F401
    build,
    letters,
    small,
    test_a_memorised_text_is_accepted_almost_whole,
    test_a_model_that_cannot_draft_for_this_target_is_refused_with_the_reason,
    test_a_node_is_foreseen_by_the_token_above_it,
    test_a_pause_is_made_up_for_and_a_budget_of_nothing_costs_nothing,
    test_a_saved_drafter_drafts_the_same,
    test_a_seed_gives_the_same_ids_with_and_without_it,
    test_by_rejection_three_tokens_have_the_stock_models_joint_distribution,
    test_every_draft_rests_on_the_right_rows_whatever_happened_before,
    test_greedy_ids_are_those_of_a_plain_loop_over_the_stock_model,
    test_the_mask_token_and_what_only_one_of_the_two_has_are_never_proposed,
    test_where_the_small_model_is_the_target_itself_its_first_token_is_always_right,
    test_without_a_state_there_is_only_the_root,
)
from native.packings import PACKINGS, assert_plain_text
from native_models import read_native
from tiny_models import FAMILIES, prompt_ids

from localspec.drafters.parallelspec import Drafter

test_parallelspec.read = read_native


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_published_small_model_is_packed_once_and_drafts(tiny, tmp_path, monkeypatch, request, packing):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    target, prompt = tiny(FAMILIES[0], packing).target, prompt_ids(12, seed=4)
    monkeypatch.setattr(target, "stop_tokens", frozenset())
    for _ in range(2):
        drafter = Drafter.from_model(request.getfixturevalue("small"), target)
        assert_plain_text(target, drafter, prompt)
        packed = [file.name for file in tmp_path.rglob("*.packed")]
        assert len(packed) == (packing != "bf16") and all("int8" in name for name in packed)
