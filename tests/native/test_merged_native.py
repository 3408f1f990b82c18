"""Several drafters at once on the CPU engine: no text changes, and each one's state stays right."""

from drafters.test_merged import (  # noqa: F401
    test_each_drafts_the_same_as_by_itself,
    test_random_trees_give_random_trees_and_the_same_text,
)
