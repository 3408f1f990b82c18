"""The scripts that try the papers' claims: intervals that hold, results that are kept, and all of it runs."""

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import experiment
import figures
import merged_table
import numpy as np
import paper_medusa
import paper_ouroboros
import paper_parallelspec
import paper_s3d
import paper_semi
import pytest
from experiment import Variant, begun, kept, parser
from figures import by_depth, difference, length
from golden import wording
from tiny_models import FAMILIES, Tiny

from localspec.cli.main import main
from localspec.drafters.saved import drafter_class
from localspec.models.shape import Shape

Make = Callable[[str], Tiny]


def runs(*by_seed: Sequence[tuple[int, int]]) -> list[list[dict[str, Any]]]:
    """Replies of (tokens, steps)."""
    return [[{"tokens": tokens, "steps": steps} for tokens, steps in run] for run in by_seed]


def drawn(share: float, prompts: int, seed: int) -> list[tuple[int, int]]:
    random = np.random.default_rng(seed)
    return [(int(tokens), 10) for tokens in 10 + random.binomial(20, share, prompts)]


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_length_is_of_all_tokens_and_steps_and_its_interval_narrows_with_more_prompts() -> None:
    assert length(runs([(30, 10), (10, 10)], [(20, 10), (20, 10)])).value == 2.0
    assert length(runs([(3, 1), (10, 10)])).value == pytest.approx(13 / 11), "long replies count for more"
    few, many = (length(runs(drawn(0.5, prompts, 1))) for prompts in (10, 1000))
    assert few.low < 2.0 < few.high
    assert many.high - many.low < (few.high - few.low) / 5


@pytest.mark.slow
def test_an_interval_holds_the_truth_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DRAWS", 400)
    found = [length(runs(drawn(0.5, 40, seed))) for seed in range(100)]
    assert 88 <= sum(one.low <= 2.0 <= one.high for one in found) <= 99


def test_a_difference_is_taken_prompt_by_prompt() -> None:
    base = drawn(0.5, 30, 2)
    better = [(tokens + 1, steps) for tokens, steps in base]
    found = difference(runs(better), runs(base))
    assert (found.value, found.low, found.high) == (pytest.approx(0.1),) * 3, "prompts vary, and the gain does not"
    other = difference(runs(drawn(0.5, 30, 3)), runs(base))
    assert other.low < 0 < other.high


def test_seeds_that_differ_widen_an_interval() -> None:
    same, apart = (length(runs(*([(tokens, 10)] * 50 for tokens in each))) for each in ((20, 20, 20), (15, 20, 25)))
    assert same.low == same.high == 2.0
    assert apart.low == 1.5 and apart.high == 2.5


def test_acceptance_by_depth_counts_steps() -> None:
    replies = [{"steps": 10, "depths": [0.5, 0.2]}, {"steps": 30, "depths": [1.0]}]
    assert by_depth([replies]) == [pytest.approx(35 / 40), pytest.approx(0.2)]


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_what_was_made_is_not_made_again_and_half_of_it_is_nothing(tmp_path: Path) -> None:
    file, made = tmp_path / "one.json", []

    def make() -> dict[str, int]:
        made.append(1)
        return {"a": len(made)}

    (tmp_path / "one.part").write_text('{"a":')
    assert kept(file, make) == kept(file, make) == {"a": 1}

    def breaking() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "two.json", breaking)
    assert not (tmp_path / "two.json").exists()


def asked_for(tmp_path: Path, *more: str) -> list[str]:
    return [
        "--prompts",
        str(tmp_path / "prompts.jsonl"),
        "--work",
        str(tmp_path / "work"),
        "--out",
        str(tmp_path / "page.md"),
        *more,
    ]


@pytest.mark.slow
def test_results_of_other_settings_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever decides a result: flags, and what is in files of text and of prompts, under whatever name."""
    prompts, data = tmp_path / "prompts.jsonl", tmp_path / "data.jsonl"
    prompts.write_text('{"prompt": "Tell me of dogs."}\n')
    data.write_text('{"text": "The cat sat."}\n')

    def ask(*more: str) -> Namespace:
        return begun(parser(""), [*asked_for(tmp_path, "--data", str(data)), *more])

    first = ask("--limit", "5")
    assert ask("--limit", "5", "--only", "Table").limit == first.limit, "what is left out is no other result"
    for more, name in ((["--limit", "6"], "limit"), (["--limit", "5", "--seeds", "7"], "seeds")):
        with pytest.raises(SystemExit):
            ask(*more)
        told = capsys.readouterr().err
        assert f"other settings: {name} was" in told and "give another --work, or the same settings" in told
    for file in (data, prompts):
        before = file.read_text()
        file.write_text(before + before)
        with pytest.raises(SystemExit):
            ask("--limit", "5")
        assert f"other settings: {file.stem} was" in capsys.readouterr().err
        file.write_text(before)
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "revision", lambda _: "another")
        with pytest.raises(SystemExit):
            ask("--limit", "5")
        assert "other settings: weights was" in capsys.readouterr().err, "of the same name, and made anew"
    ask("--limit", "5")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "0"], wording("limit_0_possible_give_whole")),
        (["--steps", "-1"], "-1 is not possible"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl cannot be read (No such file or directory)"),
        (["--prompts", "nowhere"], "nowhere cannot be read (No such file or directory)"),
        (["--prompts", "."], "holds no .jsonl files of prompts"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("The cat sat.")
    with pytest.raises(SystemExit) as left:
        paper_s3d.main([*asked_for(tmp_path, "--data", "data.txt"), *words])
    assert left.value.code == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


EIGHT = Shape(8, 64, 64, 4, 4, 16, 100, 100)
VARIANTS = {
    "medusa": [*paper_medusa.TABLE_2.values(), *paper_medusa.SHARED.values()],
    "s3d": [*paper_s3d.layers(EIGHT).values(), *paper_s3d.ADAPTERS.values()],
    "parallelspec": [one for group in paper_parallelspec.GROUPS.values() for one in group.values()],
    "semi": [one for group in paper_semi.GROUPS.values() for one in group.values()],
}


@pytest.mark.parametrize("paper", VARIANTS)
def test_every_variant_can_be_trained(paper: str) -> None:
    for variant in VARIANTS[paper]:
        assert variant.kind in experiment.RATES
        drafter_class(variant.kind).parse_options({**experiment.ALWAYS.get(variant.kind, {}), **variant.options})


def test_a_training_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(experiment.subprocess, "run", lambda words, **_: ran.append(words[3:]))
    asked = Namespace(work=tmp_path, data=[Path("a"), Path("b")], distilled=Path("own"), model="demo", steps=5)
    places = {
        experiment.trained(variant, seed, asked)
        for seed in (0, 1)
        for variant in (
            Variant("semi"), Variant("semi", {"recent": "lstm"}), Variant("semi", flags=("--labels", "text")),
            Variant("semi", distilled=True),
        )
    }  # fmt: skip
    assert len(places) == len(ran) == 8
    assert ran[0][:4] == ["train", "semi", "-m", "demo"] and ran[0][-3:] == ["--data", "a", "b"]
    assert ran[3][-2:] == ["--data", "own"]


def test_a_training_that_fails_has_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment.sys, "executable", "false")  # a program that ends with 1
    asked = Namespace(work=tmp_path, data=[Path("a")], distilled=None, model="demo", steps=5)
    with pytest.raises(SystemExit) as ended:
        experiment.trained(Variant("semi"), 0, asked)
    assert ended.value.code == 1


# -- all of it ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A few prompts, under the names of those that a paper's tasks are taken from."""
    place = tmp_path / "eval"
    place.mkdir()
    for name, category in {**dict(paper_ouroboros.TASKS.values()), "long_continue": "open"}.items():
        lines = [{"id": str(n), "category": category, "prompt": f"Tell me about {n} dogs."} for n in (2, 3)]
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return place


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    file = tmp_path / "text.jsonl"
    file.write_text(
        "\n".join(json.dumps({"text": f"The cat sat on the mat, and {n} dogs on the log. " * 8}) for n in range(60))
    )
    return file


PAPERS = {
    "merged": (merged_table, ["Greedy, 16"], ""),
    "medusa": (paper_medusa, ["Figure"], ""),
    "s3d": (paper_s3d, ["Table 4"], ""),
    "s3d, trained": (paper_s3d, ["Figure 5"], FAMILIES[3]),
    "parallelspec": (paper_parallelspec, ["Table 2"], FAMILIES[3]),
    "semi": (paper_semi, ["Figure 5"], FAMILIES[3]),
    "ouroboros": (paper_ouroboros, ["Table 4", "Figure 6"], ""),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("timed_briefly", "one_reply_of_each_kind")
@pytest.mark.parametrize("paper", PAPERS)
def test_all_of_it_runs_and_what_was_kept_is_not_made_again(
    tiny: Make, tmp_path: Path, prompts: Path, learned: Path, paper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, only, model = PAPERS[paper]
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(experiment.subprocess, "run", lambda words, **_: main(words[3:]))
    words = ["--prompts", str(prompts), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "page.md")]
    words += ["--smoke", "--only", *only, *(["-m", str(tiny(model).path)] if model else [])]
    if script not in (merged_table, paper_ouroboros):
        words += ["--data", str(learned), "--distilled", str(learned)]
    script.main(words)
    page = (tmp_path / "page.md").read_text("utf-8")
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles and all(title.startswith(tuple(only)) for title in titles)
    assert page.count("\n| --- |") >= len(titles)
    assert "nan" not in page

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was made before")

    monkeypatch.setattr(experiment.subprocess, "run", never)
    monkeypatch.setattr(experiment, "_said", never)
    script.main(words)
    assert (tmp_path / "page.md").read_text("utf-8") == page
