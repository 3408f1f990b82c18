"""The smallest published model is required in CI."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import real_models


def test_smollm2_is_here(published: Callable[[str], Path]) -> None:
    """Elsewhere its tests and this test are skipped."""
    required = os.environ.get("CI") or os.environ.get("REQUIRE_REAL_MODELS")
    if required and real_models.find("smollm2") is None:
        pytest.fail(
            f"SmolLM2-135M-Instruct is not in {real_models.folder()}; get it with `make real-models`.", pytrace=False
        )
    assert published("smollm2").stat().st_size == real_models.MODELS["smollm2"].bytes
