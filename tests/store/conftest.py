"""Fixtures of the store tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.store.store import Store


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "localspec.db"


@pytest.fixture
def store(path: Path, notices: list[str]) -> Iterator[Store]:
    with Store.open(path, notices.append) as opened:
        yield opened
