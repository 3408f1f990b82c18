"""Which of the registered models a simulated machine should run."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from each import each
from golden import matching, wording
from machines import BILLION, GIB, LITTLE, PHI, SEVEN, Told, cpu, flat, gpu, machine, unfetched
from properties import given, st

from localspec.choosing import survey
from localspec.choosing.choose import choices
from localspec.choosing.measure import ModelMeasurements, NoMeasurements, ReplyStats
from localspec.choosing.named import DrafterSpec
from localspec.choosing.plans import COMFORTABLE, Precision, run_plans
from localspec.choosing.survey import Recommendation, preferred, recommendations
from localspec.config import Settings
from localspec.errors import DoesNotFit
from localspec.families.family import MixtureSizes
from localspec.models.entries import PACKAGE, Entry
from localspec.models.model import Model, model_of
from localspec.models.registry import TargetCard, known
from localspec.models.shape import Shape

TOY = TargetCard("toy", PACKAGE / "demo", None, "", "", Entry("toy", path=PACKAGE / "demo", quality=99))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    """Register models of these shapes and qualities, none of them downloaded."""

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


def offered(name: str, quality: int, pace: float, thinking: str | None = None, **more: object) -> Recommendation:
    """Return a model of this quality that fits, with `pace` predicted tokens/s."""
    card = unfetched(LITTLE, name)
    assert card.entry is not None
    entry = replace(card.entry, quality=quality, thinking=thinking, gated=more.pop("gated", False))  # type: ignore[arg-type]
    precision = SimpleNamespace(device=SimpleNamespace(type=more.pop("device", "cpu")))
    plan = SimpleNamespace(
        fits=True, speed=pace, bytes=more.pop("bytes", 1), candidate=SimpleNamespace(small=None), precision=precision
    )
    return Recommendation(replace(card, entry=entry), plan, "", quality, pace=pace)  # type: ignore[arg-type]


@each(
    "models, expected",
    [
        ((("large", 60, 8), ("small", 46, 20)), "small"),
        ((("large", 60, 20), ("small", 46, 90)), "large"),
        ((("large", 60, 19), ("small", 46, 90)), "large"),  # quality is weighted smoothly by speed
        ((("large", 60, 10), ("small", 46, 20)), "large"),  # faster than people read
        ((("large", 60, 10, "switch"), ("small", 46, 20)), "small"),  # thinking models write more
        ((("mixture", 62, 14, "always"), ("small", 46, 20)), "mixture"),
        ((("large", 60, 30, "always"), ("small", 46, 20, "no")), "large"),
        ((("large", 60, 1), ("small", 10, 5)), "small"),  # nothing is comfortable
    ],
)
def test_quality_counts_in_full_among_the_comfortable_and_less_below(models, expected) -> None:
    assert taken([offered(*one) for one in models]) == expected


@given(st.floats(0.1, 200), st.floats(0.1, 200), st.integers(1, 99))
def test_of_the_same_quality_the_faster_is_never_passed_over(one: float, other: float, quality: int) -> None:
    assert taken([offered("one", quality, one), offered("other", quality, other)]) == (
        "one" if one >= other else "other"
    )
    better = taken([offered("better", quality + 1, COMFORTABLE), offered("fast", quality, COMFORTABLE + other)])
    assert better == "better"


def test_a_little_better_model_does_not_leave_a_card_idle() -> None:
    on_card = offered("card", 46, 68, device="cuda")
    assert taken([on_card, offered("little better", 48, 30)]) == "card"
    assert taken([on_card, offered("better", 49, 30)]) == "better"


def test_a_free_model_comes_before_a_gated_one_and_what_is_preferred_before_comfort() -> None:
    models = [offered("closed", 90, 50, gated=True), offered("good", 50, 10, bytes=5), offered("small", 20, 99)]
    assert taken(models) == taken(models[1:]) and taken(models[:1]) == "closed"
    assert [taken(models, prefer) for prefer in ("speed", "memory", "quality")] == ["small", "small", "good"]
    assert preferred([]) is None


def test_the_pace_is_the_machines_and_not_that_of_earlier_replies(registry, tmp_path) -> None:
    """The recommendation does not change: measurements of one model are no reason to skip it."""
    registry(good=(PHI, 30))
    (found,) = recommendations(machine(gpu(24)), NoMeasurements(), here=False)
    assert found.plan is not None and found.pace == found.plan.speed
    replies = {"phrases": ReplyStats(1.0, 0, 0)}
    slow = Told({("cuda:0", packing): ModelMeasurements(flat(1.0), replies) for packing in ("none", "nf4")})
    here = replace(unfetched(PHI), path=tmp_path)
    only = replace(machine(gpu(24, packings=("nf4",))), devices=(gpu(24, packings=("nf4",)),))
    one = survey.recommend(Model(here, PHI, PHI.parameters), only, slow, here=True)
    assert one.plan is not None and one.pace > 10 * one.plan.speed


def test_a_model_on_the_cpu_says_why_the_gpu_is_idle(registry) -> None:
    registry(best=(SEVEN, 40))
    (found,) = recommendations(machine(gpu(4), cpu(48)), NoMeasurements(), here=False)
    assert found.plan is not None and found.plan.precision.device.name == "cpu"
    assert found.idle.startswith(wording("cuda_0_is_not_used_best"))
    (found,) = recommendations(machine(gpu(24), cpu(48)), NoMeasurements(), here=False)
    assert found.idle == ""


# By machine: what a user of llama.cpp or Ollama would run there; the registry has all these models. With 32 GB
# this is a mixture of experts on the CPU, unless the graphics card has room for a model that is as good.
SENSIBLE = {
    "GPU 6 GB": (
        machine(gpu(6, bandwidth=336e9), cpu(16, free=11, bandwidth=50e9)),
        "cuda:0",
        ("qwen3-4b-2507", "phi4-mini"),
    ),
    "GPU 8 GB": (
        machine(gpu(8, bandwidth=272e9), cpu(16, free=11, bandwidth=50e9)),
        "cuda:0",
        ("qwen3-8b", "qwen3-4b-2507"),
    ),
    "GPU 8 GB, CPU 32 GB": (
        machine(gpu(8, bandwidth=272e9), cpu(32, free=24, bandwidth=50e9)),
        "cpu",
        ("qwen3-30b-a3b-2507",),
    ),
    "CPU 12 GB": (machine(cpu(12, free=8, bandwidth=40e9)), "cpu", ("qwen3-4b-2507", "qwen3-8b")),
    "CPU 16 GB": (machine(cpu(16, free=10.7, bandwidth=45e9)), "cpu", ("qwen3-4b-2507", "qwen3-8b")),
    "CPU 16 GB, 14 free": (machine(cpu(16, free=14, bandwidth=45e9)), "cpu", ("gpt-oss-20b",)),
    "CPU 24 GB": (machine(cpu(24, free=16, bandwidth=60e9)), "cpu", ("gpt-oss-20b",)),
    "CPU 24 GB, DDR4": (machine(cpu(24, free=16, bandwidth=40e9)), "cpu", ("gpt-oss-20b",)),
    "CPU 24 GB, all free": (machine(cpu(24, free=23, bandwidth=31e9)), "cpu", ("qwen3-30b-a3b-2507",)),
    "GPU 12 GB": (
        machine(gpu(12, bandwidth=360e9), cpu(32, bandwidth=50e9)),
        "cuda:0",
        ("phi4", "qwen3-14b", "qwen3-8b", "gemma-4-12b-it"),
    ),
    "GPU 24 GB": (
        machine(gpu(24, bandwidth=1000e9), cpu(32, bandwidth=50e9)),
        "cuda:0",
        ("qwen3-14b", "gemma-4-12b-it"),
    ),
    "CPU 8 GB": (machine(cpu(8, free=5.3, bandwidth=40e9)), "cpu", ("qwen3-4b-2507", "ministral-3-3b")),
    "CPU 32 GB": (machine(cpu(32, free=22, bandwidth=60e9)), "cpu", ("qwen3-30b-a3b-2507", "gpt-oss-20b")),
}


@pytest.mark.slow
@each("name", [*SENSIBLE])
def test_each_machine_runs_what_an_expert_would_run_there(name: str) -> None:
    where, device, sensible = SENSIBLE[name]
    found = preferred(recommendations(where, NoMeasurements(), here=False))
    assert found is not None and found.plan is not None
    assert found.card.name in sensible and found.plan.precision.device.name == device
    assert found.pace > COMFORTABLE / 2 and not found.gated


@pytest.mark.slow
@each(
    "gib, free, gigabytes, taken, passed_over",
    [
        (12, 8, 40, "qwen3-4b-2507", r"gpt-oss-20b is a better mixture of experts, but it does not fit: it needs .* with half of its experts on the disk, and 6\.8 GiB may be used"),
        (16, 10.7, 45, "qwen3-4b-2507", r"^Better but slower mixtures of experts: gpt-oss-20b \(\d\.\d tokens/s with 2\.\d GiB of its experts on the disk; it thinks before it answers\)\."),
        (32, 22, 60, "qwen3-30b-a3b-2507", r"^Better but slower mixtures of experts: gemma-4-26b-a4b-it \(\d\d\.\d tokens/s; it thinks"),
        (64, 42, 80, "qwen3.5-35b-a3b", ""),
    ],
)  # fmt: skip
def test_a_sentence_says_why_a_better_mixture_is_not_taken(gib, free, gigabytes, taken, passed_over) -> None:
    every = recommendations(machine(cpu(gib, free=free, bandwidth=gigabytes * 1e9)), NoMeasurements(), here=False)
    found = preferred(every)
    assert found is not None and found.card.name == taken
    words = survey.mixture_words(found, every)
    assert re.search(passed_over, words) if passed_over else words == ""
    assert found.plan is not None and ("are read for each token" in found.reason) == (found.plan.active is not None)


def test_a_mixture_with_terms_to_accept_has_no_sentence() -> None:
    every = recommendations(machine(cpu(32, free=22, bandwidth=60e9)), NoMeasurements(), here=False)
    found = preferred(every)
    assert found is not None and "gpt-oss-20b" in survey.mixture_words(found, every)
    gated = [
        replace(one, card=replace(one.card, entry=replace(one.card.entry, gated=True)))
        if one.card.name == "gpt-oss-20b" and one.card.entry
        else one
        for one in every
    ]
    assert "gpt-oss-20b" not in survey.mixture_words(found, gated)


@pytest.mark.slow
def test_each_better_mixture_has_its_sentence() -> None:
    every = recommendations(machine(cpu(24, free=16, bandwidth=60e9)), NoMeasurements(), here=False)
    found = preferred(every)
    assert found is not None and found.card.name == "gpt-oss-20b"
    words = survey.mixture_words(found, every)
    for name in ("gemma-4-26b-a4b-it", "qwen3.5-35b-a3b"):
        assert len(re.findall(rf"{re.escape(name)} \(\d\.\d tokens/s with", words)) == 1
    assert words.count("etter but slower mixtures of experts") == 1 and len(words) < 350
    small = recommendations(machine(cpu(8, free=5.3, bandwidth=40e9)), NoMeasurements(), here=False)
    found = preferred(small)
    assert found is not None
    names = ["gpt-oss-20b", "gemma-4-26b-a4b-it", "qwen3-30b-a3b-2507", "qwen3.5-35b-a3b"]
    words = survey.mixture_words(found, small)
    assert re.match(
        r"gpt-oss-20b is a better mixture of experts, but it does not fit: it needs .* may be used\. ", words
    )
    assert [words.count(name) for name in names] == [1] * 4
    assert re.search(rf" Even more memory is needed by {names[2]}, {names[1]} and {re.escape(names[3])}\.$", words)


@pytest.mark.slow
@each("prefer, decides", [(None, True), ("speed", True), ("memory", False)])
def test_a_sentence_about_a_better_mixture_says_whether_speed_decided(prefer, decides) -> None:
    every = recommendations(machine(cpu(32, free=22, bandwidth=60e9)), NoMeasurements(), here=False)
    found = preferred(every, prefer)
    assert found is not None
    words = survey.mixture_words(found, every, prefer)
    assert "tokens/s" in words and ("Better but slower" in words) is decides
    assert ("that should also run here" in words) is not decides


@each("size, rest", [(10**9, True), (None, False)])
def test_a_small_size_of_a_mixture_s_file_leaves_no_bytes_for_experts_and_not_less(size, rest) -> None:
    card = known()["gpt-oss-20b"]
    assert card.entry is not None and not card.here
    model = model_of(replace(card, entry=replace(card.entry, bytes=size or card.entry.bytes)))
    assert model.block_reads is not None and model.block_reads[0] > 0 and (model.block_reads[1] == 0) is rest


def test_speed_does_not_decide_between_two_comfortable_models() -> None:
    every = recommendations(machine(cpu(32, free=22, bandwidth=900e9)), NoMeasurements(), here=False)
    found = next(one for one in every if one.fits and one.comfort == 1)
    better = replace(next(one for one in every if one.fits and one.plan.active), quality=99, pace=900.0)
    assert survey.mixture_words(found, [found, better]).startswith(
        "Better mixtures of experts that should also run here:"
    )


def test_what_does_not_fit_is_listed_with_what_is_missing_and_never_taken(registry) -> None:
    registry(best=(SEVEN, 40))
    (found,) = recommendations(machine(cpu(4)), NoMeasurements(), here=False)
    assert not found.fits and found.plan is not None and found.plan.bytes > 4 * GIB
    assert found.reason.startswith(wording("does_not_fit_2")) and "GiB" in found.reason
    assert taken([found]) is None and taken([]) is None


def test_a_model_that_lacks_a_megabyte_is_refused_with_two_different_sizes(registry) -> None:
    registry(one=(PHI, 40))
    (fits,) = recommendations(machine(cpu(24)), NoMeasurements(), here=False)
    assert fits.plan is not None
    plans = run_plans(model_of(fits.card), [Precision(cpu(24), "bf16", "int4")], NoMeasurements())
    free = (min(one.bytes for one in plans) - 10**6 + 24 * GIB // 10) / GIB
    (found,) = recommendations(machine(cpu(24, free=free)), NoMeasurements(), here=False)
    needed, usable = re.findall(r"(\d+\.\d+) (?:GiB|may)", found.reason)
    assert not found.fits and float(needed) > float(usable)


def test_an_entry_without_sizes_costs_the_others_nothing(registry) -> None:
    registry(odd=(None, 50), good=(PHI, 30))
    found = recommendations(machine(gpu(24)), NoMeasurements(), here=False)
    assert {one.card.name: one.plan is None for one in found} == {"odd": True, "good": False}
    assert taken(found) == "good" and wording("add_a_shape") in next(one.reason for one in found if one.plan is None)


def test_a_toy_is_taken_only_where_nothing_else_fits() -> None:
    toy = replace(offered("toy", 99, 900), card=TOY)
    assert taken([toy, offered("real", 1, 1)]) == "real" and taken([toy]) == "toy"


def test_a_model_of_the_users_own_has_the_quality_of_its_size(registry) -> None:
    registry(own=(SEVEN, 0), ours=(PHI, 30), theirs=(BILLION, 20))
    qualities = {one.card.name: one.quality for one in recommendations(machine(gpu(24)), NoMeasurements(), here=False)}
    assert qualities["theirs"] < qualities["ours"] < qualities["own"]


def test_an_unregistered_mixture_has_the_quality_of_a_dense_model_between_its_active_and_all_parameters(
    registry,
) -> None:
    mixture = replace(SEVEN, experts=MixtureSizes(64, 4, 1024))
    active = mixture.read(1) + mixture.small
    assert 4 * active < mixture.parameters
    registry(own=(mixture, 0), dense=(SEVEN, 0))
    found = {one.card.name: one for one in recommendations(machine(gpu(96)), NoMeasurements(), here=False)}
    between = (mixture.parameters * active) ** 0.5
    assert found["own"].quality == round(12 * (between / 5e8) ** 0.45)


def test_a_missing_directory_is_reported_as_missing(tmp_path, monkeypatch) -> None:
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
    """If there is only a model whose terms must be accepted, the message says so."""
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
