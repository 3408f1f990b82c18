from pathlib import Path

import pytest
from each import each


def test_every_value_is_tried_with_a_directory_of_its_own_and_the_failing_one_is_named(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    @each("number, word", [(1, "a"), (2, "b"), (3, "c")])
    def test(number: int, word: str, tmp_path: Path) -> None:
        assert [*tmp_path.iterdir()] == []
        (tmp_path / "file").touch()
        seen.append((number, word))
        assert word != "b"

    with pytest.raises(AssertionError) as failure:
        test(tmp_path=tmp_path)
    assert seen == [(1, "a"), (2, "b")]
    assert failure.value.__notes__ == ["with number, word = (2, 'b')"]
