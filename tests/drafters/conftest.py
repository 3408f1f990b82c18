"""Fixtures that tests of drafters share with their copies on the CPU engine."""

from collections.abc import Callable

import pytest
from tiny_models import Tiny, read


@pytest.fixture
def own_read() -> Callable[..., Tiny]:
    """Return the function that loads the model that a test makes: in torch here, in the CPU engine in tests/native."""
    return read
