"""A tree that is drafted level by level ends where another level would take longer than it is expected to save."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from drafters.test_eagle3 import eagle
from drafters.test_semi import semi
from drafting import drafting
from each import each
from machines import flat
from session_replies import reply
from tiny_models import FAMILIES, prompt_ids

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Step
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.paths import ENOUGH, JUDGED, PRIOR, UNTRIED, Levels

MAKERS: dict[str, Callable[..., Any]] = {"eagle3": eagle, "semi": semi}


def context(
    token_seconds: float | None, covered: Sequence[float] = (), committed: Sequence[int] = (1, 2), nodes: int = 4
) -> Any:
    return Context(committed, SimpleNamespace(length=0), nodes, Sampling(), token_seconds, covered)


def taking(seconds: float, depths: int = 8) -> Levels:
    """Return levels that each took this long."""
    levels = Levels()
    for depth in range(depths):
        for _ in range(ENOUGH):
            levels.record_time(depth, seconds)
    return levels


def test_a_level_pays_where_its_chance_times_what_a_token_is_worth_is_more_than_it_takes() -> None:
    assert PRIOR == 0.7
    levels = taking(1.0)
    for chance, worth, pays in ((1.0, 1.5, True), (1.0, 1.4, False), (0.5, 2.9, True), (0.5, 2.8, False)):
        assert levels.pays(context(worth), 1, chance) is pays
    assert levels.pays(context(None), 1, 0.0), "a fixed experiment, where time does not matter"
    for _ in range(3 * JUDGED):
        levels.judge(1, False)
    assert not levels.pays(context(1.5), 1, 1.0) and levels.pays(context(1.5), 2, 1.0), "each depth for itself"


def test_what_is_not_known_is_tried_and_the_quickest_of_the_last_is_believed() -> None:
    levels = Levels()
    for _ in range(ENOUGH):
        assert levels.pays(context(1.0), 0, 1.0)
        levels.record_time(0, 5.0)
    assert not levels.pays(context(1.0), 0, 1.0)
    levels.record_time(0, 0.1)
    assert levels.pays(context(1.0), 0, 1.0), "the machine was busy with something else before"


def test_what_was_left_out_for_long_is_tried_again() -> None:
    levels = taking(5.0)
    for _ in range(JUDGED):
        levels.judge(0, False)
    tried = [levels.pays(context(1.0), 0, 1.0) for _ in range(2 * UNTRIED)]
    assert tried.index(True) == UNTRIED and all(tried[UNTRIED:]), "until it is known again what it takes"


@pytest.mark.parametrize("kind", MAKERS)
@each(
    "worth, covered, levels",
    [(None, (), 3), (1e9, (), 3), (1.5, (), 1), (1.4, (), 0), (1.5, (0.1,), 0), (1e9, (1.0,), 0), (3.0, (0.5,), 1)],
)
def test_a_level_that_takes_more_than_it_should_save_is_left_out(tiny, monkeypatch, kind, worth, covered, levels):
    """A level takes a second, and two nodes of one lead to a right token half of the time: 0.51 · 0.7 · 1.5 is less."""
    model = tiny(FAMILIES[0])
    drafter = drafting(MAKERS[kind](model.target, depth=3), model.target)
    text, cache = prompt_ids(9, seed=2), model.target.cache(64)
    output = model.target.forward(DraftTree.chain(text), cache, inner=drafter.target_layers)
    cache.keep(range(9))
    drafter.observe(Step([*text, 77], output.hidden, inner=output.inner))
    monkeypatch.setattr(
        drafter.calibration,
        "chances",
        lambda level, *_: [(token, 0.01 if rank else 0.5) for rank, (token, _) in enumerate(level)],
    )
    drafter._trees.levels = taking(1.0)
    asked = []
    head = drafter._head
    monkeypatch.setattr(drafter, "_head", lambda x: asked.append(len(x)) or head(x))
    tree = drafter.draft(context(worth, covered, [*text, 77]))
    assert len(asked) == levels and max(tree.depth) == levels
    assert tree.size == (5 if levels else 1)
    # The part of the text that was not read while nothing was drafted is read with the next draft.
    drafter._trees.levels = Levels()
    assert drafter.draft(context(1e9, (), [*text, 77])).size == 5


def test_all_further_levels_count_where_rows_are_priced_in_steps() -> None:
    levels = Levels()

    def pays(worth: float, depth: int, left: int) -> bool:
        asked = replace(context(worth), verify_seconds=lambda rows: float(-(-rows // 4)))
        return levels.pays(asked, depth, 1.0, left)

    assert pays(0.1, 0, 4) and pays(0.1, 2, 1), "the first four rows cost the same"
    assert not pays(1.0, 3, 1) and pays(1.0, 3, 2), "the fifth row costs a second, and the sixth nothing more"


@pytest.mark.slow
@each("slope, deep", [(1.0, False), (0.0, True)])
def test_trees_are_shallow_where_rows_are_dear_and_deep_where_they_are_cheap(tiny, monkeypatch, slope, deep):
    """Only rows take time, by invented costs."""
    for place in ("decoding.decode", "drafters.paths"):
        monkeypatch.setattr(f"localspec.{place}.time", SimpleNamespace(perf_counter=lambda: 0.0))
    model, prompt = tiny(FAMILIES[0]), prompt_ids(9, seed=2)
    text, _ = reply(Session(model.target, Autoregressive(), Budget(0)), prompt, 24)
    for make in MAKERS.values():
        drafter = drafting(make(model.target, depth=3), model.target)
        assert reply(Session(model.target, drafter, Budget(8, flat(0.05, slope))), prompt, 24)[0] == text
        computed = sum(bool(taken) for taken in drafter._trees.levels._seconds)
        assert computed >= 2 if deep else computed == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_levels_are_timed_and_judged_while_text_is_decoded(tiny, monkeypatch, kind):
    ticks = count()
    monkeypatch.setattr("localspec.drafters.paths.time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    model = tiny(FAMILIES[0])
    drafter = drafting(MAKERS[kind](model.target, depth=3), model.target)
    reply(Session(model.target, drafter, Budget(8)), prompt_ids(9, seed=2), 24)
    known = drafter._trees.levels
    assert len(known._seconds) >= 2 and all(set(taken) == {1.0} for taken in known._seconds)
    assert known._right[0] != PRIOR and not any(known._left_out)
