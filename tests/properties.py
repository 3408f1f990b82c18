"""Hypothesis without time limits, which even a fast function can exceed on a busy machine."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

__all__ = ["example", "given", "st"]

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
