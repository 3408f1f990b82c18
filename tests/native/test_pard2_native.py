"""PARD-2 on the CPU engine: the same plain loop, the same texts."""

from drafters.test_pard2 import (  # noqa: F401
    pair,
    test_a_map_that_is_damaged_or_a_pickle_is_refused,
    test_among_several_drafters_each_gets_the_states_that_it_requested,
    test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own,
    test_files_of_another_target_are_refused,
    test_its_numbers_count_and_what_it_keeps_grows_with_the_text,
    test_only_a_drafter_that_reads_layers_asks_for_their_states,
)
