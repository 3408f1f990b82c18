from pathlib import Path

import pytest

from localspec.errors import UsageMistake
from localspec.training.directory import refuse_other


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ({"hours": None}, {"hours": 2.0}, "begun without --hours, and this one is with --hours 2.0;"),
        ({"data": "prompts"}, {"data": "history"}, "begun without --data, and this one is with --data history;"),
        ({"options": {}}, {"options": {"rank": 8}}, "begun without -O, and this one is with -O rank=8;"),
        ({"at_once": 64}, {"at_once": None}, "begun with --at-once 64, and this one is without --at-once;"),
        ({"text": "0a1b"}, {"text": "2c3d"}, "which learns from other text than this one;"),
    ],
)
def test_what_differs_is_told_as_it_is_typed(was: dict[str, object], now: dict[str, object], told: str) -> None:
    with pytest.raises(UsageMistake, match="give the same command to go on, another -o, or --force") as refused:
        refuse_other(Path("there"), was, now)
    assert told in str(refused.value)


def test_the_same_training_goes_on() -> None:
    refuse_other(Path("there"), {"hours": 2.0, "seed": 0}, {"hours": 2.0, "seed": 0})
