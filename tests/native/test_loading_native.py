"""A trained drafter's files on the CPU engine: the same tests as with torch."""

from drafters.test_loading import *  # noqa: F403
