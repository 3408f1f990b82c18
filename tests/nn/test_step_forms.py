"""The self-check that decides how steps are computed on a GPU: each form that is wrong by a bit must be seen."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from golden import wording
from recorded_operations import Graph
from tiny_models import FAMILIES, RECURRENT, Tiny

from localspec.choosing.fit import STATIC_ROWS
from localspec.decoding.sampling import Sampling
from localspec.nn import placed_rows, recording, static_forward, step_logits
from localspec.nn.static_forward import StaticForward
from localspec.nn.step_forms import find_step_form
from localspec.nn.step_logits import Contenders, contenders
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
LLAMA, WINDOW = FAMILIES[0], FAMILIES[1]


@pytest.fixture
def target(tiny: Make) -> Target:
    loaded = Target.load(tiny(LLAMA).path)
    loaded.row_multiple = 4
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("name", [LLAMA, WINDOW, FAMILIES[-1], next(iter(RECURRENT))])
def test_recordings_are_played_where_their_bits_are_right(tiny, recorded, name):
    loaded = Target.load(tiny(name).path, exact=name == WINDOW)
    loaded.row_multiple = 4
    assert find_step_form(loaded) == ("captured", None)
    assert loaded.step_form == "captured" and loaded.row_multiple == 4 and recorded.played > recorded.made


@pytest.mark.slow
def test_states_after_too_few_rows_are_seen(tiny, recorded, monkeypatch):
    read_again = static_forward.StaticForward._read_again
    monkeypatch.setattr(
        static_forward.StaticForward, "_read_again", lambda self, cache, held, count: read_again(self, cache, held, 1)
    )
    form, why = find_step_form(Target.load(tiny(next(iter(RECURRENT))).path))
    assert form == "eager" and wording("same_bit") in str(why)


@pytest.mark.slow
def test_a_length_that_became_part_of_a_recording_is_seen(target, recorded, monkeypatch):
    class Frozen(placed_rows.PlacedRows):
        def __init__(self, cache: Any, visible: int, length: torch.Tensor, rows: int) -> None:
            super().__init__(cache, visible, torch.tensor(cache.length), rows)

    monkeypatch.setattr(static_forward, "PlacedRows", Frozen)
    form, why = find_step_form(target)
    assert form == target.step_form == "static" and wording("same_bit") in str(why)


@pytest.mark.slow
def test_rows_that_see_their_siblings_are_seen(target, recorded, monkeypatch):
    monkeypatch.setattr(static_forward, "_bits", lambda parents: [2 ** (row + 1) - 1 for row in range(len(parents))])
    form, why = find_step_form(target)
    assert form == target.step_form == "eager" and "4 rows after" in str(why) and recorded.made == 0


def no_pick(hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return step_logits.summary(hidden, logits) * 0


def no_contender(logits: torch.Tensor, keys: torch.Tensor, sampling: Sampling) -> Contenders:
    found = contenders(logits, keys, sampling)
    return Contenders(found.ids * 0, found.scores, found.before, found.noisy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "wrong"),
    [("summary", no_pick), ("contenders", no_contender), ("StaticForward.chain", lambda *given: given[1] * 0)],
)
def test_all_that_decoding_takes_is_inspected(target, recorded, monkeypatch, place, wrong):
    owner, _, name = place.rpartition(".")
    monkeypatch.setattr(StaticForward if owner else static_forward, name, wrong)
    assert find_step_form(target)[0] == "eager"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [STATIC_ROWS[0], STATIC_ROWS[3], STATIC_ROWS[-1]])
def test_every_number_of_rows_is_inspected(target, recorded, monkeypatch, rows):
    read = StaticForward.tree

    def off(self: StaticForward, tree: Any, *given: Any) -> Any:
        found = read(self, tree, *given)
        return found._replace(logits=found.logits + 1) if tree.size == rows else found

    monkeypatch.setattr(StaticForward, "tree", off)
    form, why = find_step_form(target)
    assert form == "eager" and f"of {rows} rows" in str(why)


@pytest.mark.slow
def test_a_recording_that_is_not_played_is_seen(target, recorded, monkeypatch):
    monkeypatch.setattr(recorded, "replay", lambda self: None)
    assert find_step_form(target)[0] == "static"


@pytest.mark.slow
def test_a_failed_recording_is_reported_with_its_reason(target, recorded, monkeypatch):
    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing.\nFor debugging consider …")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    assert find_step_form(target) == ("static", "CUDA error: operation not permitted when stream is capturing")


@pytest.mark.slow
def test_where_nothing_but_the_plainest_form_runs_it_serves(target, monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(StaticForward, "tree", broken)
    error: Exception = RuntimeError("no kernel image is available")
    assert find_step_form(target) == ("eager", "no kernel image is available") and target.step_form == "eager"
    error = torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(MemoryError):
        find_step_form(target)
    assert target.step_form == "eager"


@pytest.mark.slow
def test_all_recordings_on_a_device_share_their_memory_which_never_ends(recorded, monkeypatch):
    """torch gives such memory to no new recording once all that shared it are gone, so one is kept."""
    given: list[dict[str, Any]] = []
    alive: list[Any] = []
    graph = torch.cuda.graph

    def noted(made: Graph, **how: Any) -> Any:
        given.append(how)
        alive.append(weakref.ref(made))
        assert given[0] is how or any(other() is not None for other in alive[:-1]), "its memory is gone"
        return graph(made)

    monkeypatch.setattr(torch.cuda, "graph", noted)
    recording._studio.cache_clear()
    for _ in range(3):
        made = recording.Recording(lambda x: (x + 1,), [torch.zeros(2)])
        assert made(torch.ones(2))[0].tolist() == [2.0, 2.0]
        del made
        gc.collect()
    assert given == [{"pool": (0, 1), "stream": "aside", "capture_error_mode": "thread_local"}] * 4
    recording._studio.cache_clear()


def test_after_a_recording_that_failed_others_have_memory_of_their_own(recorded, monkeypatch):
    """torch leaves the memory of a failed recording as if it were still being recorded."""
    pools = iter([(0, number) for number in range(9)])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(Graph, "pool", lambda self: self.given)
    graph = torch.cuda.graph
    used: list[Any] = []

    def noted(made: Any, pool: Any, **how: Any) -> Any:
        used.append(pool)
        made.given = pool
        return graph(made)

    monkeypatch.setattr(torch.cuda, "graph", noted)
    recording._studio.cache_clear()
    with pytest.raises(RuntimeError):
        recording.Recording(lambda x: (x * float(x.sum()),), [torch.ones(2)])
    assert recorded.streams == ["usual"]
    before = used[-1]
    recording.Recording(lambda x: (x + 1,), [torch.ones(2)])
    assert used[-1] != before
    recording._studio.cache_clear()


def test_a_recording_changes_nothing_of_what_it_is_given(recorded):
    given = torch.ones(2)
    made = recording.Recording(lambda x: (x + 1,), [given])
    made(torch.zeros(2))
    assert given.tolist() == [1.0, 1.0]
