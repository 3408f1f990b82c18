"""A mark for cases that take minutes each: every drafter and packing on published models. `make test-all` runs them."""

import os

import pytest

WHOLE_MATRIX = pytest.mark.skipif("WHOLE_MATRIX" not in os.environ, reason="it takes minutes; `make test-all` runs it")
