"""Measurements are stored with the conditions for which they are valid, only from idle moments; all else is ignored."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import write_checkpoint
from each import each
from golden import wording
from machines import LITTLE, cpu, flat, machine, unfetched
from properties import given, st
from reply_statistics import said

from localspec.choosing import measure
from localspec.choosing.choose import choose
from localspec.choosing.measure import (
    COSTS,
    FADING,
    LEAST_TOKENS,
    READINGS,
    REPLIES,
    MeasurementCache,
    Measurements,
    ModelMeasurements,
    Quantity,
    ReplyStats,
    model_subject,
    replies_subject,
    reply_stats,
    with_reply,
)
from localspec.choosing.survey import preferred, recommendations
from localspec.config import Settings
from localspec.decoding.measuring import finished
from localspec.engine.model_profile import ModelProfile
from localspec.events import Memory, Reporter
from localspec.machine.hardware import physical_cores
from localspec.models.registry import TargetCard, resolve
from localspec.store.database import StoreTrouble
from localspec.store.store import Store
from localspec.weights.fingerprint import Identity
from localspec.weights.recipe import as_draft

SUMS = [200.0, 100.0, 400.0, 2.0, 10.0, 1.0, 3e9, 1e9]
LENGTH = Quantity("length", lambda value: value if isinstance(value, int) else None, int)
FORM = ("cpu", "bf16", "none")


@pytest.fixture
def card(tmp_path: Path) -> TargetCard:
    return TargetCard("mine", write_checkpoint(tmp_path / "model"), None, "")


def known(store: Store | None, *form: object) -> Measurements:
    return Measurements(MeasurementCache(store), *form, quiet=True)  # type: ignore[arg-type]


def weights(card: TargetCard) -> str:
    return Identity(card.path).weights


def measured(cache: MeasurementCache, value: int) -> int:
    def measure_it(cores: int):
        yield cores
        return value

    return finished(cache.measuring(LENGTH, "a table", measure_it))


@pytest.mark.parametrize(("idle", "keeps"), [((1, 1), True), ((0, 1), False), ((1, 0), False), ((0, 0), False)])
def test_a_busy_moment_serves_this_process_and_is_not_kept(store: Store, monkeypatch, idle, keeps) -> None:
    looks = iter([physical_cores() - 1 + one for one in idle])
    monkeypatch.setattr(measure, "IdleCores", lambda: lambda: next(looks))
    assert measured(MeasurementCache(store), 5) == 5
    assert (MeasurementCache(store).recall(LENGTH, "a table") == 5) == keeps


@each("passed, slept", [(0.0, 0.3), (0.2, 0.1), (5.0, 0.0)])
def test_other_programs_are_watched_for_a_while_before_the_machine_counts_as_idle(monkeypatch, passed, slept) -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(measure, "IdleCores", lambda: lambda: physical_cores() - (now[0] > 100.05))
    cache = MeasurementCache(None)
    now[0] += passed
    assert not cache.idle and now[0] == pytest.approx(100 + passed + slept)


def test_a_value_of_another_form_is_ignored_and_trouble_is_reported_unless_silent(store, monkeypatch) -> None:
    store.measurements.remember("length", "a table", "long")
    notices: list[str] = []
    cache = MeasurementCache(store, Reporter(notices.append))
    assert cache.recall(LENGTH, "a table") is None

    def full(*_: object) -> None:
        raise StoreTrouble("The disk is full.")

    monkeypatch.setattr(store.measurements, "remember", full)
    cache.remember(LENGTH, "a table", 5, silent=True)
    cache.remember(LENGTH, "a table", 5)
    assert notices == [wording("the_disk_is_full")]
    monkeypatch.setattr(Store, "read_only", True)
    cache.remember(LENGTH, "a table", 5)
    assert len(notices) == 1, "a store that can only be read is not written"


def test_costs_are_of_weights_form_context_version_and_machine_and_replies_of_less(monkeypatch) -> None:
    usual = ("a" * 40, *FORM, False, None)
    others = [("b" * 40, *usual[1:]), (*usual[:2], "fp32", *usual[3:]), (*usual[:4], True, None), (*usual[:5], 512)]
    costs = {model_subject(*one) for one in (usual, *others)}
    replies = {replies_subject(*one[:4]) for one in (usual, *others)}
    assert (len(costs), len(replies)) == (5, 3), "what replies brought holds for any form and context"
    monkeypatch.setattr(measure, "__version__", "99")
    costs |= {model_subject(*usual)}
    replies |= {replies_subject(*usual[:4])}
    assert (len(costs), len(replies)) == (6, 3), "and for later versions"
    monkeypatch.setattr(measure, "versions", lambda device: f"{device} of another machine")
    costs |= {model_subject(*usual), model_subject(usual[0], "cuda:0", *usual[2:])}
    assert len(costs) == 8 and replies_subject(*usual[:4]) not in replies


def test_what_was_kept_of_a_model_is_found_in_the_same_precision_only(store: Store, card: TargetCard) -> None:
    costs = flat(0.05)
    store.measurements.remember("costs", model_subject(weights(card), *FORM, False, None), costs.as_list())
    kept = {"phrases": SUMS, "s3d": SUMS[:6], "medusa": "odd", "semi": [-1.0, *SUMS[1:]]}
    store.measurements.remember(REPLIES.name, replies_subject(weights(card), *FORM), kept)
    found = known(store).of(card, *FORM)
    assert found == ModelMeasurements(costs, {"phrases": ReplyStats(2.0, 4.0, 0.2, 0.1, 3 * 10**9, 10**9, SUMS[0])})
    assert known(store).of(card, "cpu", "bf16", "int8") == ModelMeasurements()
    write_checkpoint(card.path, shapes={"a": [4, 11]})
    assert known(store).of(card, *FORM) == ModelMeasurements(), "other weights are another model"
    assert known(None).of(card, *FORM) == known(store).of(unfetched(), *FORM) == ModelMeasurements()
    (card.path / "model.safetensors").write_bytes(b"damaged")
    assert known(store).of(card, *FORM) == ModelMeasurements()


def test_what_a_draft_model_costs_in_its_form_says_nothing_of_the_model_as_it_answers(store: Store) -> None:
    choice, cache = choose(resolve("demo"), Settings(drafter="none")), MeasurementCache(store)
    ModelProfile.of(replace(choice, drafts=True), cache).remember(COSTS, flat(0.05))
    forms = choice.quantize, as_draft(choice.quantize)
    found = [known(store).of(choice.target, choice.device, choice.dtype, form).costs is not None for form in forms]
    assert found == [False, True]


def test_costs_of_the_form_that_is_requested_come_first_and_the_usual_ones_serve(store: Store, card) -> None:
    forms = {(False, None): flat(0.05), (False, 8192): flat(0.06), (True, None): flat(0.07), (True, 8192): flat(0.08)}
    for number, (form, costs) in enumerate(forms.items()):
        about_it = model_subject(weights(card), *FORM, *form)
        store.measurements.remember("costs", about_it, costs.as_list())
        assert known(store, *form).of(card, *FORM).costs == costs
        others = (known(store, *other).of(card, *FORM).costs for other in forms)
        assert number or all(other == costs for other in others), "the usual one serves them all"
    assert known(store, True, 512).of(card, *FORM).costs == forms[True, None]


@each("kept", [None, 7, "x", [], [1, 2], {"phrases": None}, {"phrases": {}}])
def test_nonsense_in_the_store_is_nothing(store: Store, card: TargetCard, kept: object) -> None:
    store.measurements.remember(REPLIES.name, replies_subject(weights(card), *FORM), kept)
    store.measurements.remember("costs", model_subject(weights(card), *FORM, False, None), kept)
    assert known(store).of(card, *FORM) == ModelMeasurements()


@pytest.fixture
def readings(monkeypatch) -> list[float]:
    found = [5e9, 9e9, 3e9, 99e9]
    monkeypatch.setattr(measure, "memory_bandwidth", lambda device: found.pop(0))
    monkeypatch.setattr(measure, "IdleCores", lambda: physical_cores)
    return found


def test_the_highest_of_a_few_readings_is_the_bandwidth_from_then_on(store: Store, readings) -> None:
    def ask() -> float | None:
        found = Measurements(MeasurementCache(store))
        assert found.bandwidth("cpu") == found.bandwidth("cpu") == found.recalled_bandwidth("cpu")
        return found.bandwidth("cpu")

    assert known(store).bandwidth("cpu") is None and known(store).recalled_bandwidth("cpu") is None
    assert [ask() for _ in range(READINGS + 2)] == [5e9, 9e9, 9e9, 9e9, 9e9] and readings == [99e9]
    assert known(store).bandwidth("cpu") == 9e9
    assert Measurements(MeasurementCache(store)).bandwidth("cuda:7") is None, "there is no such device"


def test_the_highest_of_a_few_readings_is_a_disk_s_speed_only_for_a_model_that_is_here(
    store: Store, card, monkeypatch
) -> None:
    speeds, read = [3e8, 5e8, 1e8, 9e9], list[Path]()
    monkeypatch.setattr(measure, "disk_bandwidth", lambda file: read.append(file) or speeds.pop(0))

    def ask() -> float | None:
        found = Measurements(MeasurementCache(store))
        assert found.disk(card) == found.disk(card)
        return found.disk(card)

    assert known(store).disk(card) is None
    assert [ask() for _ in range(READINGS + 1)] == [3e8, 5e8, 5e8, 5e8] and speeds == [9e9]
    assert read[0].suffix == ".safetensors" and known(store).disk(card) == 5e8
    monkeypatch.setattr(measure, "mount_of", lambda file: "another disk")
    assert known(store).disk(card) is None
    assert Measurements(MeasurementCache(store)).disk(unfetched(LITTLE)) is None


def test_the_largest_part_of_a_model_is_read(card, tmp_path, monkeypatch) -> None:
    parts = [tmp_path / name for name in "abc"]
    for part, size in zip(parts, (1, 3, 2), strict=True):
        part.write_bytes(bytes(size))
    monkeypatch.setattr(measure, "weight_files", lambda path: parts)
    monkeypatch.setattr(measure, "disk_bandwidth", lambda file: 3e8 if file == parts[1] else None)
    assert Measurements(MeasurementCache(None)).disk(card) == 3e8


@pytest.mark.slow
@each("kept", [None, [30e9]])
def test_a_reading_of_a_busy_moment_is_not_stored_and_recommends_no_other_model(store, monkeypatch, kept) -> None:
    def recommended(found: Measurements) -> str:
        one = preferred(recommendations(machine(cpu(16, bandwidth=found.bandwidth("cpu"))), found, here=False))
        assert one is not None
        return one.card.name

    if kept:
        store.measurements.remember("bandwidth", measure.versions("cpu"), kept)
    before = recommended(known(store))
    monkeypatch.setattr(measure, "memory_bandwidth", lambda device: 2e9)
    monkeypatch.setattr(measure, "IdleCores", lambda: lambda: physical_cores() - 1)
    assert recommended(Measurements(MeasurementCache(store))) == before
    assert store.measurements.recall("bandwidth", measure.versions("cpu")) == kept
    monkeypatch.setattr(measure, "IdleCores", lambda: physical_cores)
    assert (recommended(Measurements(MeasurementCache(store))) == before) == bool(kept), "a quiet moment counts"


@each(
    "kept, expected",
    [([5e9, 6e9], 6e9), ([7], 7), (5e9, None), ([0], None), ([-1.0], None), ("fast", None), ([], None)],
)
def test_only_a_list_of_possible_readings_serves(store: Store, kept: object, expected: float | None) -> None:
    store.measurements.remember("bandwidth", measure.versions("cpu"), kept)
    assert known(store).bandwidth("cpu") == expected


def test_a_memory_that_cannot_be_measured_costs_a_sentence(store: Store, monkeypatch) -> None:
    def fail(device: str) -> float:
        raise RuntimeError("no room\nat all")

    monkeypatch.setattr(measure, "memory_bandwidth", fail)
    notices: list[str] = []
    found = Measurements(MeasurementCache(store, Reporter(notices.append)))
    assert found.bandwidth("cpu") is None is found.bandwidth("cpu")
    assert len(notices) == 1 and wording("could_not_be_measured") in notices[0] and "\n" not in notices[0]


def stats(sums: object) -> ReplyStats | None:
    """Return the figures of these sums, as they are read from the store."""
    found = REPLIES.parse({"phrases": sums}) or {}
    return reply_stats(found["phrases"]) if found else None


@each(
    "sums",
    [None, 7, {}, [], SUMS[:6], [*SUMS, 1.0, 1.0], [LEAST_TOKENS - 1, *SUMS[1:]], [200.0, 0, *SUMS[2:]],
     [*SUMS[:4], 0, *SUMS[5:]], [*SUMS[:4], "10", *SUMS[5:]], [*SUMS[:4], True, *SUMS[5:]],
     [*SUMS[:2], -1.0, *SUMS[3:]], [*SUMS[:3], float("nan"), *SUMS[4:]]],
)  # fmt: skip
def test_too_few_tokens_or_anything_else_say_nothing(sums: object) -> None:
    assert stats(sums) is None


def test_a_reply_is_added_to_its_own_drafter_and_earlier_ones_fade() -> None:
    held = Memory(target=10, drafter=2, cache=1, peak=20)
    one = said(range(41), steps=20, drafted=60, draft=0.5, verify=2.0, beside=0.25, memory=held)
    first = with_reply({}, "phrases", one)
    assert first == {"phrases": [40, 20, 60, 0.5, 2.0, 0.25, 20, 2, 1]}, "the first token belongs to prefill"
    second = with_reply({**first, "s3d": SUMS}, "phrases", one)
    assert second["s3d"] == SUMS
    assert second["phrases"][:6] == pytest.approx([(1 + FADING) * new for new in (40, 20, 60, 0.5, 2, 0.25)])


@given(st.lists(st.integers(13, 100), min_size=1, max_size=6))
def test_the_lowest_peak_counts_that_is_of_this_model(peaks: list[int]) -> None:
    kept: dict[str, list[float]] = {}
    for peak in peaks:
        kept = with_reply(kept, "phrases", said(range(41), memory=Memory(target=10, drafter=2, cache=1, peak=peak)))
    own = [peak for peak in peaks if peak <= measure.OTHERS * 13]
    assert kept["phrases"][6:] == [min(own, default=0), 2, len(peaks)]


def test_after_many_equal_replies_the_figures_are_those_of_one() -> None:
    one = said(range(41), steps=20, drafted=60, draft=0.5, verify=2.0, beside=0.25)
    kept: dict[str, list[float]] = {}
    for count in range(200):
        kept = with_reply(kept, "phrases", one)
        assert (stats(kept["phrases"]) is None) == (count < 2), "two are 78 tokens"
    found = stats(kept["phrases"])
    assert found is not None
    assert (found.length, found.nodes, found.drafting, found.rest) == pytest.approx((2.0, 3.0, 0.25, 0.125))
