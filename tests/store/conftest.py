"""What tests of the store share."""

import pytest


@pytest.fixture
def notices() -> list[str]:
    return []
