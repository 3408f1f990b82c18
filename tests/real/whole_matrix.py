"""A mark for cases on published models that take minutes each. `make test-all` runs them."""

import os

import pytest

WHOLE_MATRIX = pytest.mark.skipif("WHOLE_MATRIX" not in os.environ, reason="it takes minutes; `make test-all` runs it")
