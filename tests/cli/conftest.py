"""Fixtures of the command tests; see also `hub_commands`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.hub_commands import home_with_cache
from hub_server import Hub, Repository, served

from localspec.paths import Paths


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return home_with_cache(tmp_path, monkeypatch)


@pytest.fixture
def hub(repo: Repository) -> Iterator[Hub]:
    with served(org__name=repo) as hub:
        yield hub


@pytest.fixture
def database(fresh_home: Path) -> Path:
    return Paths(fresh_home).database
