"""When `auto` takes no drafter: only by figures of a quiet machine, and then it says why."""

from dataclasses import replace

from each import each
from golden import wording
from machines import SEVEN, Told, machine, unfetched

from localspec.config import Settings
from localspec.models.model import Model
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.measurements import ModelMeasurements, ReplyStats
from localspec.policy.ranking import natural_precisions, run_plans, why_none
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


@each(
    "speed, known, key",
    [
        (0.8, (True, True), "phrases_20_slower_measured"),
        (0.8, (True, False), "phrases_20_slower_predicted"),
        (0.8, (False, True), "phrases_20_slower_predicted"),
        (1.0, (True, True), "phrases_gain_too_little_measured"),
        (0.997, (True, True), "phrases_gain_too_little_measured"),
        (1.1, (False, False), "phrases_gain_too_little_predicted"),
    ],
)
def test_the_reason_says_what_is_compared_and_claims_no_measurement_that_was_not_made(speed, known, key) -> None:
    model = Model(unfetched(SEVEN), SEVEN, SEVEN.parameters)
    plans = run_plans(model, natural_precisions(machine().devices[0])[:1], told(busy=False))
    plain, phrases = (next(one for one in plans if one.candidate.name == name) for name in ("none", "phrases"))
    plain = replace(plain, cost_effectiveness=1.0, measured=known[0])
    phrases = replace(phrases, speed=speed * plain.speed, cost_effectiveness=0.7, measured=known[1])
    assert why_none(plain, [plain, phrases]) == wording(key)
    assert why_none(plain, [plain, replace(phrases, cost_effectiveness=1.0)]) == wording("no_drafter_expected_to_pay")
    assert why_none(plain, [plain]) == wording("no_drafter_expected_to_pay")


@each("asked", [{"drafter": "none"}, {"draft_max": 0}])
def test_who_asks_for_none_needs_no_reason(asked: dict[str, object]) -> None:
    assert choose(unfetched(SEVEN), replace(SETTINGS, **asked), machine(), told(busy=False)).off_reason is None
