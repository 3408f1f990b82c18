"""What drafts bring depends on how replies are decoded: it is kept, recalled and foreseen by that."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from each import each
from machines import LITTLE, SEVEN, Told, cpu, flat, machine, trained, unfetched

import localspec
from localspec.config import Settings
from localspec.models.drafter_cards import DrafterCard, read_drafter
from localspec.models.model import model_of
from localspec.models.registry import TargetCard
from localspec.policy.candidates import (
    DRAWN_SHARE,
    PHRASES,
    CostInputs,
    DrafterCandidate,
    DraftModelEstimate,
    candidates,
    reply_key,
)
from localspec.policy.decoding_kinds import DecodingKind, asked_kind, decoding_kind, kept_as
from localspec.policy.measurements import ModelMeasurements, ReplyStats
from localspec.policy.prediction import Rates
from localspec.policy.selection import choose

RATES = Rates((1, 64), (1e-12, 4e-12), (1e-4, 1e-4))
AT = CostInputs(SEVEN, flat(0.05), RATES, "bf16", (2, 2), 4096, {})
DEMO = Path(localspec.__file__).parent / "demo"
TABLE = (Path(__file__).parents[2] / "docs" / "figures" / "drafter-table.md").read_text("utf-8")
SMALL = DraftModelEstimate(unfetched(LITTLE, name="small"), 10**7, flat(0.004, slope=0.25))
HEADS = trained("medusa", 10**8, 0.8)
DRAWN = replace(AT, decoding="sampled")


def found(at: CostInputs, *here: DrafterCard, pair: bool = False) -> dict[str, DrafterCandidate]:
    every = candidates(unfetched(SEVEN), at, list(here), SMALL if pair else None, pair)
    return {one.name: one for one in every}


def lengths(at: CostInputs, *here: DrafterCard, pair: bool = False) -> dict[str, float]:
    every = found(at, *here, pair=pair).items()
    return {name: round(one.acceptance.length(99), 4) for name, one in every if one.acceptance}


def of_table(part: str, drafter: str) -> float:
    """Tokens a step with 16 nodes, greedily or at temperature 0.7, as docs/figures/drafter-table.md has it."""
    text = TABLE.partition(f"## {part}\n")[2].partition("Walltime")[0]
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {drafter} |"))
    return float(line.split("|")[5])


# -- kinds -----------------------------------------------------------------------------------------------------------------


def test_a_rule_has_no_effect_on_greedy_replies_and_what_the_maker_says_serves_where_nobody_asks() -> None:
    assert [decoding_kind(*how) for how in ((0, "exact"), (0.7, "exact"), (0.7, "typical"), (0.1, "rejection"))] == [
        "greedy", "sampled", "typical", "rejection",
    ]  # fmt: skip
    assert asked_kind(Settings(), 0.6) == "sampled" == asked_kind(Settings(temperature=0.7), 0.0)
    assert asked_kind(Settings(), 0.0) == "greedy" == asked_kind(Settings(temperature=0.0), 0.6)
    assert kept_as("phrases", "greedy") != kept_as("phrases", "sampled")


@each(
    "said, temperature",
    [
        ({}, 0.7),
        ({"do_sample": False}, 0.0),
        ({"temperature": 0.7}, 0.7),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": 0.6}, 0.6),
    ],
)
def test_a_model_says_at_what_temperature_it_is_sampled(tmp_path: Path, said: dict, temperature: float) -> None:
    shutil.copytree(DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("drafters"))
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(said))
    assert model_of(TargetCard("m", tmp_path / "model", None, "")).temperature == temperature


# -- what is foreseen ------------------------------------------------------------------------------------------------------


def test_phrases_that_may_not_be_drawn_are_foreseen_to_bring_less_than_greedily() -> None:
    greedy, drawn = found(AT)["phrases"].acceptance, found(DRAWN)["phrases"].acceptance
    assert greedy is PHRASES and drawn is not None
    assert drawn.gains == pytest.approx([DRAWN_SHARE * gain for gain in PHRASES.gains])
    assert found(replace(AT, decoding="typical"))["phrases"].acceptance is PHRASES, "which accepts what is likely"
    assert found(replace(AT, decoding="rejection"))["phrases"].acceptance == drawn


def test_what_was_measured_greedily_foresees_the_phrases_of_drawn_replies() -> None:
    """On the demo: the figures of docs/figures/drafter-table.md."""
    greedily = ReplyStats(of_table("Greedy", "phrases"), 2.0, 0.0)
    told = lengths(replace(DRAWN, replies={"phrases": greedily}))["phrases"]
    drawn = of_table("Temperature 0.7", "phrases")
    assert told == pytest.approx(drawn, rel=0.1) and told < greedily.length
    assert told - 1 == pytest.approx(drawn - 1, rel=0.1), "tokens a step are mostly the one that comes without drafts"


@each("kind", ["medusa", "parallelspec", "s3d", "semi"])
def test_drafters_that_know_the_draw_bring_as_much_of_it(kind: str) -> None:
    """Nearly: on the demo, whose cards tell of greedy replies; with what phrases bring there."""
    phrases = ReplyStats(of_table("Temperature 0.7", "phrases"), 2.0, 0.0)
    at = replace(DRAWN, replies={kept_as("phrases", "sampled"): phrases})
    brought = found(at, read_drafter(DEMO / "drafters" / kind))
    for name in (kind, f"{kind}+phrases"):
        acceptance = brought[name].acceptance
        assert acceptance is not None
        assert acceptance.length(16) == pytest.approx(of_table("Temperature 0.7", name), rel=0.1), name


# -- what was measured -----------------------------------------------------------------------------------------------------


def test_replies_of_the_kind_that_is_asked_for_come_first() -> None:
    key = reply_key("medusa", (HEADS,), None)
    replies = {key: ReplyStats(3.0, 8, 0.1), kept_as(key, "sampled"): ReplyStats(2.5, 8, 0.1)}
    replies |= {"phrases": ReplyStats(1.9, 8, 0.0), "phrases, sampled": ReplyStats(1.1, 8, 0.0)}
    told = {kind: lengths(replace(AT, replies=replies, decoding=kind), HEADS) for kind in _kinds()}
    assert told["greedy"] == {"phrases": 1.9, "medusa": 3.0, "medusa+phrases": 3.9}
    assert told["sampled"] == {"phrases": 1.1, "medusa": 2.5, "medusa+phrases": 2.6}
    assert told["rejection"] == told["sampled"], "until there are some, the nearest"
    assert (told["typical"]["phrases"], told["typical"]["medusa"]) == (1.9, 2.5)


def _kinds() -> tuple[DecodingKind, ...]:
    return ("greedy", "sampled", "rejection", "typical")


def test_where_none_is_known_of_a_kind_the_other_serves_those_that_know_the_draw() -> None:
    key, both = reply_key("medusa", (HEADS,), None), reply_key("medusa+phrases", (HEADS,), None)
    greedily = {key: ReplyStats(3.0, 8, 0.1), both: ReplyStats(9.0, 8, 0.1)}
    told = lengths(replace(DRAWN, replies=greedily), HEADS)
    assert told["medusa"] == pytest.approx(1 + 2 * DRAWN_SHARE), "a part of it: the likeliest is not always drawn"
    assert told["medusa+phrases"] == pytest.approx(told["medusa"] + told["phrases"] - 1)
    drawn = {kept_as(key, "sampled"): ReplyStats(2.5, 8, 0.1), "phrases, sampled": ReplyStats(1.1, 2, 0.0)}
    assert lengths(replace(AT, replies=drawn), HEADS)["medusa"] == 2.5
    assert found(replace(AT, replies=drawn), HEADS)["phrases"].acceptance is PHRASES


def test_what_a_search_decoded_again_was_greedy() -> None:
    again = {reply_key(name, (), SMALL.card): ReplyStats(2.0, 4.0, 0.25) for name in ("draft_model", "ouroboros")}
    greedy, drawn = (lengths(replace(at, replays=again), pair=True) for at in (AT, DRAWN))
    assert greedy["draft_model:small"] == greedy["ouroboros:small"] == 2.0
    assert drawn["draft_model:small"] == pytest.approx(1 + DRAWN_SHARE)
    assert 1 < drawn["ouroboros:small"] < 2.0, "less, and not what is published of other pairs"


# -- what is chosen --------------------------------------------------------------------------------------------------------


@each("temperature, taken", [(0.0, "phrases"), (0.7, "none")])
def test_auto_takes_what_pays_at_the_temperature_that_is_asked_for(temperature: float, taken: str) -> None:
    replies = {"phrases": ReplyStats(1.6, 4.0, 0.1), "phrases, sampled": ReplyStats(1.1, 4.0, 0.3)}
    known = Told({("cpu", "int8"): ModelMeasurements(flat(0.1, slope=0.02), replies)})
    choice = choose(
        unfetched(SEVEN), Settings(temperature=temperature, quantize="int8"), machine(cpu(48, bandwidth=100e9)), known
    )
    assert choice.drafter == taken and "measured here" in choice.reason
