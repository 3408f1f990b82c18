"""A subset of the target's layers on the CPU engine: no text changes, and the probe measures acceptance."""

from drafters.test_layers import (  # noqa: F401
    test_a_draft_continues_from_its_likeliest_token,
    test_a_draft_leaves_the_cache_as_it_was,
    test_infinite_numbers_give_no_draft,
    test_rows_that_are_read_at_once_are_a_draft_that_was_right_so_far,
    test_the_probe_measures_what_drafts,
    test_with_all_layers_every_draft_is_accepted_whole,
    test_without_nodes_there_is_no_work_and_at_the_end_of_the_context_drafts_are_short,
)
