"""ParallelSpec on the CPU engine: a layer or a small model that torch trained drafts there, and no text changes."""

from collections.abc import Callable
from pathlib import Path

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
    test_without_a_state_the_root_stands_alone,
)
from native_models import read_native
from session_replies import reply
from tiny_models import FAMILIES, Tiny, prompt_ids

from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.parallelspec import Drafter

test_parallelspec.read = read_native
Make = Callable[..., Tiny]


@pytest.mark.parametrize("packing", ["int8", "int4", "bf16"])
def test_a_published_small_model_is_packed_once_and_drafts(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, packing: str
) -> None:
    """In int8 beside a model of few bits, from a file in the cache directory; its text is plain decoding's."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    target, prompt = tiny(FAMILIES[0], packing).target, prompt_ids(12, seed=4)
    monkeypatch.setattr(target, "stop_tokens", frozenset())
    for _ in range(2):
        drafter = Drafter.from_model(request.getfixturevalue("small"), target)
        for sampling in (Sampling(), Sampling(0.8, top_p=0.95, seed=1)):
            plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 16, sampling)
            ids, statistics = reply(Session(target, drafter, Budget(6)), prompt, 16, sampling)
            assert ids == plain and statistics.drafted > 0
        packed = [file.name for file in tmp_path.rglob("*.packed")]
        assert len(packed) == (packing != "bf16") and all("int8" in name for name in packed)
