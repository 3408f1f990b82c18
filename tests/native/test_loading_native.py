"""What a trained drafter's files may do to a model of the CPU engine: the same as with torch."""

from drafters.test_loading import *  # noqa: F403
