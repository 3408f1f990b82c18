"""Which of the registered models a machine should run, on machines that nobody has."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden import matching, wording
from machines import BILLION, GIB, LITTLE, PHI, SEVEN, cpu, gpu, machine, unfetched

from localspec.config import Settings
from localspec.errors import DoesNotFit
from localspec.models.entries import PACKAGE, Entry
from localspec.models.model import Model
from localspec.models.registry import NOWHERE, TargetCard
from localspec.models.shape import Shape
from localspec.policy import survey
from localspec.policy.drafter_spec import DrafterSpec
from localspec.policy.measurements import NoMeasurements
from localspec.policy.ranking import QUICK
from localspec.policy.selection import choices
from localspec.policy.survey import Recommendation, preferred, recommendations

TOY = TargetCard("toy", PACKAGE / "demo", None, "", "", Entry("toy", path=PACKAGE / "demo", quality=99))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    """Registers models of these shapes and qualities, none of them here."""

    def register(**models: tuple[Shape | None, int]) -> None:
        cards = {}
        for name, (shape, quality) in models.items():
            card = unfetched(shape, name)
            assert card.entry is not None
            cards[name] = replace(card, entry=replace(card.entry, quality=quality))
        monkeypatch.setattr(survey, "known", lambda: cards)

    return register


def taken(registered: list[Recommendation], prefer: survey.Prefer | None = None) -> str | None:
    found = preferred(registered, prefer)
    return found and found.card.name


def test_the_best_that_fits_and_is_read_as_fast_as_it_comes(registry) -> None:
    registry(small=(LITTLE, 10), middle=(BILLION, 20), good=(PHI, 30), best=(SEVEN, 40))
    found = recommendations(machine(gpu(24)), NoMeasurements(), here=False)
    assert [one.card.name for one in found] == ["best", "good", "middle", "small"], "the best first"
    assert taken(found) == "best"
    assert taken(recommendations(machine(gpu(4.5), cpu(8)), NoMeasurements(), here=False)) == "good"
    slow = recommendations(machine(cpu(64, bandwidth=12e9)), NoMeasurements(), here=False)
    speeds = {one.card.name: one.plan.speed for one in slow if one.plan}
    assert speeds["good"] < QUICK < speeds["middle"] and taken(slow) == "middle"


def test_what_is_preferred_changes_that_and_nothing_else(registry) -> None:
    registry(small=(LITTLE, 10), middle=(BILLION, 20), good=(PHI, 30), best=(SEVEN, 40))
    slow = recommendations(machine(cpu(64, bandwidth=30e9)), NoMeasurements(), here=False)
    assert [taken(slow, prefer) for prefer in ("speed", "memory", "quality")] == ["small", "small", "best"]
    assert len({id(one.plan) for one in slow}) == 4


def test_where_nothing_is_fast_the_fastest_of_those_that_fit(registry) -> None:
    registry(good=(PHI, 30), best=(SEVEN, 40))
    assert taken(recommendations(machine(cpu(64, bandwidth=2e9)), NoMeasurements(), here=False)) == "good"


def test_what_does_not_fit_is_listed_with_what_is_missing_and_never_taken(registry) -> None:
    registry(best=(SEVEN, 40))
    (found,) = recommendations(machine(cpu(4)), NoMeasurements(), here=False)
    assert not found.fits and found.plan is not None and found.plan.bytes > 4 * GIB
    assert found.reason.startswith(wording("does_not_fit_2")) and "GiB" in found.reason
    assert taken([found]) is None and taken([]) is None


def test_an_entry_without_sizes_costs_the_others_nothing(registry) -> None:
    registry(odd=(None, 50), good=(PHI, 30))
    found = recommendations(machine(gpu(24)), NoMeasurements(), here=False)
    assert {one.card.name: one.plan is None for one in found} == {"odd": True, "good": False}
    assert taken(found) == "good" and wording("add_a_shape") in next(one.reason for one in found if one.plan is None)


def test_a_toy_is_taken_only_where_nothing_else_fits() -> None:
    def offered(card: TargetCard, quality: int) -> Recommendation:
        plan = offers_of(card)
        return Recommendation(card, plan, "", quality)

    def offers_of(card: TargetCard):
        return survey.recommend(
            survey.Model(card, LITTLE, LITTLE.parameters), machine(), NoMeasurements(), here=True
        ).plan

    real = TargetCard("real", NOWHERE, None, "", "", Entry("real", path=Path("somewhere")))
    assert taken([offered(TOY, 99), offered(real, 1)]) == "real"
    assert taken([offered(TOY, 99)]) == "toy"


def test_a_model_of_the_users_own_has_the_quality_of_its_size(registry) -> None:
    registry(own=(SEVEN, 0), ours=(PHI, 30), theirs=(BILLION, 20))
    qualities = {one.card.name: one.quality for one in recommendations(machine(gpu(24)), NoMeasurements(), here=False)}
    assert qualities["theirs"] < qualities["ours"] < qualities["own"]


def test_a_directory_that_is_gone_is_told_as_such(tmp_path, monkeypatch) -> None:
    card = TargetCard("own", tmp_path / "gone", None, "", Entry("own", path=str(tmp_path / "gone")))
    monkeypatch.setattr(survey, "known", lambda: {"own": card})
    (found,) = recommendations(machine(gpu(24)), NoMeasurements(), here=True)
    assert found.plan is None and "gone" in found.reason and "tokenizer" not in found.reason


def test_only_what_is_here_where_that_is_asked(registry) -> None:
    registry(best=(SEVEN, 40))
    assert recommendations(machine(gpu(24)), NoMeasurements(), here=True) == []


def test_the_speedup_is_over_plain_decoding_in_the_same_precision(registry) -> None:
    registry(good=(SEVEN, 40))
    here = machine(cpu(64))
    (found,) = recommendations(here, NoMeasurements(), here=False)
    plan = found.plan
    assert plan is not None and plan.candidate.name != "none" and found.speedup is not None and found.speedup > 1
    model = survey.model_of(found.card)
    alone = [one for one in survey.run_plans(model, [plan.precision], NoMeasurements()) if one.candidate.name == "none"]
    assert [found.speedup] == [pytest.approx(plan.speed / one.speed) for one in alone]
    (none,) = recommendations(machine(cpu(4)), NoMeasurements(), here=False)
    assert none.speedup is None and not none.gated


def test_what_has_a_gated_small_model_to_fetch_needs_its_terms_too(monkeypatch) -> None:
    small = unfetched(LITTLE, "small")
    assert small.entry is not None
    small = replace(small, entry=replace(small.entry, gated=True))
    card = unfetched(SEVEN, draft="small")
    plan = SimpleNamespace(candidate=SimpleNamespace(small=small))
    assert Recommendation(card, plan, "").gated and not Recommendation(card, None, "").gated
    plan = SimpleNamespace(candidate=SimpleNamespace(small=None))
    assert not Recommendation(card, plan, "").gated


def test_where_a_model_does_not_fit_another_is_named_that_anybody_can_fetch(registry, monkeypatch) -> None:
    """Unless there is only one whose terms must be accepted, which is said."""
    cards = {"toy": TOY}
    for name, shape, quality, gated in (("closed", BILLION, 30, True), ("open", LITTLE, 10, False)):
        card = unfetched(shape, name)
        assert card.entry is not None
        cards[name] = replace(card, entry=replace(card.entry, quality=quality, gated=gated))
    monkeypatch.setattr(survey, "known", lambda: cards)
    small = machine(cpu(4))
    with pytest.raises(DoesNotFit, match=matching("or_choose_open_localspec_pull_open")):
        choices(Model(unfetched(SEVEN), SEVEN, SEVEN.parameters), DrafterSpec("none"), Settings(), small)
    del cards["open"]
    with pytest.raises(DoesNotFit, match=matching("localspec_pull_closed_gated_terms")):
        choices(Model(unfetched(SEVEN), SEVEN, SEVEN.parameters), DrafterSpec("none"), Settings(), small)
