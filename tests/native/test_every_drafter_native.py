"""What holds for every drafter, on the CPU engine."""

from drafters.test_every_drafter import *  # noqa: F403
