"""When `auto` takes no drafter: only by figures of a quiet machine, and then it says why."""

from dataclasses import replace

import pytest
from golden import wording
from machines import SEVEN, Told, machine, unfetched

from localspec.config import Settings
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.measurements import ModelMeasurements, ReplyStats
from localspec.policy.selection import choose

STEEP = ForwardCosts((1, 2, 64), (256,), ((0.05, 0.2, 10.0),))  # a second row costs three times the first
SETTINGS = Settings(quantize="int8")


def told(busy: bool) -> Told:
    useless = {"phrases": ReplyStats(1.0, 4.0, 0.0)}  # four nodes a step, and never a right one
    return Told({(machine().devices[0].name, "int8"): ModelMeasurements(STEEP, useless, busy=busy)})


def test_what_a_busy_moment_gave_rules_no_phrases_out() -> None:
    chosen = choose(unfetched(SEVEN), SETTINGS, machine(), told(busy=True))
    assert (chosen.drafter, chosen.off_reason) == ("phrases", None)
    assert choose(unfetched(SEVEN), SETTINGS, machine()).drafter == "phrases", "nor do estimates"


def test_a_choice_of_none_says_why() -> None:
    chosen = choose(unfetched(SEVEN), SETTINGS, machine(), told(busy=False))
    assert chosen.drafter == "none"
    assert chosen.off_reason is not None
    assert chosen.off_reason.startswith(wording("phrases_would_be"))
    assert chosen.off_reason.endswith(wording("slower_than_drafts_measured_here"))


@pytest.mark.parametrize("asked", [{"drafter": "none"}, {"draft_max": 0}])
def test_who_asks_for_none_needs_no_reason(asked: dict[str, object]) -> None:
    assert choose(unfetched(SEVEN), replace(SETTINGS, **asked), machine(), told(busy=False)).off_reason is None
