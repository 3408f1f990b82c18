"""`verify` compares files with their recorded digests, or with their names in the cache, and needs no network."""

import json
from pathlib import Path

import pytest
from checkpoints import write_checkpoint, write_drafter
from cli.hub_commands import WEIGHTS, at, repository
from command import called, sentence
from golden import wording
from hub_server import Hub, served

from localspec.hub.cache import find_snapshot
from localspec.hub.sources import Source
from localspec.models.drafter_cards import file_digest
from localspec.paths import Paths

pytestmark = pytest.mark.slow

GONE = Hub(endpoint="http://127.0.0.1:9")


@pytest.fixture
def home(home: Path, tmp_path: Path) -> Path:
    """Return the home of a user who pulled org/name from a server that is gone now."""
    with served(org__name=repository(tmp_path / "model", numbers=10_000)) as hub:
        assert at(home, hub, "pull", "org/name").returncode == 0
    return home


@pytest.fixture
def path(home: Path) -> Path:
    found = find_snapshot(Source("org/name"), Paths(home))
    assert found is not None
    return found


@pytest.fixture(params=["recorded", "by its names"])
def recorded(request, home: Path) -> bool:
    if request.param != "recorded":
        (home / "data" / "pulled" / "models--org--name.json").unlink()
    return request.param == "recorded"


def test_whole(home, recorded: bool):
    result = at(home, GONE, "verify", "org/name", HF_HUB_OFFLINE="1")
    assert result.returncode == 0 and result.stderr == ""
    assert (
        wording("recorded_when_it_was_pulled") if recorded else wording("their_names_in_the_cache")
    ) in result.stdout
    assert "4 files agree" in result.stdout


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json", "config.json"])
def test_one_changed_bit(home, path: Path, recorded: bool, name: str):
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).resolve().write_bytes(content)
    result = at(home, GONE, "verify", "org/name")
    assert result.returncode == 1 and f"{name} is damaged" in result.stdout
    assert f"{name} is damaged" in result.stderr and "`localspec pull org/name`" in result.stderr


def test_cut_short_missing_and_leading_nowhere(home, path: Path, recorded: bool):
    (path / WEIGHTS).resolve().write_bytes((path / WEIGHTS).read_bytes()[:-1])
    result = at(home, GONE, "verify", "org/name")
    assert result.returncode == 1 and WEIGHTS in result.stdout
    (path / WEIGHTS).resolve().unlink()
    result = at(home, GONE, "verify", "org/name")
    assert result.returncode == 1 and f"{WEIGHTS} is missing" in result.stdout
    (path / WEIGHTS).unlink()
    result = at(home, GONE, "verify", "org/name")
    assert result.returncode == 1 and "missing" in result.stderr
    assert find_snapshot(Source("org/name"), Paths(home)) is None


def test_what_is_not_here(home):
    result = at(home, GONE, "verify", "org/nothing")
    assert result.returncode == 3 and "`localspec pull org/nothing`" in sentence(result)
    assert at(home, GONE, "verify", "org/name@v2").returncode == 3
    assert at(home, GONE, "verify", "../../x").returncode == 2


def test_the_demo_has_no_digests(home):
    result = at(home, GONE, "verify", "demo")
    assert result.returncode == 0 and wording("whole_far_their_own_headers_tell") in result.stdout


def test_drafters_are_compared_with_their_digests(tmp_path):
    model = write_checkpoint(tmp_path / "model")
    file = write_drafter(model / "drafters" / "medusa", model)
    card = json.loads((file.parent / "drafter.json").read_text())
    result = called(tmp_path, "verify", str(model))
    assert result.returncode == 0 and wording("its_weights_are_complete") in result.stdout
    (file.parent / "drafter.json").write_text(json.dumps({**card, "sha256": file_digest(file)}))
    result = called(tmp_path, "verify", str(model))
    assert result.returncode == 0 and wording("weights_agree_with_their_digest") in result.stdout
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    result = called(tmp_path, "verify", str(model))
    assert result.returncode == 1 and f"{file} has changed" in result.stdout
    assert f"{file} has changed" in result.stderr and wording("train_the_drafter_again") in result.stderr


def test_repositories_of_other_programs(home, path: Path):
    (home / "data" / "pulled" / "models--org--name.json").unlink()
    copy = (path / "config.json").read_bytes()
    (path / "config.json").unlink()
    (path / "config.json").write_bytes(copy)
    result = at(home, GONE, "verify", "org/name")
    assert result.returncode == 0 and wording("n3_files_agree_their_names") in result.stdout
