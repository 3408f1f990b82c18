"""What was measured is kept by what it is valid for, under names that earlier versions used, and nothing else is believed."""

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import write_checkpoint
from each import each
from golden import wording
from machines import flat, unfetched
from reply_statistics import said

from localspec.checkpoint import revision
from localspec.config import Settings
from localspec.engine import recalled_measurements
from localspec.engine.measurement_cache import MeasurementCache
from localspec.engine.model_profile import ModelProfile
from localspec.engine.recalled_measurements import (
    COSTS,
    FADING,
    LEAST_TOKENS,
    REPLY_SUMS,
    RecalledMeasurements,
    device_subject,
    model_subject,
    reply_stats,
    with_reply,
)
from localspec.models.draft_role import as_draft
from localspec.models.registry import TargetCard, resolve
from localspec.policy.measurements import ModelMeasurements, ReplyStats
from localspec.policy.prediction import Rates
from localspec.policy.selection import choose
from localspec.store.store import Store

SUMS = [200.0, 100.0, 400.0, 2.0, 10.0, 1.0]  # tokens, steps, nodes, seconds of drafting, of verification


@pytest.fixture
def card(tmp_path: Path) -> TargetCard:
    return TargetCard("mine", write_checkpoint(tmp_path / "model"), None, "")


def known(store: Store | None, *asked: object) -> RecalledMeasurements:
    return RecalledMeasurements(MeasurementCache(store), *asked)


def stats(sums: object) -> ReplyStats | None:
    """What these sums say, as they are read from the store."""
    found = REPLY_SUMS.parse({"phrases": sums}) or {}
    return reply_stats(found["phrases"]) if found else None


def about(card: TargetCard, quantize: str = "none") -> str:
    return model_subject(revision(card.path), "cpu", "bf16", quantize, False, None)


# -- what it is valid for --------------------------------------------------------------------------------------------------


def test_a_measurement_of_a_model_is_of_its_weights_form_context_version_and_machine(monkeypatch) -> None:
    usual = ("a" * 40, "cpu", "bf16", "none", False, None)
    others = [
        ("b" * 40, *usual[1:]), (*usual[:2], "fp32", *usual[3:]), (*usual[:3], "int8", *usual[4:]),
        (*usual[:4], True, None), (*usual[:5], 512),
    ]  # fmt: skip
    found = {model_subject(*usual), *(model_subject(*other) for other in others)}
    monkeypatch.setattr(recalled_measurements, "__version__", "99")
    found.add(model_subject(*usual))
    monkeypatch.setattr(recalled_measurements, "versions", lambda device: f"{device} of another machine")
    found |= {model_subject(*usual), model_subject(usual[0], "cuda:0", *usual[2:])}
    assert len(found) == 9 and all("\n" not in one for one in found)
    assert "exact" in model_subject(*usual[:4], True, None) and "512" in model_subject(*usual[:5], 512)


def test_a_measurement_of_a_device_is_of_its_precision_version_and_machine(monkeypatch) -> None:
    found = {
        device_subject("cpu", "bf16", "none"),
        device_subject("cpu", "fp32", "none"),
        device_subject("cpu", "bf16", "int8"),
    }
    monkeypatch.setattr(recalled_measurements, "__version__", "99")
    found.add(device_subject("cpu", "bf16", "none"))
    monkeypatch.setattr(recalled_measurements, "versions", lambda device: f"{device} of another machine")
    found |= {device_subject("cpu", "bf16", "none"), device_subject("cuda:0", "bf16", "none")}
    assert len(found) == 6


# -- a store ---------------------------------------------------------------------------------------------------------------


def test_without_a_store_nothing_is_known(card: TargetCard) -> None:
    nothing = known(None)
    assert nothing.of(card, "cpu", "bf16", "none") == ModelMeasurements()
    assert nothing.rates("cpu", "bf16", "none") is None is nothing.bandwidth("cpu")


def test_what_was_kept_of_a_model_is_found_in_the_same_form_only(store: Store, card: TargetCard) -> None:
    costs = flat(0.05)
    store.measurements.remember("costs", about(card), costs.as_list())
    store.measurements.remember(
        REPLY_SUMS.name,
        about(card),
        {"phrases": SUMS, "phrases, sampled": SUMS, "s3d": [1.0, 1.0, 1.0, 1.0, 1.0], "medusa": "odd"},
    )
    found = known(store).of(card, "cpu", "bf16", "none")
    said = ReplyStats(2.0, 4.0, 0.2, 0.1, tokens=200)
    assert found == ModelMeasurements(costs, {"phrases": said, "phrases, sampled": said})
    assert known(store).of(card, "cpu", "bf16", "int8") == ModelMeasurements()
    assert known(store).of(card, "cpu", "fp32", "none") == ModelMeasurements()
    write_checkpoint(card.path, shapes={"a": [4, 11]})
    assert known(store).of(card, "cpu", "bf16", "none") == ModelMeasurements(), "other weights are another model"


def test_the_form_and_context_that_are_asked_for_come_first_and_the_usual_ones_serve(
    store: Store, card: TargetCard
) -> None:
    def of(*asked: object) -> ModelMeasurements:
        return known(store, *asked).of(card, "cpu", "bf16", "none")

    forms = {(False, None): flat(0.05), (False, 8192): flat(0.06), (True, None): flat(0.07), (True, 8192): flat(0.08)}
    for number, (form, costs) in enumerate(forms.items()):
        about_it = model_subject(revision(card.path), "cpu", "bf16", "none", *form)
        store.measurements.remember("costs", about_it, costs.as_list())
        assert of(*form).costs == costs
        assert number or all(of(*other).costs == costs for other in forms), "the usual one serves them all"
    assert of(True, 512).costs == forms[True, None] and of(False, 512).costs == forms[False, None]


def test_of_a_model_that_is_not_here_or_damaged_nothing_is_known(store: Store, card: TargetCard) -> None:
    assert known(store).of(unfetched(), "cpu", "bf16", "none") == ModelMeasurements()
    (card.path / "model.safetensors").write_bytes(b"damaged")
    assert known(store).of(card, "cpu", "bf16", "none") == ModelMeasurements()


@each("kept", [None, 7, "x", [], [1, 2], {"phrases": None}, {"phrases": {}}])
def test_nonsense_in_the_store_is_nothing(store: Store, card: TargetCard, kept: object) -> None:
    store.measurements.remember(REPLY_SUMS.name, about(card), kept)
    store.measurements.remember("costs", about(card), kept)
    store.measurements.remember(wording("rates_wide_slim_model"), device_subject("cpu", "bf16", "none"), kept)
    found = known(store)
    assert found.of(card, "cpu", "bf16", "none") == ModelMeasurements()
    assert found.rates("cpu", "bf16", "none") is None


def test_rates_and_bandwidth_of_a_device_are_found(store: Store) -> None:
    rates = Rates((1, 8), (1e-10, 2e-10), (1e-4, 1e-4))
    store.measurements.remember(
        wording("rates_wide_slim_model"), device_subject("cpu", "bf16", "int8"), rates.as_list()
    )
    found = known(store)
    assert found.rates("cpu", "bf16", "int8") == rates and found.rates("cpu", "bf16", "none") is None
    for kept, told in ((5e9, 5e9), (7, 7.0), (0, None), (-1.0, None), ("fast", None), (None, None), ([5e9], None)):
        store.measurements.remember("bandwidth", recalled_measurements.versions("cpu"), kept)
        assert found.bandwidth("cpu") == told


# -- sums of replies -------------------------------------------------------------------------------------------------------


def test_sums_say_tokens_and_nodes_a_step_and_drafting_beside_verification() -> None:
    assert stats(SUMS) == ReplyStats(length=2.0, nodes=4.0, drafting=0.2, beside=0.1, tokens=200)
    assert stats([LEAST_TOKENS, 100, 0, 0, 10, 0]) == ReplyStats(1.0, 0.0, 0.0, tokens=LEAST_TOKENS), (
        "drafts that were cut to nothing count"
    )


@each(
    "sums",
    [
        None,
        7,
        {},
        [],
        SUMS[:4],
        [*SUMS, 1.0],
        [LEAST_TOKENS - 1, *SUMS[1:]],
        [200.0, 0, *SUMS[2:]],
        [*SUMS[:4], 0, 1.0],
        [*SUMS[:4], "10", 1.0],
        [*SUMS[:4], True, 1.0],
        SUMS[:5],
        [200.0, 100.0, -1.0, 2.0, 10.0, 1.0],
        [*SUMS[:3], float("nan"), 10.0, 1.0],
        tuple(SUMS),
    ],
)
def test_too_few_tokens_or_anything_else_say_nothing(sums: object) -> None:
    assert stats(sums) is None


def test_a_reply_is_added_to_its_own_drafter_and_earlier_ones_fade() -> None:
    one = said(range(41), steps=20, drafted=60, draft=0.5, verify=2.0, beside=0.25)
    first = with_reply({}, "phrases", one)
    assert first == {"phrases": [40, 20, 60, 0.5, 2.0, 0.25]}, "the first token belongs to prefill"
    ended = replace(one, token_ids=one.token_ids[:-1])
    assert with_reply({}, "phrases", ended) == first, "the token that ends a reply stands in no text, but was decoded"
    second = with_reply({**first, "s3d": SUMS}, "phrases", one)
    assert second["s3d"] == SUMS and second["phrases"] == pytest.approx(
        [(1 + FADING) * new for new in (40, 20, 60, 0.5, 2, 0.25)]
    )
    assert first == {"phrases": [40, 20, 60, 0.5, 2.0, 0.25]}, "what was given is left as it was"
    for nonsense in ("x", [1], {"phrases": "x"}, {"phrases": [1]}):
        assert with_reply(REPLY_SUMS.parse(nonsense) or {}, "phrases", one) == first


def test_after_many_replies_alike_the_figures_are_those_of_one() -> None:
    one = said(range(41), steps=20, drafted=60, draft=0.5, verify=2.0, beside=0.25)
    kept: dict[str, list[float]] = {}
    for count in range(200):
        kept = with_reply(kept, "phrases", one)
        assert (stats(kept["phrases"]) is None) == (count < 2), "two are 78 tokens"
    assert stats(kept["phrases"]) == ReplyStats(
        *map(pytest.approx, (2.0, 3.0, 0.25, 0.125)), tokens=kept["phrases"][0]
    ), "beside few tokens what was foreseen counts, too"
    assert kept["phrases"][0] == pytest.approx(40 / (1 - FADING), rel=1e-3), "it does not grow for ever"


def test_what_a_draft_model_costs_in_its_form_says_nothing_of_the_model_as_it_answers(store: Store) -> None:
    choice, cache = choose(resolve("demo"), Settings(drafter="none")), MeasurementCache(store)
    ModelProfile.of(replace(choice, drafts=True), cache).remember(COSTS, flat(0.05))
    found = [
        RecalledMeasurements(cache).of(choice.target, choice.device, choice.dtype, quantize).costs is not None
        for quantize in (choice.quantize, as_draft(choice.quantize))
    ]
    assert found == [False, True]
