"""Which cases of a large test `make check` runs, and which of the others `make test` does; `make test-all` runs them all."""

import ast
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest


def covering(*axes: Iterable[Any], fast: int | None = None) -> list[Any]:
    """For `parametrize` where every value of each axis must be met, and not with every value of the others.

    `covering("abc", [1, 2])` is [("a", 1), ("b", 2), ("c", 1)]. Those behind the first `fast` ones are slow, and every
    second of those long.
    """
    values = [list(axis) for axis in axes]
    found = [tuple(axis[n % len(axis)] for axis in values) for n in range(max(map(len, values)))]
    count = len(found) if fast is None else fast
    slow = _slow()
    return [*found[:count], *(pytest.param(*case, marks=next(slow)) for case in found[count:])]


def cases(every: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """All of them, for `parametrize`; those that are not in `fast` are slow, and every second of those long."""
    found, slow = list(every), _slow()
    return [case if case in fast else pytest.param(case, marks=next(slow)) for case in found]


def crossed(*axes: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """Every combination of values, for `parametrize` with a name for each axis; those that are not in `fast` are slow, and
    every second of those long.
    """
    found, slow = list(product(*axes)), _slow()
    return [combined if combined in fast else pytest.param(*combined, marks=next(slow)) for combined in found]


def some(every: Iterable[Any], fast: int) -> list[Any]:
    """All of them, for `parametrize`; so many of them, evenly spread, are fast, and every second of the others long. A
    tuple is a value for each name.
    """
    found, slow = list(every), _slow()
    kept = {len(found) * n // fast for n in range(fast)}
    values = [one if isinstance(one, tuple) else (one,) for one in found]
    return [pytest.param(*value, marks=() if at in kept else next(slow)) for at, value in enumerate(values)]


def _slow() -> Iterator[Any]:
    return cycle([[pytest.mark.slow], [pytest.mark.slow, pytest.mark.long]])


TESTS = Path(__file__).parent
MOST_FAST = 3  # cases of a test
MANY = 4  # slow cases of a test
THINNED = {"decoding", "drafters", "engine", "gpu", "native", "nn", "training", "tui"}  # many slow cases


def share_out(items: Sequence[pytest.Item]) -> None:
    """Says what else is long, and what else is slow: it is tested by another case, or by the other engine.

    What drafters do is tested twice, as torch and as the CPU engine compute it: there a slow case runs in one of them.
    Elsewhere every second of a test's slow cases runs, in some tests the first and in some the second one; of tests that
    kill, only where there are many. Of all others a few cases are fast.
    """
    for (path, function), found in _cases_of(items, lambda marks: "slow" in marks and "long" not in marks).items():
        if _tested_twice(path.stem.removesuffix("_native"), function):
            in_torch = path.parent.name != "native"
            found = [item for item in found if (crc32(item.name.encode()) % 2 == 0) is in_torch]
        elif len(found) >= MANY or (path.parent.name in THINNED and len(found) > 1 and _in_this_process(found[0])):
            found = found[crc32(function.encode()) % 2 :: 2]
        else:
            continue
        for item in found:
            item.add_marker("long")
    for found in _cases_of(items, lambda marks: marks.isdisjoint(("slow", "long"))).values():
        kept = {len(found) * n // MOST_FAST for n in range(MOST_FAST)}
        for item in (item for place, item in enumerate(found) if len(found) > MOST_FAST and place not in kept):
            item.add_marker("slow")


def _cases_of(
    items: Sequence[pytest.Item], wanted: Callable[[set[str]], bool]
) -> dict[tuple[Path, str], list[pytest.Item]]:
    """By test, those of its cases whose marks are wanted."""
    found: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if wanted({mark.name for mark in item.iter_markers()}):
            found[item.path, _function(item)].append(item)
    return found


def _function(item: pytest.Item) -> str:
    return item.name.split("[", 1)[0]


def _in_this_process(item: pytest.Item) -> bool:
    """Whether it plays a chat here: those with a process of their own kill it, and are kept."""
    return item.path.parent.name != "tui" or "chat" in getattr(item, "fixturenames", ())


def _tested_twice(stem: str, function: str) -> bool:
    """Whether the file of the CPU engine takes over that test of a file."""
    taken, own = _of_native(stem)
    return function not in own and not taken.isdisjoint((function, "*"))


@cache
def _of_native(stem: str) -> tuple[set[str], set[str]]:
    """The names that a file of the CPU engine imports, and those that it defines."""
    file = TESTS / "native" / f"{stem}_native.py"
    body = ast.parse(file.read_text("utf-8")).body if file.is_file() else []
    taken = {name.name for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    return taken, {node.name for node in body if isinstance(node, ast.FunctionDef)}
