"""`rm` deletes one revision, lists what else is affected, and asks first."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.hub_commands import WEIGHTS, at, common_cache, repository, stray
from command import sentence
from golden import wording
from hub_server import Hub, Repository, served

from localspec.cli import console, rm
from localspec.hub.cache import find_snapshot
from localspec.hub.sources import Source
from localspec.paths import Paths
from localspec.quantities import size

pytestmark = pytest.mark.slow


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return repository(tmp_path / "model", numbers=10_000)


@pytest.fixture
def hub(repo: Repository):
    with served(org__name=repo, org__other=Repository({**repo.files, "LICENSE": b"other"})) as hub:
        yield hub


def found(home: Path, name: str = "org/name", revision: str = "main") -> Path | None:
    return find_snapshot(Source(name, revision), Paths(home))


def test_asks_and_nobody_can_answer(home, hub: Hub):
    at(home, hub, "pull", "org/name")
    result = at(home, hub, "rm", "org/name")
    assert result.returncode == 2 and "--yes" in result.stderr and found(home)
    assert str(found(home)) in result.stdout and wording("other_programs_share_this_cache") in result.stdout


def test_nothing_goes_if_the_user_says_no(home, hub: Hub, monkeypatch):
    at(home, hub, "pull", "org/name")
    monkeypatch.setattr(console, "at_a_terminal", lambda: True)
    monkeypatch.setattr(console.typer, "confirm", lambda question: False)
    result = at(home, hub, "rm", "org/name")
    assert result.returncode == 0 and wording("nothing_was_deleted_2") in result.stdout and found(home)


def test_yes_deletes_it_and_its_record_and_nothing_else(home, hub: Hub, repo):
    at(home, hub, "pull", "org/name")
    at(home, hub, "pull", "org/other")
    total = sum(map(len, repo.files.values()))
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 0 and result.stderr == ""
    assert wording("deleted_are_free_again_2", size=size(total)) in result.stdout
    assert found(home) is None and not (common_cache(home) / "models--org--name").exists()
    assert sorted(path.name for path in (home / "data" / "pulled").glob("*.json")) == ["models--org--other.json"]
    assert at(home, hub, "verify", "org/other").returncode == 0
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 3 and wording("org_name_is_not_here") in sentence(result)


def test_what_another_revision_uses_stays(home, hub: Hub, repo):
    """Both have the same weights; only files of the removed revision are deleted."""
    at(home, hub, "pull", "org/name")
    old = found(home)
    repo.files["README.md"] += b"changed"
    repo.revisions["dev"] = "d" * 40
    at(home, hub, "pull", "org/name@dev")
    assert os.path.samefile(old / WEIGHTS, found(home, revision="dev") / WEIGHTS)
    result = at(home, hub, "rm", "org/name", "--yes")
    assert (
        "Other revisions of the repository are not deleted: org/name@dev." in result.stdout
        and wording("n28_bytes_are_free_again") in result.stdout
    )
    assert found(home) is None and at(home, hub, "verify", "org/name@dev").returncode == 0 and stray(home) == []
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 3 and wording("there_org_name_dev") in sentence(result)


def test_other_names_of_the_same_commit_are_listed(home, hub: Hub, repo):
    repo.revisions["v1.0"] = repo.revisions["main"]
    at(home, hub, "pull", "org/name")
    at(home, hub, "pull", "org/name@v1.0")
    result = at(home, hub, "rm", "org/name@v1.0", "--yes")
    assert (
        "Other names of the same commit are deleted too: main." in result.stdout
        and found(home) is None
        and found(home, revision="v1.0") is None
    )
    assert not (home / "data" / "pulled" / "models--org--name.json").exists()


@pytest.mark.parametrize("name", ["org/name", "org/moved"])
def test_another_repository_with_the_same_commit_stays(home, hub: Hub, repo, name):
    alike = ("org/name", "org/moved", "org/copied")
    hub.repositories |= dict.fromkeys(alike, repo)
    for one in alike:
        assert at(home, hub, "pull", one).returncode == 0
    hub.repositories[name] = Repository({**repo.files, "LICENSE": b"four"})
    hub.repositories[name].revisions["main"] = "d" * 40
    assert at(home, hub, "pull", name).returncode == 0
    assert found(home, name) != found(home, name, repo.revisions["main"])
    result = at(home, hub, "rm", f"{name}@{repo.revisions['main']}", "--yes")  # shares all files with the present one
    assert result.returncode == 0 and wording("deleted_0_bytes_free_again") in result.stdout
    total = sum(map(len, hub.repositories[name].files.values()))
    result = at(home, hub, "rm", name, "--yes")
    assert result.returncode == 0 and wording("deleted_are_free_again_2", size=size(total)) in result.stdout
    assert not (common_cache(home) / f"models--{name.replace('/', '--')}").exists()
    for one in alike:
        assert at(home, hub, "verify", one).returncode == (3 if one == name else 0)


def test_what_was_linked_in_from_elsewhere_stays(home, hub: Hub, repo, tmp_path):
    """While another revision stays, the client deletes each file that only this revision links to, wherever it is."""
    at(home, hub, "pull", "org/name")
    old = found(home)
    own = tmp_path / "own.safetensors"
    own.write_bytes((old / WEIGHTS).read_bytes())
    (old / WEIGHTS).unlink()
    (old / WEIGHTS).symlink_to(own)
    repo.files["README.md"] += b"changed"
    repo.revisions["dev"] = "d" * 40
    at(home, hub, "pull", "org/name@dev")
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 0 and wording("n28_bytes_are_free_again") in result.stdout and found(home) is None
    assert own.stat().st_size == len(repo.files[WEIGHTS]) and at(home, hub, "verify", "org/name@dev").returncode == 0


def test_registered_models_that_draft_with_it_are_listed(home, hub: Hub):
    (home / "config").mkdir()
    entries = '[small]\nrepo = "org/name"\n[large]\nrepo = "org/large"\ndraft = "small"\n'
    entries += '[huge]\nrepo = "org/huge"\ndraft = "org/name"\n[none]\nrepo = "org/none"\ndraft = "demo-draft"\n'
    (home / "config" / "models.toml").write_text(entries)
    assert at(home, hub, "pull", "small").returncode == 0
    result = at(home, hub, "rm", "small", "--yes")
    assert result.returncode == 0 and "Other models that use these files: large, huge." in " ".join(
        result.stdout.split()
    )


def test_registered_models_that_use_it_are_listed(home, hub: Hub):
    (home / "config").mkdir()
    (home / "config" / "models.toml").write_text('[mine]\nrepo = "org/name"\n["o\\u001b[2Jther"]\nrepo = "org/name"\n')
    assert at(home, hub, "pull", "mine").returncode == 0
    result = at(home, hub, "rm", "mine", "--yes")
    assert (
        result.returncode == 0
        and "Other models that use these files: o␛[2Jther." in result.stdout
        and found(home) is None
    )


def test_a_drafter_is_not_deleted_for_a_model_that_is_not_here(home, hub: Hub):
    (home / "config").mkdir()
    drafters = '[[{0}.drafters]]\nkind = "parallelspec"\nrepo = "org/name"\n'
    entries = '[large]\nrepo = "org/large"\n' + drafters.format("large")
    (home / "config" / "models.toml").write_text(entries)
    assert at(home, hub, "pull", "org/name").returncode == 0
    for command in (["rm", "large", "--yes"], ["verify", "large"]):
        result = at(home, hub, *command)
        assert result.returncode == 3 and "org/large" in sentence(result)
    assert found(home) is not None


def test_a_published_drafter_of_a_directory_is_fetched_verified_and_deleted_by_its_name(home, hub: Hub, tmp_path):
    (home / "config").mkdir()
    own = tmp_path / "model"  # the repository was made from it
    drafters = '[[own.drafters]]\nkind = "parallelspec"\nrepo = "org/name"\n'
    (home / "config" / "models.toml").write_text(f"[own]\npath = '{own}'\n{drafters}")
    assert at(home, hub, "rm", "own", "--yes").returncode == 3, "nothing was fetched yet"
    result = at(home, hub, "pull", "own", "--drafter", "none")
    assert result.returncode == 0 and wording("own_is_here_already_drafter") in result.stdout and found(home) is None
    planned = json.loads(at(home, hub, "pull", "own", "--drafter", "none", "--dry-run", "--json").stdout)
    assert (planned["sources"], planned["bytes"], planned["fits"]) == ([], 0, None)
    assert at(home, hub, "pull", "own", "--drafter", "parallelspec").returncode == 0 and found(home) is not None
    result = at(home, hub, "verify", "own")
    assert "own: the weights (" in result.stdout and "org/name" in result.stdout and result.returncode == 0
    assert at(home, hub, "rm", "own", "--yes").returncode == 0 and found(home) is None and own.is_dir()
    result = at(home, hub, "verify", "own")
    assert result.returncode == 0 and "org/name" not in result.stdout


def test_a_model_that_is_read_from_these_files_must_go_first(home, hub: Hub, monkeypatch):
    at(home, hub, "pull", "org/name")
    file = found(home) / "own.gguf"
    file.write_bytes(b"")
    monkeypatch.setattr(rm, "files_in_use", lambda *_: {os.path.realpath(file): "my own"})
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 1 and f"my own is read from {file}" in result.stderr and found(home)
    assert "`localspec rm 'my own'`" in result.stderr


def test_what_was_never_pulled(home, hub: Hub):
    result = at(home, hub, "rm", "org/name")
    assert result.returncode == 3 and "no cache" in sentence(result)
    result = at(home, hub, "rm", "demo", "--yes")
    assert result.returncode == 2 and wording("not_fetched_by_localspec_pull") in sentence(result)
    assert at(home, hub, "rm", "../../x", "--yes").returncode == 2
    assert hub.requests == []


def test_a_cache_that_is_damaged(home, hub: Hub):
    """A link that leads nowhere hides the repository from the client."""
    at(home, hub, "pull", "org/name")
    (found(home) / "config.json").resolve().unlink()
    result = at(home, hub, "rm", "org/name", "--yes")
    assert result.returncode == 1 and "is damaged" in result.stderr and "localspec pull org/name" in result.stderr
    assert at(home, hub, "pull", "org/name").returncode == 0
    assert at(home, hub, "rm", "org/name", "--yes").returncode == 0


def test_what_an_interrupted_pull_left_can_be_deleted(home, hub: Hub, repo):
    repo.sent[WEIGHTS] = b"x" * len(repo.files[WEIGHTS])
    at(home, hub, "pull", "org/name")
    assert found(home) is None
    result = at(home, hub, "rm", f"org/name@{repo.revisions['main']}", "--yes")
    assert result.returncode == 0 and not (common_cache(home) / "models--org--name").exists()


@pytest.mark.parametrize("left", ["blobs", "records"])
def test_a_deletion_that_was_stopped_is_ended_by_the_next(home, hub: Hub, monkeypatch, left):
    at(home, hub, "pull", "org/name")
    repository, record = common_cache(home) / "models--org--name", home / "data/pulled/models--org--name.json"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "x")

    with monkeypatch.context() as broken:
        if left == "blobs":
            broken.setattr("huggingface_hub.utils._cache_manager.shutil.rmtree", stopped_at(repository, full))
        else:
            broken.setattr("localspec.hub.cache.forget", full)
        assert at(home, hub, "rm", "org/name", "--yes").returncode == 1
    assert record.exists() and repository.exists() == (left == "blobs")
    again = at(home, hub, "rm", "org/name", "--yes")
    assert again.returncode == (0 if left == "blobs" else 3), again.stderr
    assert not record.exists() and not repository.exists()


def stopped_at(place: Path, fails: Callable[..., None]) -> Callable[..., None]:
    """Return a shutil.rmtree that does not delete that directory."""
    real = shutil.rmtree
    return lambda path, *more, **options: fails() if Path(path) == place else real(path, *more, **options)
