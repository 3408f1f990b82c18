"""The target's own layers on the CPU engine: no text changes, and the probe measures what drafts."""

from drafters import test_layers
from drafters.test_layers import (  # noqa: F401
    test_a_draft_goes_on_from_its_likeliest_token,
    test_a_draft_leaves_the_cache_as_it_was,
    test_a_draft_of_infinite_numbers_is_none,
    test_a_seed_gives_the_same_text_as_without_a_drafter,
    test_a_stopped_reply_and_the_turns_after_it_are_those_of_the_stock_model,
    test_rows_that_are_read_at_once_are_a_draft_that_was_right_so_far,
    test_sampled_text_has_the_targets_distribution,
    test_the_probe_measures_what_drafts,
    test_three_turns_are_those_of_the_stock_model,
    test_with_all_layers_every_draft_is_accepted_whole,
    test_without_nodes_there_is_no_work_and_at_the_end_of_the_context_drafts_are_short,
)
from native_models import read_native

test_layers.read = read_native
