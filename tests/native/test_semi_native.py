"""Semi-autoregressive drafting on the CPU engine: drafters trained in torch draft there, and no text changes."""

from drafters import test_semi
from drafters.test_semi import (  # noqa: F401
    test_a_seed_gives_the_text_of_plain_decoding,
    test_drawn_trees_have_one_shape_and_say_what_each_node_was_drawn_from,
    test_every_node_is_what_the_equations_give_behind_its_path,
    test_the_calibration_judges_what_hung_on_the_path_that_was_accepted,
    test_trained_on_a_text_it_foresees_nearly_all_of_it_and_the_text_is_the_stock_models,
    test_turns_an_abandoned_stream_and_a_rewind_leave_the_right_state,
    test_untrained_it_changes_no_text_whatever_it_says,
    test_what_was_accepted_in_part_leaves_the_state_of_the_last_accepted_row,
    test_without_a_state_or_nodes_there_is_only_the_root,
)
from native_models import read_native

test_semi.read = read_native
