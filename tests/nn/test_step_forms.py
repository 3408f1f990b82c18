"""The self-check that decides how steps are computed on a GPU: each form that is wrong by a bit must be seen."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded_operations import Graph
from tiny_models import FAMILIES, RECURRENT, Tiny

from localspec.nn import placed_rows, recording, static_forward
from localspec.nn.static_forward import StaticForward
from localspec.nn.step_forms import find_step_form
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
LLAMA, WINDOW = FAMILIES[0], FAMILIES[1]


@pytest.fixture
def target(tiny: Make) -> Target:
    loaded = Target.load(tiny(LLAMA).path)
    loaded.row_multiple = 4
    return loaded


@pytest.mark.parametrize("name", FAMILIES)
def test_recordings_are_played_where_their_bits_are_right(tiny: Make, recorded: type[Graph], name: str) -> None:
    loaded = Target.load(tiny(name).path, exact=name == WINDOW)
    loaded.row_multiple = 4
    assert find_step_form(loaded) == ("captured", None)
    assert loaded.step_form == "captured" and loaded.row_multiple == 4 and recorded.played > recorded.made


def test_what_carries_a_state_on_has_nothing_to_record(tiny: Make, recorded: type[Graph]) -> None:
    assert find_step_form(Target.load(tiny(next(iter(RECURRENT))).path)) == ("eager", None)
    assert recorded.made == 0


def test_a_length_that_became_part_of_a_recording_is_seen(
    target: Target, recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Frozen(placed_rows.PlacedRows):
        def __init__(self, cache: Any, visible: int, length: torch.Tensor, rows: int) -> None:
            super().__init__(cache, visible, torch.tensor(cache.length), rows)

    monkeypatch.setattr(static_forward, "PlacedRows", Frozen)
    form, why = find_step_form(target)
    assert form == target.step_form == "static" and "are not the same to the bit" in str(why)


def test_rows_that_see_their_siblings_are_seen(
    target: Target, recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_forward, "_bits", lambda parents: [2 ** (row + 1) - 1 for row in range(len(parents))])
    form, why = find_step_form(target)
    assert form == target.step_form == "eager" and "5 rows after" in str(why) and recorded.made == 0


def test_a_recording_that_is_not_played_is_seen(
    target: Target, recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "replay", lambda self: None)
    assert find_step_form(target)[0] == "static"


def test_what_cannot_be_recorded_is_told_with_its_reason(
    target: Target, recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing.\nFor debugging consider …")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    assert find_step_form(target) == ("static", "CUDA error: operation not permitted when stream is capturing")


def test_where_nothing_but_the_plainest_form_runs_it_serves(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(StaticForward, "tree", broken)
    assert find_step_form(target) == ("eager", "no kernel image is available") and target.step_form == "eager"


def test_memory_that_is_short_is_no_error(
    target: Target, recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(StaticForward, "tree", full)
    with pytest.raises(MemoryError):
        find_step_form(target)
    assert target.step_form == "eager"


# -- what a recording is made with ---------------------------------------------------------------------------------------


def test_all_recordings_on_a_device_share_their_memory_which_never_ends(
    recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch gives such memory to no new recording once all that shared it are gone; so one stays."""
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


def test_after_a_recording_that_failed_the_stream_is_the_usual_one(
    recorded: type[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="not permitted"):
        recording.Recording(lambda x: (x * float(x.sum()),), [torch.ones(2)])
    assert recorded.streams == ["usual"]
