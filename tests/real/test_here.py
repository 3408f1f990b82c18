"""The smallest published model is needed where every change is judged."""

import os

import pytest
from real import finding


@pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("LOCALSPEC_REQUIRE_REAL")), reason="only CI and `make test-all` need it"
)
def test_smollm2_is_here() -> None:
    if finding.find("smollm2") is None:
        pytest.fail(
            f"SmolLM2-135M-Instruct is not in {finding.folder()}; fetch it with `make real-models`.", pytrace=False
        )
