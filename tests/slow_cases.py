"""The slow cases of a test, which `make check` leaves out, and `make test` runs."""

import ast
import os
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from real.whole_matrix import WHOLE_MATRIX

TESTS = Path(__file__).parent
MOST_FAST = 3  # cases of a test
BY_TORCH = 4  # of this many slow cases that both engines could run, torch runs the first


def covering(*axes: Iterable[Any], fast: int | None = None) -> list[Any]:
    """Return cases for `parametrize` in which each value of each axis occurs, but not with each value of the others.

    `covering("abc", [1, 2])` is [("a", 1), ("b", 2), ("c", 1)]. The cases after the first `fast` ones are slow.
    """
    values = [list(axis) for axis in axes]
    found = [tuple(axis[n % len(axis)] for axis in values) for n in range(max(map(len, values)))]
    count = len(found) if fast is None else fast
    return [*found[:count], *(pytest.param(*case, marks=pytest.mark.slow) for case in found[count:])]


def cases(every: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """Return all cases for `parametrize`. Those that are not in `fast` are slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in every]


def seldom(every: Iterable[Any], usual: Container[Any]) -> list[Any]:
    """Return all cases for `parametrize`. Those that are not in `usual` run in `make test-all` only."""
    found = [(case, case if isinstance(case, tuple) else (case,)) for case in every]
    return [pytest.param(*one, marks=() if case in usual else WHOLE_MATRIX) for case, one in found]


def some(every: Iterable[Any], fast: int) -> list[Any]:
    """Return all cases for `parametrize`. As many as `fast`, evenly spread, are fast."""
    found = [one if isinstance(one, tuple) else (one,) for one in every]
    kept = {len(found) * n // fast for n in range(fast)}
    return [pytest.param(*one, marks=() if at in kept else pytest.mark.slow) for at, one in enumerate(found)]


def share_out(items: list[pytest.Item]) -> None:
    """Give each slow case of a test that both engines run to one of them, and leave each test three fast cases.

    tests/native imports tests of drafters and sessions, to run them with the compiled engine. Their fast cases run in
    both engines. Of four slow cases one goes to torch, which takes longer, and three to the compiled engine; `make
    test-all` runs all in both. Of more than three fast cases of a test, three that are evenly spread stay fast.
    """
    for (path, function), found in _cases_of(items, slow=True).items():
        if "WHOLE_MATRIX" not in os.environ and _runs_in_both(path.stem.removesuffix("_native"), function):
            native = path.parent.name == "native"
            elsewhere = {id(item) for place, item in enumerate(found) if native == (place % BY_TORCH == 0)}
            items[:] = [item for item in items if id(item) not in elsewhere]
    for found in _cases_of(items, slow=False).values():
        kept = {len(found) * n // MOST_FAST for n in range(MOST_FAST)}
        for item in (item for place, item in enumerate(found) if len(found) > MOST_FAST and place not in kept):
            item.add_marker("slow")


def _cases_of(items: Sequence[pytest.Item], slow: bool) -> dict[tuple[Path, str], list[pytest.Item]]:
    """Return the slow cases, or the others, of each test."""
    found: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (item.get_closest_marker("slow") is not None) is slow:
            found[item.path, item.name.split("[", 1)[0]].append(item)
    return found


def _runs_in_both(stem: str, function: str) -> bool:
    """Return whether the compiled engine runs a test of the file `stem`, too."""
    imported, own = _of_native(stem)
    return function not in own and not imported.isdisjoint((function, "*"))


@cache
def _of_native(stem: str) -> tuple[set[str], set[str]]:
    """Return the names that a file of the compiled engine's tests imports, and those that it defines."""
    file = TESTS / "native" / f"{stem}_native.py"
    body = ast.parse(file.read_text("utf-8")).body if file.is_file() else []
    imported = {name.name for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    return imported, {node.name for node in body if isinstance(node, ast.FunctionDef)}
