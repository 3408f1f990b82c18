"""S3D on the CPU engine: adapters and skipped layers that torch trained draft there, and no text changes."""

from drafters import test_s3d
from drafters.test_s3d import (  # noqa: F401
    test_a_small_text_that_was_learned_is_accepted_almost_whole,
    test_a_stopped_reply_and_the_turns_after_it_are_those_of_the_stock_model,
    test_confidence_is_judged_by_what_the_target_said,
    test_rejection_draws_from_what_the_rows_foresee,
    test_with_all_layers_the_first_guess_is_always_the_targets_own_pick,
)
from native_models import read_native

test_s3d.read = read_native
