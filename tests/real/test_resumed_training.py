"""A stopped training of a drafter for SmolLM2 continues, although another kind was trained on its answers meanwhile."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real.whole_matrix import WHOLE_MATRIX

from localspec.cli.main import main
from localspec.training import course_plan, verdict
from localspec.training.job import Job
from localspec.training.train import StepReport

FLAGS = ["--steps", "3", "--batch", "256", "--length", "128"]


@WHOLE_MATRIX  # cli/test_course.py does the same with a tiny model
def test_a_stopped_training_has_the_answers_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], published: Callable[[str], Path]
) -> None:
    for module, name, value in (
        (course_plan, "REPLY", 12), (verdict, "LEAST", 1), (verdict, "MOST", 1), (verdict, "TOKENS", 8),
        (verdict, "SECONDS", 0.0), (verdict, "REPLY_TOKENS", 8),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "stdin", None)
    running, model = Job.run, ["-m", str(published("smollm2")), *FLAGS]

    def stopped(self: Job, stop: Callable[[], bool]) -> Iterator[StepReport]:
        for seen in running(self, stop):
            signal.raise_signal(signal.SIGINT)
            yield seen

    def trained(home: str, *others: str) -> str:
        monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / home))
        with monkeypatch.context() as patch:
            patch.setattr(Job, "run", stopped)
            assert main(["train", "medusa", *model]) == 130
        with monkeypatch.context() as patch:
            patch.setattr(course_plan, "LEAST", 32)
            assert all(main(["train", kind, *model]) == 0 for kind in others)
        capfd.readouterr()
        assert main(["train", "medusa", *model]) == 0, capfd.readouterr().err
        (losses,) = (tmp_path / home / "data" / "drafters").glob("*-medusa/losses.jsonl")
        return losses.read_text()

    assert trained("by itself") == trained("with semi", "semi")
