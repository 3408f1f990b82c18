"""The cost of a forward, measured on a simulated clock."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from clocks import Clock
from each import each
from recorded_operations import Graph
from tiny_models import FAMILIES, Tiny

from localspec.choosing.cost import ForwardCosts
from localspec.choosing.fit import STATIC_ROWS
from localspec.decoding.measuring import finished
from localspec.decoding.tree import DraftTree
from localspec.engine import model_profile
from localspec.engine.model_profile import FILLED_UP, ROWS, timing_forwards
from localspec.nn.cache import KVCache
from localspec.nn.target import Target


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(model_profile, "time", clock)
    return clock


class Model:
    """A target that answers nothing; `cost(rows, context, how often so far)` is how long that takes."""

    device, vocab_size = "cpu", 3

    def __init__(self, clock: Clock, cost: Callable[[int, int, int], float], context: int = 4096) -> None:
        self.clock, self.cost, self.context = clock, cost, context
        self.calls: list[tuple[int, int]] = []

    def cache(self, slots: int) -> KVCache:
        return KVCache([(1, 2)], slots, torch.float32, self.device)

    def forward(self, tree: DraftTree, cache: KVCache) -> None:
        n, context = tree.size, cache.length
        assert context + n <= min(cache.capacity, self.context), "after the end"
        assert max(tree.tokens) < 3 and tree.depth == list(range(n))
        self.clock.now += self.cost(n, context, self.calls.count((n, context)))
        self.calls.append((n, context))


def measured(model: Model) -> ForwardCosts:
    return finished(timing_forwards(model))  # type: ignore[arg-type]


def flat_then_linear(rows: int, context: int, _: int = 0) -> float:
    return 0.002 + 0.0001 * max(rows, 8) + 1e-7 * context


def test_costs_are_what_the_clock_says(clock: Clock) -> None:
    model = Model(clock, flat_then_linear)
    costs = measured(model)
    assert (costs.rows, costs.contexts) == (ROWS, (256, 2048))
    for n in ROWS:
        for context in costs.contexts:
            assert costs.at(n, context) == pytest.approx(flat_then_linear(n, context))
    assert 0.5 < clock.now - 100 < 1.2, "about a second"


@each("scale, times", [(0.01, 16), (1, 16), (5, 4), (10, 3), (20, 3), (45, 2), (60, 1)])
def test_a_small_model_is_measured_more_often_than_a_large_one(clock: Clock, scale: float, times: int) -> None:
    model, began = Model(clock, lambda *how: scale * flat_then_linear(*how)), clock.now
    costs = measured(model)
    assert {model.calls.count((n, context)) for n in (2, 4, 8) for context in (256, 2048)} == {times}
    assert clock.now - began < 6
    assert costs.at(8, 256) == pytest.approx(scale * flat_then_linear(8, 256)), "the same at any speed"


def test_the_numbers_of_rows_take_turns(clock: Clock) -> None:
    model = Model(clock, flat_then_linear)
    measured(model)
    assert model.calls[1:29] == [(n, context) for n in ROWS for context in (256, 2048)] * 2


def test_the_first_time_and_a_disturbed_one_do_not_count(clock: Clock) -> None:
    def disturbed(rows: int, context: int, before: int) -> float:
        return flat_then_linear(rows, context) + (0.2 if before == 0 or (rows, before) == (8, 2) else 0)

    costs = measured(Model(clock, disturbed))
    assert all(costs.at(n, c) == pytest.approx(flat_then_linear(n, c)) for n in ROWS for c in costs.contexts)


def test_more_rows_and_longer_contexts_never_cost_less(clock: Clock) -> None:
    figures = {1: 0.005, 2: 0.009, 4: 0.004, 8: 0.006, 16: 0.008, 32: 0.010, 64: 0.012}
    costs = measured(
        Model(clock, lambda rows, context, _: figures[rows] - (0.003 if (rows, context) == (16, 2048) else 0))
    )
    assert costs.seconds[0] == pytest.approx((0.004, 0.004, 0.004, 0.005, 0.005, 0.010, 0.012))
    assert costs.seconds[1] == pytest.approx((0.004, 0.004, 0.004, 0.005, 0.005, 0.010, 0.012))


def test_a_huge_model_is_not_measured_again_and_again(clock: Clock) -> None:
    model = Model(clock, lambda rows, context, _: 0.3 * rows)
    costs = measured(model)
    assert costs.rows == (1, 2, 4, 8, 16), "16 rows took more than three seconds"
    assert model.calls == [(1, 256), *((n, context) for n in costs.rows for context in (256, 2048))]
    assert costs.at(64, 256) == pytest.approx(0.3 * 64)


@each("context, contexts, most", [(1, (0,), 1), (20, (0,), 16), (64, (0,), 64), (100, (36,), 64), (320, (256,), 64), (575, (256,), 64),
     (576, (256, 512), 64), (1024, (256, 960), 64), (100_000, (256, 2048), 64)])  # fmt: skip
def test_what_is_measured_fits_the_model(clock: Clock, context: int, contexts: tuple[int, ...], most: int) -> None:
    costs = measured(Model(clock, flat_then_linear, context))
    assert costs.contexts == contexts and costs.rows == tuple(n for n in ROWS if n <= most)


def test_a_long_context_that_would_take_the_memory_is_left_out(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Model(clock, flat_then_linear).cache(1).nbytes
    for free, contexts in ((17 * bucket, (256,)), (19 * bucket, (256, 2048))):
        monkeypatch.setattr(model_profile, "free_memory", lambda device, free=free: free)
        assert measured(Model(clock, flat_then_linear)).contexts == contexts


@each("device, row, rows", [
    ("cuda", 0.0, (*ROWS, 65, 128, 192)), ("cuda", 0.001, ROWS), ("cpu", 0.0, ROWS)
])  # fmt: skip
def test_on_a_gpu_more_rows_are_timed_where_they_are_nearly_free(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, device: str, row: float, rows: tuple[int, ...]
) -> None:
    """What 65 cost is seen, too: they have no static shape."""
    monkeypatch.setattr(model_profile, "wait_for", lambda device: None)
    monkeypatch.setattr(model_profile, "free_memory", lambda device: 1 << 40)

    def cost(rows: int, context: int, _: int = 0) -> float:
        return 0.002 + row * rows + (0.003 if rows > 64 else 0.0)

    model = Model(clock, cost)
    model.cache = lambda slots: KVCache([(1, 2)], slots, torch.float32, "cpu")  # type: ignore[method-assign]
    model.device = device  # type: ignore[misc]
    costs = measured(model)
    assert costs.rows == rows
    assert all(costs.at(n, 256) == pytest.approx(cost(n, 256)) for n in rows)


@pytest.mark.slow
def test_a_real_model_on_a_real_clock(tiny: Callable[[str], Any]) -> None:
    target = tiny("llama-grouped-dynamic").target
    costs = finished(timing_forwards(target))
    assert costs.contexts == (64,) and costs.rows == ROWS
    assert all(0 < figure < 60 for figure in costs.seconds[0])


def test_a_row_more_than_a_power_of_two_costs_as_much_as_twice_as_many(clock: Clock) -> None:
    def filled_up(rows: int, context: int, _: int = 0) -> float:
        return 0.01 * next(filled for filled in STATIC_ROWS if filled >= rows)

    model = Model(clock, filled_up)
    model.step_form = "static"  # type: ignore[attr-defined]
    costs = measured(model)
    assert costs.rows == FILLED_UP == (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)
    assert all(costs.at(rows, 256) == pytest.approx(filled_up(rows, 256)) for rows in range(1, 65))


@pytest.mark.slow
def test_every_shape_is_recorded_once_while_costs_are_measured(
    tiny: Callable[[str], Tiny], recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If fewer recordings were kept, each would be made again every time, and the clock would include that."""
    monkeypatch.setattr(model_profile, "NEAR", 100)
    target = Target.load(tiny(FAMILIES[0]).path)
    target.use_step_form("captured")
    costs = finished(timing_forwards(target))
    assert costs.rows == FILLED_UP and len(costs.contexts) == 2
    assert recorded.made == len(STATIC_ROWS) * 2 and recorded.played > 5 * recorded.made
