"""Recorded computations of drafters' rows: the same as computing them each time, whatever was computed before."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from recorded_operations import Graph
from tiny_models import FAMILIES, Tiny

from localspec.families.architecture import TransformerConfig
from localspec.nn.recording import MOST_RECORDINGS
from localspec.nn.row_attention import TorchAttention
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
OUTPUTS = 5


@pytest.fixture
def target(tiny: Make, recorded: type[Graph]) -> Target:
    loaded = Target.load(tiny(FAMILIES[0]).path)
    loaded.use_step_form("captured")
    return loaded


class Sums:
    """A row's sum with one of the rows that another input holds, and how often that was computed by Python."""

    def __init__(self) -> None:
        self.computed, self.wrong = 0, False

    def __call__(self, ids: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.computed += 1
        found = others[ids[:, 0]] + ids[:, 1:]
        return found, found * 2


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(100, (count, OUTPUTS), generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.slow
def test_as_many_rows_as_there_are_whatever_came_before(target):
    sums = Sums()
    function = target.compute.recorded(sums)
    for seed, (count, others) in enumerate([(5, 3), (8, 4), (1, 1), (6, 3), (64, 2), (5, 4), (2, 1), (65, 3), (3, 70)]):
        ids = target.compute.integers([(row % others, seed + row) for row in range(count)])
        there = rows(others, seed)
        found, twice = function(ids, there)
        expected = torch.stack([there[row % others] + seed + row for row in range(count)])
        assert torch.equal(found, expected) and torch.equal(twice, expected * 2), (count, others)
    before = sums.computed
    function(target.compute.integers([(2, 0)] * 3), rows(4))
    assert sums.computed == before + 2, "computed once, and recorded"
    function(target.compute.integers([(1, 0)] * 4), rows(3, 9))
    assert sums.computed == before + 2, "which is filled up to the same shape"


def test_the_most_recordings_are_kept_of_what_was_played_lately(target, recorded):
    function, sizes = target.compute.recorded(Sums()), (1, 2, 4, 8, 16, 32)
    first, second, *others, last = list(product(sizes, sizes))[: MOST_RECORDINGS + 1]

    def call(count: int, there: int) -> int:
        function(target.compute.integers([(0, 0)] * count), rows(there))
        return recorded.made

    made = [call(*shape) for shape in (first, second, *others, first)][-1]
    assert call(*last) == made + 1, "one too many: the second goes"
    assert call(*first) == made + 1
    assert call(*second) == made + 2


def test_nothing_is_recorded_in_another_form(tiny, recorded):
    for form in ("eager", "static"):
        target, sums = Target.load(tiny(FAMILIES[0]).path), Sums()
        target.use_step_form(form)  # type: ignore[arg-type]
        function = target.compute.recorded(sums)
        for _ in range(3):
            function(target.compute.integers([(0, 1)] * 3), rows(2))
        assert sums.computed == 3
    assert not recorded.made


def test_a_failed_recording_is_reported_computed_eagerly_and_does_not_affect_the_target(target, recorded):
    def looks(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (ids * (2 if bool((ids > 1).any()) else 3),)

    function, made = target.compute.recorded(looks), recorded.made
    for last, expected in ((1, [3, 3, 3]), (5, [2, 2, 10]), (1, [3, 3, 3])):
        (found,) = function(target.compute.integers([[1], [1], [last]]))
        assert found[:, 0].tolist() == expected
    assert recorded.made == made + 1 and "not permitted" in str(target.draft_trouble)
    assert target.step_trouble is None and target.compute.recorder.active
    target.use_step_form("captured")
    assert target.draft_trouble is None, "another model may be recorded"


def test_a_recording_that_plays_other_numbers_is_not_used(target, monkeypatch):
    replay = Graph.replay

    def off(self: Graph) -> None:
        replay(self)
        self.operations[-1][1][0].add_(1)  # the last copy

    monkeypatch.setattr(Graph, "replay", off)
    function = target.compute.recorded(Sums())
    ids, others = target.compute.integers([(0, 1), (1, 2)]), rows(2)
    for _ in range(2):
        assert torch.equal(function(ids, others)[1], 2 * (others + torch.tensor([[1.0], [2.0]])))
    assert "other results than" in str(target.draft_trouble)


def test_nan_and_inf_are_recorded_too(target):
    function = target.compute.recorded(Sums())
    found, _ = function(target.compute.integers([(0, 1), (1, 2)]), rows(2) * float("nan"))
    assert found.isnan().all() and target.draft_trouble is None


def test_where_memory_is_short_it_is_computed_and_not_tried_again(target, recorded, monkeypatch):
    def none_left(*_: Any, **__: Any) -> Any:
        recorded.made += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    function, graph = target.compute.recorded(Sums()), torch.cuda.graph
    monkeypatch.setattr(torch.cuda, "graph", none_left)
    ids, others = target.compute.integers([(0, 1), (1, 2), (0, 3)]), rows(2)
    for _ in range(3):
        assert len(function(ids, others)[0]) == 3
    assert recorded.made == 1 and target.draft_trouble is None
    monkeypatch.setattr(torch.cuda, "graph", graph)
    function(ids[:1], others)
    assert recorded.made > 1, "another shape may have room"


class Story:
    """Recorded attention and plain attention over the same sequence of texts and drafts."""

    def __init__(self, target: Target, plain: Target) -> None:
        self.sizes: TransformerConfig = target.compute.target.sizes
        self.attentions = [one.compute.attention(self.sizes, None, {}) for one in (target, plain)]
        self.functions = [
            one.compute.recorded(self.over(attention), attention)
            for one, attention in zip((target, plain), self.attentions, strict=True)
        ]
        self._chance = torch.Generator().manual_seed(3)

    @staticmethod
    def over(attention: TorchAttention) -> Callable[..., tuple[torch.Tensor, ...]]:
        def function(qkv: torch.Tensor, *places: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (attention(qkv, *places),)

        return function

    def read(
        self, positions: Sequence[int], seen: Sequence[Sequence[int]] | None = None, window: int | None = None
    ) -> None:
        channels = (self.sizes.num_heads + 2 * self.sizes.num_kv_heads) * self.sizes.head_dim
        qkv = torch.randn(len(positions), channels, generator=self._chance)
        found = [
            function(qkv, *attention.reserve_rows(positions, seen, window))[0]
            for function, attention in zip(self.functions, self.attentions, strict=True)
        ]
        assert found[0].shape == found[1].shape
        torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)

    def forget(self, length: int) -> None:
        for attention in self.attentions:
            attention.truncate(length)


@pytest.mark.slow
def test_attention_is_the_same_through_drafts_and_growth(tiny, target, recorded):
    story = Story(target, Target.load(tiny(FAMILIES[0]).path))
    (ours, _), text = story.attentions, 0
    for turn in range(24):
        new = (1, 5, 70, 2, 1, 33)[turn % 6]
        story.read(range(text, text + new))
        text += new
        story.read([text, text], [[text], [text]])  # two candidates, and below them three
        story.read([text + 1] * 3, [[text, text], [text, text], [text, text + 1]])
        story.read([text + 2], [[text, text + 1, text + 4]], window=text // 2 + 1)
        story.forget(text if turn % 5 else max(text := text - 4, 0))
    assert ours.grown > 1 and recorded.played > recorded.made > 6 and target.draft_trouble is None


def test_what_was_recorded_over_smaller_memory_is_not_played(tiny, target):
    story = Story(target, Target.load(tiny(FAMILIES[0]).path))
    story.read(range(5))
    story.read(range(5, 400))
    story.forget(0)  # for another text, most of which is read without a recording
    story.read(range(70))
    story.read(range(70, 75))
    assert story.attentions[0].grown == 2


def test_rows_that_were_not_requested_leave_no_trace(target):
    attention = target.compute.attention(target.compute.target.sizes, None, {})
    function = target.compute.recorded(Story.over(attention), attention)
    channels = (target.compute.target.sizes.num_heads + 2 * attention._sizes.num_kv_heads) * attention._sizes.head_dim
    chance = torch.Generator().manual_seed(1)
    for start in (0, 5, 10):
        function(torch.randn(5, channels, generator=chance), *attention.reserve_rows(range(start, start + 5)))
    before = attention._cache[:, :, :15].clone()
    places, mask = attention.reserve_rows(range(15, 18))
    assert mask.any(1).all(), "of nothing that a row sees the mean is no number"
    function(torch.randn(3, channels, generator=chance), places, mask)
    assert torch.equal(attention._cache[:, :, :15], before) and attention.length == 18


def test_nan_and_inf_leave_no_trace(tiny, target):
    """A draft with NaN loses only itself, and no later draft, although zero times NaN is NaN."""
    for one in (target, Target.load(tiny(FAMILIES[0]).path)):
        attention = one.compute.attention(one.compute.target.sizes, None, {})
        function = one.compute.recorded(Story.over(attention), attention)
        channels = (attention._sizes.num_heads + 2 * attention._sizes.num_kv_heads) * attention._sizes.head_dim
        function(torch.ones(5, channels), *attention.reserve_rows(range(5)))
        (none,) = function(torch.full((4, channels), float("nan")), *attention.reserve_rows(range(5, 9)))
        assert none.isnan().all()
        attention.truncate(5)
        (good,) = function(torch.ones(3, channels), *attention.reserve_rows(range(5, 8)))
        assert good.isfinite().all()
