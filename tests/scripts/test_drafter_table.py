"""The table of a model's drafters: what its head says, and what it refuses."""

from pathlib import Path

import drafter_table
import pytest
from golden import wording


def test_the_head_names_the_numbers_that_weights_are_in() -> None:
    """Not those that are computed with beside packed weights."""
    packed = {"prompts": 60, "device": "cpu", "dtype": "bf16", "quantize": "int8"}
    assert drafter_table.conditions(packed) == "60 prompts, cpu, int8."
    assert drafter_table.conditions({**packed, "quantize": "none"}) == "60 prompts, cpu, bf16."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "0"], wording("n0_possible_give_whole_number")),
        (["--prompts", "nowhere"], wording("nowhere_cannot_be_read")),
        (["-m", "nothing-like-it"], "nothing-like-it"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("Tell me of dogs.\n")
    with pytest.raises(SystemExit) as left:
        drafter_table.main(["--prompts", "prompts.txt", "--work", "work", "--out", "page.md", *words])
    assert left.value.code == 2 and said in capsys.readouterr().err
    assert not Path("work").exists()
