"""The page of what drafters are worth: sums of seconds, and what is said of predictions and of `auto`."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import speedups
import speedups_page
from golden import wording
from reply_statistics import said


def reply(seconds: float, tokens: int = 20, steps: int = 10, held: int = 100, off: str | None = None) -> dict[str, Any]:
    return {
        "ids": [list(range(tokens))], "tokens": tokens, "steps": steps, "seconds": seconds, "draft": seconds / 10,
        "verify": seconds / 2, "bytes": held, "off": off,
    }  # fmt: skip


def run(**rows: list[float]) -> dict[str, Any]:
    """Seconds of each drafter's replies; two of each kind of text in turn."""
    kinds = ("chat", *speedups_page.KINDS)
    turns = [
        {
            "category": kinds[turn // 2 % len(kinds)],
            "load": 0.5,
            "later": turn % 2 == 1,
            "replies": {n: reply(s[turn]) for n, s in rows.items()},
        }
        for turn in range(len(rows["none"]))
    ]
    return {
        "precision": "int8", "device": "cpu", "threads": 2, "auto": "phrases", "turns": turns,
        "predicted": {"none": 1.0, "phrases": 1.5, "s3d": 2.0},
        "then": {"predicted": {"none": 1.0, "phrases": 1.5, "s3d": 1.7}, "auto": "s3d"},
    }  # fmt: skip


def test_long_replies_count_for_more_and_every_prompt_has_its_own_plain_reply() -> None:
    turns = run(none=[10.0, 1.0], phrases=[5.0, 2.0])["turns"]
    assert speedups_page.speedup(turns, "phrases") == pytest.approx(11 / 7)
    low, high = speedups_page.interval(turns, "phrases")
    assert low == pytest.approx(0.5) and high == pytest.approx(2.0), "either prompt alone may be drawn"


def test_memory_is_held_against_the_time_that_was_saved() -> None:
    turns = run(none=[10.0], s3d=[5.0])["turns"]
    turns[0]["replies"]["s3d"]["bytes"] = 125
    assert speedups_page.worth(turns, "s3d") == pytest.approx(2 / 1.25)


def test_predictions_and_the_choice_are_judged() -> None:
    found = run(none=[1.5] * 8, phrases=[1.0] * 8, s3d=[1.0] * 6 + [0.5] * 2, auto=[1.0] * 8)
    page = speedups_page.section(found)
    assert "At first: predicted within 10 % of what was measured 1 of 2, median" in page, (
        "1.50 as foreseen, 1.71 for 2.00"
    )
    assert "`phrases`, which `auto` takes, the best or within 5 % of it in 3 of 4 kinds of text." in page
    assert "After half of the prompts: predicted within 10 % of what was measured 2 of 2" in page
    assert "`s3d`, which `auto` takes, the best or within 5 % of it in 4 of 4 kinds of text." in page
    assert "Replies that differ from plain decoding: 0" in page
    assert speedups_page.inside(found) == [True, True], "1.50, and 2.00 within 1.50 to 2.14"
    for turn in found["turns"][:5]:
        turn["replies"]["s3d"]["off"] = "it brings less"
    assert [*speedups_page.errors_of(found)] == ["phrases"], "of what is off nothing was foreseen"
    assert "measured 1 of 1, median" in speedups_page.section(found)
    found["turns"][3]["replies"]["s3d"]["ids"][0][5] = 99
    assert "Replies that differ from plain decoding: 1" in speedups_page.section(found)


def test_only_what_is_faster_at_both_bounds_is_ahead_of_phrases() -> None:
    turns = run(none=[4.0] * 8, phrases=[2.0] * 8, s3d=[1.0] * 8, medusa=[0.1] * 7 + [9.0])["turns"]
    assert [*speedups_page.ahead_of_phrases(turns)] == [
        "Ahead of phrases alone, compared prompt by prompt: `s3d` 2.00 [2.00, 2.00]."
    ]
    assert [*speedups_page.ahead_of_phrases(run(none=[4.0], s3d=[1.0])["turns"])] == []


def test_all_rounds_of_a_reply_count() -> None:
    first, second = said((1, 2, 3), seconds=2.0, steps=2, draft=0.5, verify=1.0), said((1, 2, 3), seconds=1.0, steps=1)
    told = speedups.figures([first, second])
    assert (told["tokens"], told["steps"], told["seconds"], told["draft"], told["verify"]) == (4, 3, 3.0, 0.5, 1.0)
    assert told["ids"] == [(1, 2, 3), (1, 2, 3)] and told["bytes"] == 100


def test_kinds_of_text_follow_from_the_files() -> None:
    asked = [speedups.prompts.Prompt("1", name, "?") for name in ("mbpp_test", "gsm8k_test", "xquad_en", "anything")]
    assert [speedups.category(one) for one in asked] == ["code", "sums", "from the prompt", "chat"]


def test_each_kind_of_text_has_as_many_prompts_and_they_come_in_turn() -> None:
    files = ["oasst_en100"] * 5 + ["humaneval"] * 3 + ["gsm8k_test", "xquad_en", "xquad_en", "xquad_en"]
    asked = [speedups.prompts.Prompt(f"{number}", name, "?") for number, name in enumerate(files)]
    found = [(speedups.category(one), one.id) for one in speedups.in_kinds(asked, 2)]
    assert found == [
        ("chat", "0"), ("code", "5"), ("sums", "8"), ("from the prompt", "9"),
        ("chat", "1"), ("code", "6"), ("from the prompt", "10"),
    ]  # fmt: skip


def test_over_all_cells_are_counted_and_the_lowest_is_named() -> None:
    good = run(none=[1.5] * 8, phrases=[1.0] * 8, s3d=[0.75] * 8, auto=[0.75] * 8)
    bad = run(none=[1.5] * 8, phrases=[1.0] * 8, s3d=[0.75] * 8, auto=[0.75] * 6 + [1.6] * 2)
    said = speedups_page.overall([("good", good), ("bad", bad)])
    assert "within 10 % of what was measured in 4 of 4, and within the bounds" in said
    assert "best or within 5 % of it in 7 of 8 cells" in said
    assert "below 0.98 of plain decoding in 1; the lowest was 0.94 (from the prompt of bad)." in said
    without = run(none=[1.5] * 8, phrases=[1.0] * 8)
    assert "cells" not in speedups_page.overall([("without auto", without)])


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_with_what_auto_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(speedups, "LEAST", 1)  # however soon this model's text ends
    (place := tmp_path / "eval").mkdir()
    for name in ("oasst_en100", "humaneval"):
        lines = [{"id": f"{n}", "category": "", "prompt": f"Tell me a story about {n} dogs."} for n in (2, 3)]
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    work, page = tmp_path / "work", tmp_path / "page.md"
    words = ["-m", "demo", "--prompts", str(place), "--limit", "1", "-n", "24", "--temperatures", "0.7"]
    words += ["--work", str(work), "--out", str(page)]
    kept: list[Path] = []
    honest, together, unfair = speedups.kept, speedups.side_by_side, list[float]()

    def side_by_side(replies: Any) -> Any:
        began, said = time.perf_counter(), together(replies, turn=0.0)
        unfair.append(
            sum(one.prefill_seconds + one.decode_seconds for one in said.values()) - time.perf_counter() + began
        )
        return said

    monkeypatch.setattr(speedups, "side_by_side", side_by_side)

    def stopped(file: Path, make: Any) -> Any:
        kept.append(file)
        if file.name == "turn-1.json":
            raise KeyboardInterrupt
        return honest(file, make)

    with monkeypatch.context() as patch:
        patch.setattr(speedups, "kept", stopped)
        with pytest.raises(KeyboardInterrupt):
            speedups.main([*words, "--drafters", "auto", "phrases"])
    assert not page.exists()
    first = (work / "demo-0.7" / "turn-0.json").read_bytes()
    (work / "demo-0.7" / "auto.json").write_text('"phrases"')  # whatever a machine takes that is busy or not
    speedups.main([*words, "--drafters", "auto", "phrases"])
    assert (work / "demo-0.7" / "turn-0.json").read_bytes() == first
    found = json.loads((work / "demo-0.7" / "run.json").read_text())
    assert found["auto"] == "phrases" and len(found["turns"]) == 2
    assert {turn["category"] for turn in found["turns"]} == {"chat", "code"}
    assert all(turn["replies"].keys() == {"none", "auto", "phrases"} for turn in found["turns"])
    assert max(unfair) <= 0, "no reply's clock runs while another works"
    for one in (one for turn in found["turns"] for one in turn["replies"].values()):
        assert len(one["ids"]) == speedups.MOST_ROUNDS and len({*map(tuple, one["ids"])}) == 1
        assert one["tokens"] == sum(len(ids) - 1 for ids in one["ids"]) and one["steps"] >= len(one["ids"])
    said = page.read_text("utf-8")
    assert "temperature 0.7" in said and "Replies that differ from plain decoding: 0." in said and "Over all:" in said
    for wrong in (["--drafters", "auto"], ["--drafters", "fraces"], ["--temperatures", "-1"], ["--out", "no/page.md"]):
        with pytest.raises(SystemExit):
            speedups.main([*words, "--drafters", "auto", "phrases", *wrong])


def lines_of(said: str, begins: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith(f"- {begins}")]


def test_every_missed_aim_stands_with_the_arithmetic_of_its_cell() -> None:
    """By hand: 2 tokens a step; × 1.5 is a step of 1.33, at which 1.8 × takes 2.40 tokens and 2.2 × takes 2.93."""
    found = run(none=[1.5] * 8, phrases=[1.0] * 8, ouroboros=[1.25] * 8, auto=[1.0] * 6 + [1.6] * 2)
    said = speedups_page.missed([("large", found)], ["large"])
    assert lines_of(said, "1.8 × on chat of large") == [
        "- 1.8 × on chat of large: 1.50 with `phrases`, 2.00 tokens over 1.33 is the best. It would take 2.40 tokens a "
        "step at that price, or steps of 1.11 plain ones."
    ]
    assert len(lines_of(said, "2.2 ×")) == 2 and wording("take_2_93_tokens_step") in lines_of(said, "2.2 × on code")[0]
    behind = lines_of(said, "Ouroboros ahead of phrases alone")
    assert len(behind) == 4 and "1.20 with `ouroboros`, 2.00 tokens over 1.67, and 1.50 with `phrases`" in behind[0]
    assert lines_of(said, "`auto` never below") == [
        "- `auto` never below 0.98, from the prompt of large: 0.94 with `auto`, 2.00 tokens over 2.13, [0.94, 0.94] by 2 "
        "prompts, in 0 of which it switched itself off."
    ]
    assert lines_of(
        said, "`auto` the best or nearly so in 90% of cells: in 3 of 4; not in from the prompt of large (0.94"
    )
    fast = run(none=[3.0] * 8, phrases=[1.5] * 8, ouroboros=[1.0] * 8, s3d=[1.5] * 8, auto=[1.0] * 8)
    fast["predicted"] = {"none": 1.0, "phrases": 2.0, "s3d": 2.0, "ouroboros": 3.0}
    fast["then"] = {"predicted": dict(fast["predicted"]), "auto": "ouroboros"}
    assert speedups_page.missed([("large", fast)], ["large"]) == "Every aim was reached."
    fast["predicted"] |= {"phrases": 3.0}
    fast["then"]["predicted"] |= {"phrases": 1.0}
    said = speedups_page.missed([("large", fast)], [])
    assert "Foreseen within 10 % in 80% before any reply: 2 of 3, median +0%; of large 2 of 3, median +0%." in said
    assert "Foreseen within 10 % in 80% after half of the prompts: 2 of 3" in said
    slow = run(none=[1.5] * 8, phrases=[1.0] * 8, auto=[1.0] * 8)
    assert "1.8 ×" not in speedups_page.missed([("small", slow)], []), "these aims are of the largest model"


def test_what_the_model_knows_is_counted_over_all(tmp_path: Path) -> None:
    (file := tmp_path / "help.jsonl").write_text('{"prompt": "How do I pull a model?", "category": "humaneval"}\n')
    (asked,) = speedups.questions_of(file, speedups_page.OWN)
    assert speedups.category(asked) == speedups_page.OWN == speedups.in_kinds([asked], 3)[0].category
    public = run(none=[1.5] * 8, phrases=[1.0] * 8, s3d=[0.75] * 8, auto=[0.75] * 8)
    own = run(none=[3.0] * 8, phrases=[3.0] * 8, s3d=[0.75] * 8, auto=[1.0] * 8)
    for turn in own["turns"]:
        turn["category"] = speedups_page.OWN
    said = speedups_page.overall([("large", public), ("large, what it knows", own)])
    assert wording("within_10_what_measured_2_4") in said and "in 4 of 5 cells" in said
    assert "what it knows (8)" in speedups_page.section(own)
