"""What a person reads of wrong values and of what is not known."""

import pytest
from command import called
from golden import wording


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["history", "list", "--limit", "abc"], wording("abc_must_whole_number_give")),
        (["bench", "--limit", "0"], wording("n0_must_1_more_give_another_value").replace("'", "")),
    ],
)
def test_a_value_that_cannot_be_is_told_in_our_words(tmp_path, arguments, said):
    found = called(tmp_path, *arguments)
    assert found.returncode == 2 and said in found.stderr and "Input should" not in found.stderr


def test_what_there_is_none_of_is_not_unknown(tmp_path):
    lines = dict(line.split(maxsplit=1) for line in called(tmp_path, "show", "demo").stdout.splitlines())
    assert lines["forms"] == lines["published"] == "none" and lines["source"] == wording("comes_with_localspec")
