"""Medusa on the CPU engine: heads that torch trained draft there as they do in torch, and no text changes."""

from drafters import test_medusa
from drafters.test_medusa import (  # noqa: F401
    demo,
    test_a_chain_is_the_likeliest_token_of_each_head,
    test_a_long_prompt_is_read_in_chunks_and_the_last_one_gives_the_state,
    test_a_static_tree_has_the_shape_of_its_accuracies_and_the_tokens_of_this_step,
    test_an_untrained_head_is_the_targets_own,
    test_by_rejection_trees_are_drawn_and_nothing_is_learned,
    test_confidence_is_judged_by_what_was_committed_at_its_depth,
    test_drawn_text_is_proposed_with_the_noise_that_the_target_will_meet,
    test_greedy_text_is_that_of_the_stock_model,
    test_the_demo_model_says_what_it_always_says,
    test_turns_abandoned_streams_and_stops_within_a_path,
    test_what_is_behind_a_rewind_is_neither_drafted_from_nor_judged,
    test_what_was_saved_drafts_the_same,
)
from native_models import read_native

test_medusa.read = read_native
