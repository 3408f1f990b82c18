"""What tests of drafters share with their copies that run on the CPU engine."""

from collections.abc import Callable

import pytest
from tiny_models import Tiny, read


@pytest.fixture
def own_read() -> Callable[..., Tiny]:
    """How a test that makes a model of its own reads it: in torch here, by the CPU engine in tests/native."""
    return read
