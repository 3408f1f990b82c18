"""The models of a chat: installed, available and too large, as in `doctor`, without any measurement."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from golden import wording
from machines import BILLION, LITTLE, PHI, SEVEN, cpu, gpu, machine, unfetched

from localspec.chat import model_list
from localspec.chat.model_list import all_models, in_lines, models_here, named_model, repository
from localspec.choosing import survey
from localspec.choosing.measure import NoMeasurements
from localspec.choosing.survey import recommend
from localspec.errors import NotHere
from localspec.hub.sources import Source
from localspec.machine.machine import Machine
from localspec.models.entries import PublishedDrafter, PublishedLength
from localspec.models.model import model_of
from localspec.models.registry import TargetCard, resolve

NINE = machine(cpu(9))  # GiB


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def registered(monkeypatch):
    """registered(card, …, on=machine): list these models next to the demo model; a measurement fails the test."""

    def show(*cards: TargetCard, on: Machine = NINE) -> None:
        monkeypatch.setattr("localspec.choosing.measure.memory_bandwidth", lambda *_: pytest.fail("it was measured"))
        known = {one.name: one for one in (resolve("demo"), *cards)}
        monkeypatch.setattr(survey, "known", lambda: known)
        monkeypatch.setattr(model_list, "this_machine", lambda bandwidth: on)
        for module in ("choosing.measure", "engine.trials"):
            monkeypatch.setattr(f"localspec.{module}.versions", lambda device: device)

    return show


def gated(card: TargetCard) -> TargetCard:
    assert card.entry is not None
    return replace(card, license="Own terms", entry=replace(card.entry, gated=True, publisher="Somebody"))


@pytest.mark.slow
def test_here_then_what_fits_then_what_does_not(registered):
    huge = replace(SEVEN, num_layers=320)
    registered(unfetched(huge, "huge"), unfetched(BILLION, "billion"), gated(unfetched(SEVEN, "seven")))
    models, measured = all_models(None)
    assert measured and models[:2] == [one for one in models if one.place == "here"]
    places = [one.place for one in models]
    assert places == ["here"] * 2 + ["elsewhere"] * 2 + ["too large"]
    demo, _, billion, seven, large = models
    assert (
        demo.title == "demo"
        and demo.about[0] == "7.61 M parameters"
        and demo.about[1] == "14.5 MiB"
        and "tokens/s" in demo.about[2]
    )
    assert billion.heading == "billion (recommended)", "what is quick enough comes before what is not"
    assert seven.heading == wording("seven_gated_terms_must_accepted")
    assert (seven.place, billion.place, large.recommended) == ("elsewhere", "elsewhere", False)
    assert (
        seven.about[0] == "12.6 GiB download"
        and seven.about[-1] == "Own terms"
        and billion.about[0] == "2.3 GiB download"
    )
    assert re.fullmatch(r"about [\d.]+ tokens/s", billion.about[1])
    assert re.fullmatch(r"1\.\d× faster with drafts", billion.about[2])
    assert not large.usable and re.fullmatch(r"needs [\d.]+ GiB, and 8\.1 GiB may be used", *large.about)


def test_the_better_and_the_more_comfortable_a_model_the_earlier_it_is_listed(registered):
    registered(unfetched(LITTLE, "little"), unfetched(SEVEN, "seven"), unfetched(BILLION, "billion"))
    titles = [one.title for one in all_models(None)[0] if one.place == "elsewhere"]
    assert titles == ["billion", "seven", "little"], "the best is slow on this machine"


def test_a_drafter_that_somebody_publishes_for_what_is_here_can_be_fetched(registered, monkeypatch):
    heads = PublishedDrafter("medusa", Source("org/heads"), accepted=PublishedLength(3.5, 4, "its authors"))
    away = unfetched(PHI, "phi", drafters=(heads,))
    found = recommend(model_of(away), NINE, NoMeasurements(), here=False)
    assert found.drafter == "medusa+phrases"
    here = replace(resolve("demo"), name="phi")
    known = [replace(found, card=here)]
    registered()
    monkeypatch.setattr(model_list, "recommendations", lambda machine, measurements, here, rule: [] if here else known)
    (one,) = [one for one in all_models(None)[0] if one.place == "elsewhere"]
    assert (one.title, one.about[0], one.card) == (
        "phi with medusa+phrases",
        wording("only_its_drafter_to_download"),
        here,
    )


def test_drafters_are_taken_by_the_rule_that_is_set(registered, monkeypatch):
    registered(unfetched(LITTLE, "little"))
    seen = []

    def every(*args, **named):
        seen.append(named.pop("rule"))
        return []

    monkeypatch.setattr(model_list, "recommendations", every)
    all_models(None, rule="memory")
    assert seen == ["memory", "memory"]


@pytest.mark.slow
def test_the_memory_of_the_model_that_answers_is_free_for_another(registered):
    registered(unfetched(PHI, "phi"), on=machine(gpu(24, free=4), cpu(2)))
    assert next(one for one in all_models(None)[0] if one.title == "phi").place == "too large"
    models, _ = all_models(resolve("demo"), ("cuda:0", 18 * 2**30))
    assert next(one for one in models if one.title == "phi").place == "elsewhere"


def test_earlier_measurements_are_used_and_missing_ones_are_mentioned(registered):
    registered(unfetched(PHI, "phi"), on=machine(cpu(24, bandwidth=None)))
    assert all_models(None)[1] is False


def test_the_directory_that_answers_stands_first_and_is_never_too_large(registered, tmp_path):
    registered(on=machine(cpu(0.01)))
    own = replace(resolve("demo"), name="./own", entry=None)
    first, demo = all_models(own)[0][:2]
    assert (first.title, first.place, first.about[-1]) == ("./own", "here", str(own.path))
    assert not [part for part in first.about if "fit" in part]
    assert demo.about[2].startswith(wording("does_not_fit_now_needs")) and demo.usable
    assert [one.title for one in models_here(own)][:2] == ["./own", "demo"]


@pytest.mark.slow
def test_the_facts_of_the_answering_model_are_shown_again(registered):
    registered()
    demo = resolve("demo")
    assert all_models(demo)[0][0].about[2].startswith("about ")
    told = ("61.3 tokens/s", "1.8× faster with drafts")
    assert all_models(demo, ("cpu", 0), told)[0][0].about[2:4] == told


def test_a_name_stands_for_what_is_registered_or_a_repository():
    assert not named_model("qwen3-1.7b").here and named_model("demo").here
    assert named_model("org/name@v1").entry.source == Source("org/name", "v1") and not named_model("org/name").here
    with pytest.raises(NotHere, match="dmeo"):
        named_model("dmeo")
    assert repository("no repository") is None and repository(" org/name ").card.name == "org/name"


def test_the_list_line_by_line(registered):
    registered(unfetched(PHI, "phi"), unfetched(replace(SEVEN, num_layers=320), "huge"))
    demo, draft, heading, phi, large = in_lines(all_models(None)[0], resolve("demo"))
    assert demo.startswith("demo (answers now): 7.61 M parameters · ") and draft.startswith("demo-draft: 1.44 M ")
    assert wording("localspec_pull_name") in heading and phi.startswith("phi (recommended): 7.1 GiB download · about ")
    assert large == wording("these_do_fit_machine_huge")


def test_a_search_looks_at_all_that_is_said(registered):
    registered(gated(unfetched(SEVEN, "seven")))
    models, _ = all_models(None)
    found = [one.title for one in models if one.matches("somebody GATED  tokens/s")]
    assert found == ["seven"] and not [one for one in models if one.matches("seven eight")]
