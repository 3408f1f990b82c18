"""Several drafters at once on the CPU engine: no text changes, and each one's state stays right."""

from drafters import test_merged
from drafters.test_merged import (  # noqa: F401
    test_a_seed_gives_the_same_text_as_without_a_drafter,
    test_a_stopped_reply_and_the_turns_after_it_are_those_of_the_stock_model,
    test_each_drafts_what_it_would_draft_alone,
    test_random_trees_give_random_trees_and_the_same_text,
    test_sampled_text_has_the_targets_distribution,
    test_three_turns_are_those_of_the_stock_model,
)
from native_models import read_native

test_merged.read = read_native
