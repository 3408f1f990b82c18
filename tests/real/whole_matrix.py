"""A mark for cases that take a minute or more: `make test-all` runs them."""

import os

import pytest

WHOLE_MATRIX = pytest.mark.skipif("WHOLE_MATRIX" not in os.environ, reason="it takes long; `make test-all` runs it")
