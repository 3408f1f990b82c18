"""Figures leave out Python's own time, and count only forwards; `real_host` restores it."""

import pytest

from localspec.choosing import cost

REAL = {name: getattr(cost, name) for name in ("STEP", "TREE", "DRAFT", "PHRASES")}


@pytest.fixture(autouse=True)
def free_host(monkeypatch):
    for name in REAL:
        monkeypatch.setattr(cost, name, 0.0)


@pytest.fixture
def real_host(free_host, monkeypatch):
    for name, seconds in REAL.items():
        monkeypatch.setattr(cost, name, seconds)
