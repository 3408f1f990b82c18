"""tests/families.md: every family and layout has a row, every cell names tests, and those are run over the family."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import transformers
from command import ROOT
from each import each
from gguf_families import FAMILIES as OF_GGUF
from training.test_eagle3_files import CASES

from localspec.families.table import FAMILIES as TABLE
from localspec.families.table import OF_GGUF as READ

PAGE = (ROOT / "tests" / "families.md").read_text("utf-8")
KEYS = dict(re.findall(r"^- \*\*(\w)\*\*: .*?`(tests/[\w/]+\.py::\w+)`$", PAGE, re.MULTILINE))


def table(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, the one of names first."""
    rows = re.search(r"(?:^\|.*\n)+", PAGE[PAGE.index(f"\n## {heading}") :], re.MULTILINE)
    assert rows is not None
    found = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[0].splitlines()]
    return [found[0], *found[2:]]


FAMILIES, DRAFTERS = table("Families"), table("Published drafters")


@cache
def functions(place: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / place).read_text("utf-8"))) if hasattr(node, "name")}


@cache
def run_over(named: str) -> set[str]:
    """Return the values that a test is run with, as far as they are texts."""
    place, name = named.split("::")
    found: set[str] = set()

    def take(value: Any) -> None:
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, list | tuple):
            for part in getattr(value, "values", None) or value:
                take(part)

    module = import_module(".".join(Path(place).with_suffix("").parts[1:]))
    test = getattr(module, name)
    take(getattr(test, "values", []))  # those of `each`
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            take([*mark.args[1]])
    return found


def type_in_gguf(name: str) -> str:
    """Return the model type of a family of tests/gguf_families.py."""
    return str(getattr(transformers, OF_GGUF[name].config).model_type)


def test_every_family_that_is_read_has_a_row_with_the_eight_columns() -> None:
    head, *rows = FAMILIES
    assert head == [
        "family", "safetensors", "GGUF", "trees", "CPU", "GPU", "packed", "drafters", "trained here",
    ]  # fmt: skip
    assert [row[0].strip("`") for row in rows] == [*TABLE]


def test_every_layout_of_eagle3_has_a_row() -> None:
    layouts = [layout for kind, layout, *_ in DRAFTERS[1:] if kind == "EAGLE-3"]
    assert set(layouts) <= {*CASES} and all(case.partition(",")[0] in layouts for case in CASES)


@pytest.mark.slow
def test_every_cell_names_tests_that_there_are() -> None:
    for names, *rows in (FAMILIES, DRAFTERS):
        first = 1 if names is FAMILIES[0] else 2
        for row in rows:
            assert len(row) == len(names), row
            for cell in row[first:]:
                assert cell and {*cell.split()} <= KEYS.keys(), (row, cell)
    used = {letter for row in (*FAMILIES[1:], *DRAFTERS[1:]) for cell in row[1:] for letter in cell.split()}
    assert KEYS.keys() <= used, "a test that no cell names"
    for named in re.findall(r"`(tests/[\w/.]+::\w+)`", PAGE):
        place, name = named.split("::")
        assert (ROOT / place).is_file() and name in functions(place), named


@each("family", [row[0].strip("`") for row in FAMILIES[1:]])
def test_the_tests_of_a_cell_are_run_over_its_family(family: str) -> None:
    row = next(row for row in FAMILIES[1:] if row[0] == f"`{family}`")
    begins = f"{family.removesuffix('_text')}-"
    for letter in " ".join(row[1:]).split():
        values = run_over(KEYS[letter])
        in_gguf = family in {type_in_gguf(value) for value in values & OF_GGUF.keys()}
        assert in_gguf or any(value.startswith(begins) for value in values), (family, KEYS[letter])


def test_of_the_models_that_a_peer_offers_those_are_read_whose_architecture_is() -> None:
    page = (ROOT / "tests" / "gguf_families.md").read_text("utf-8")
    rows = [row.strip("|").split("|") for row in page.splitlines() if row.startswith("| unsloth/")]
    found = {name.strip(): (kind.strip(), read.strip()) for name, kind, read, _ in rows}
    assert len(found) == len(rows) == 17
    for name, (kind, read) in found.items():
        assert read == ("yes" if kind.removesuffix(" with experts") in READ else "no"), name
    assert sum(read == "yes" for _, read in found.values()) == 16 and "16 of the 17" in page
