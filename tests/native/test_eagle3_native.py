"""EAGLE-3 on the CPU engine: the same plain loop, the same texts."""

from drafters.test_eagle3 import (  # noqa: F401
    FORMS,
    eagle,
    test_a_draft_vocabulary_that_the_model_does_not_have_is_refused,
    test_a_long_prompt_is_read_in_parts_and_a_chain_goes_as_deep_as_it_may,
    test_among_several_drafters_each_gets_the_states_that_it_requested,
    test_drawn_chains_say_what_each_node_was_drawn_from,
    test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own,
    test_trained_on_a_text_it_foresees_nearly_all_of_it,
    test_what_is_saved_drafts_as_before,
)
