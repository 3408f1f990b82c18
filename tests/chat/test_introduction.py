"""The introduction of a model before the first prompt."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from each import each

from localspec.chat.introduction import EXPECTATIONS, STARTERS, TINY, TOY, expected_starters, introduction
from localspec.models import registry
from localspec.models.entries import Entry
from localspec.models.registry import TargetCard
from localspec.quantities import parameters_words


def engine(parameters: int, **choice: Any) -> Any:
    choice = {"dtype": "bf16", "quantize": "none", "device": "cuda:0", "pace": (), "bits": 0.0} | choice
    return SimpleNamespace(parameters=parameters, choice=SimpleNamespace(**choice))


def card(entry: Entry | None = None) -> TargetCard:
    return TargetCard("a-model", Path("/models/a-model"), None, "", entry=entry)


def test_facts_are_size_precision_device_and_pace_where_it_is_known():
    assert introduction(engine(1_720_000_000), card()).facts == "1.7 billion parameters · bf16 · cuda:0"
    pace = ("about 2,437 tokens/s", "1.8× faster with drafts")
    packed = introduction(engine(7_606_528, quantize="int8", device="cpu", pace=pace), card())
    assert packed.facts == "7.6 million parameters · int8 · cpu · about 2,437 tokens/s · 1.8× faster with drafts"
    in_blocks = introduction(engine(1_500_000_000, quantize="blocks", device="cpu", bits=4.84), card())
    assert in_blocks.facts == "1.5 billion parameters · 4.8 bits per weight · cpu"


def test_what_may_be_expected_grows_with_the_model():
    sizes = (50e6, 0.6e9, 3.8e9, 8e9, 70e9)
    told = [introduction(engine(int(size)), card()).expectation for size in sizes]
    assert told == [words for _, words in EXPECTATIONS]


def test_a_model_s_own_prompts_come_before_general_ones():
    assert [introduction(engine(10**9), one).starters for one in (card(), card(Entry("x")))] == [STARTERS] * 2
    assert introduction(engine(int(TINY)), card()).starters == (), (
        "a toy that nobody wrote prompts for answers none of them"
    )
    assert introduction(engine(1), card(Entry("x", starters=("One?",)))).starters == ("One?",)


def test_a_model_that_is_not_loaded_yet_has_those_that_its_size_will_have(monkeypatch):
    assert expected_starters(card(), elsewhere=True) == STARTERS
    assert expected_starters(card(), elsewhere=False) == (), "it is not there, and loading it will tell"
    directory = TargetCard("mine", registry.resolve("demo").path, None, "")
    assert expected_starters(directory, elsewhere=False) == ()
    monkeypatch.setattr("localspec.chat.introduction.TINY", 1)
    assert expected_starters(directory, elsewhere=False) == STARTERS


def test_the_demo_model_is_a_toy_with_prompts_of_its_own():
    demo = introduction(engine(7_606_528), registry.resolve("demo"))
    assert demo.expectation == TOY and len(demo.starters) == 3 and demo.starters != STARTERS


@each(
    "count, words",
    [(999, "999"), (7_606_528, "7.6 million"), (371e6, "371 million"), (999e6, "1.0 billion"), (70e9, "70.0 billion")],
)
def test_parameters_are_described_in_words(count, words):
    assert parameters_words(int(count)) == words
