"""`rm` of a model with learned data: its questions, what it deletes, and what it keeps."""

import json
import tarfile
from pathlib import Path

import pytest
from command import called
from golden import wording

from localspec.cli import console, rm
from localspec.paths import Paths

ARCHIVE = Path(__file__).parents[1] / "upgrades" / "imports-66a34518.tar.xz"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "home"


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the questions to a user at a terminal who answers yes to the first one and no to the others."""
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return len(asked) == 1

    monkeypatch.setattr(console, "at_a_terminal", lambda: True)
    monkeypatch.setattr(rm, "at_a_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", confirm)
    return asked


def phrases(home: Path) -> dict[str, int]:
    return {pool["model"]: pool["phrases"] for pool in json.loads(called(home, "pool", "list", "--json").stdout)}


def test_at_a_terminal_it_offers_to_delete_its_phrases(home: Path, questions: list[str]) -> None:
    before = phrases(home)
    result = called(home, "rm", "gone")
    assert (result.returncode, result.stderr) == (0, "") and len(questions) == 2
    assert questions[1] == wording("also_learned_phrases_delete_them", before=before["gone"])
    assert wording("phrases_learned_stay_until", before=before["gone"]) in result.stdout
    assert wording("n1_conversation_stay_until") in result.stdout
    assert phrases(home) == before and called(home, "run", "hi", "-m", "gone").returncode == 3
    assert called(home, "pool", "clear", "gone", "--yes").returncode == 0
    assert phrases(home) == {**before, "gone": 0}


def test_a_script_says_whether_they_go(home: Path) -> None:
    before = phrases(home)
    result = called(home, "rm", "gone", "--yes")
    assert result.returncode == 0 and wording("stay_until_localspec_pool_clear") in result.stdout
    assert phrases(home) == before
    result = called(home, "rm", "here", "--yes", "--phrases")
    assert result.returncode == 0 and f"Deleted {before['here']} phrases." in result.stdout
    assert phrases(home) == {**before, "here": 0}


@pytest.mark.slow
def test_a_drafter_that_the_user_trained_elsewhere_stays_and_is_named(home: Path, monkeypatch) -> None:
    trained = [(home / "elsewhere", {"kept": False}), (rm.SHIPPED / "one", {})]
    monkeypatch.setattr(rm, "drafter_directories", lambda card: trained)
    result = called(home, "rm", "gone")  # named before the question, which nobody answers
    assert (
        result.returncode == 2
        and f"A drafter that was trained for the model is not deleted: {home / 'elsewhere'}." in result.stdout
    )
    assert result.stdout.count("A drafter that was trained") == 1
    result = called(home, "rm", "gone", "--yes")
    assert result.returncode == 0 and result.stdout.count("A drafter that was trained") == 1


def test_phrases_of_a_model_that_is_still_here_are_not_offered(home: Path, questions: list[str]) -> None:
    assert called(home, "import", "here.gguf", "--quantize", "int4").returncode == 0
    before, int4 = phrases(home), next(Paths(home).packed.glob("*-int4-*.packed"))
    assert called(home, "rm", str(int4)).returncode == 0
    assert len(questions) == 1 and phrases(home) == before


@pytest.mark.slow
def test_what_was_remembered_of_its_tokenizer_goes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.models.tokenizer_trial._tried", {})
    for name in ("here", "gone"):
        assert called(home, "run", "hi", "-m", name, "-n", "1", "--no-log").returncode == 0
    (Paths(home).tokenizers / "0").touch()
    assert len(list(Paths(home).tokenizers.iterdir())) == 2  # both models have the same one
    assert called(home, "rm", "here", "--yes").returncode == 0
    assert [file.name for file in Paths(home).tokenizers.iterdir()] == ["0"]
    assert called(home, "run", "hi", "-m", "gone", "-n", "1", "--no-log").returncode == 0


def test_answers_for_trainings_go_with_their_model(home: Path) -> None:
    kept = [Paths(home).answers / name for name in ("gone-0123456789ab", "gone-other-0123456789ab", "gone-x")]
    for place in kept:
        (place / "readings").mkdir(parents=True)
        (place / "readings" / "readings.bin").write_bytes(bytes(2 * 2**20))
    result = called(home, "rm", "gone")
    assert result.returncode == 2 and wording("saved_answers_deleted_too") in result.stdout and kept[0].exists()
    result = called(home, "rm", "gone", "--yes")
    assert result.returncode == 0 and wording("deleted_answers_trainings") in result.stdout
    assert [place.exists() for place in kept] == [False, True, True]
