"""The results of a self-test, as they are stored and shown."""

from math import inf

import pytest

from localspec.decoding.exactness import Exactness


@pytest.mark.parametrize(("name", "value"), [("widest", 1), ("multiple", 3), ("largest", inf), ("largest", -1.0)])
def test_a_stored_result_with_one_impossible_value_is_not_read(name, value):
    stored = Exactness(True, 8).as_json()
    assert Exactness.from_json(stored) == Exactness(True, 8)
    assert Exactness.from_json(stored | {name: value}) is None


def test_only_exact_replies_wait_for_the_self_test():
    unchecked = Exactness.unchecked(8)
    assert [unchecked.word(rule) for rule in ("exact", "rejection", "typical")] == [
        "unchecked",
        "numerical",
        "numerical",
    ]
    assert Exactness(True, 8).word("exact") == "bitwise"
