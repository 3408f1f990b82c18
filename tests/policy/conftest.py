"""What Python takes around forwards is left out here, so that figures are those of forwards; test_host_time is about it."""

import pytest

from localspec.policy import host_time


@pytest.fixture(autouse=True)
def free_host(monkeypatch):
    for name in ("STEP", "TREE", "DRAFT", "PHRASES"):
        monkeypatch.setattr(host_time, name, 0.0)
