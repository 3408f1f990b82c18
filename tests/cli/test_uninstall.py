"""`localspec uninstall`: all that localspec wrote is listed and, after a question, deleted, and nothing else."""

import errno
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from cli.hub_commands import at, common_cache, home_with_cache, repository
from clocks import PATIENCE
from command import called, environment, sentence
from golden import wording
from hub_server import Repository, served

from localspec.cli import console, uninstall
from localspec.paths import Paths
from localspec.store import cleaning

ARCHIVE = Path(__file__).parents[1] / "upgrades" / "imports-66a34518.tar.xz"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    home, paths = tmp_path / "home", Paths(tmp_path / "home")
    assert called(home, "run", "a secret question", "-m", "here", "-n", "1").returncode == 0
    for file in (paths.copied, paths.serving_key, paths.socket, paths.kernels / "one", paths.user_models_file):
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    return home


def files(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_it_deletes_all_that_was_written_and_nothing_else(home: Path) -> None:
    mine = [home / "data" / "mine.txt", home / "cache" / "other" / "mine.txt"]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    result = called(home, "uninstall", "--yes")
    assert (result.returncode, result.stderr) == (0, "")
    assert files(home) == {*mine, home / "here.gguf", *files(home / "model")}
    assert not (home / "config").exists() and not (home / "state").exists()
    assert wording("stays_holds_files_localspec_did", home=home / "data") in result.stdout
    assert result.stdout.splitlines()[-1].startswith(wording("remove_program_itself_uv_tool"))
    again = called(home, "uninstall", "--yes")
    assert again.returncode == 0 and again.stdout.startswith(wording("localspec_keeps_nothing_machine"))


def test_it_lists_every_file_that_it_deletes(home: Path) -> None:
    before = files(home) - files(home / "model") - {home / "here.gguf"}
    places = {place.path for places in uninstall.places_of(Paths(home)).values() for place in places}
    assert before and all(places & {file, *file.parents} for file in before)
    listed = called(home, "uninstall").stdout
    assert all(f"  {place.name}: " in listed for place in places if place.exists())
    assert all(line.startswith("  ") != Path(line).is_dir() for line in listed.splitlines()), "indented below its root"


def test_nothing_goes_before_somebody_agrees(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(home)
    result = called(home, "uninstall")
    assert result.returncode == 2 and "--yes" in result.stderr and files(home) == before
    monkeypatch.setattr(console, "at_a_terminal", lambda: True)
    monkeypatch.setattr(console.typer, "confirm", lambda question: False)
    result = called(home, "uninstall")
    assert result.returncode == 0 and result.stdout.endswith(wording("nothing_was_deleted_2")) and files(home) == before


def test_words_are_overwritten_before_they_go(home: Path) -> None:
    for file in files(home / "data"):
        if b"a secret question" in file.read_bytes():
            os.link(file, home / f"link-{file.name}")
    links = list(home.glob("link-*"))
    assert links and called(home, "uninstall", "--yes").returncode == 0
    assert all(link.read_bytes() == bytes(link.stat().st_size) for link in links)


def test_only_the_database_goes_where_it_lies_behind_a_link(home: Path, tmp_path: Path) -> None:
    """Other files behind the link may belong to someone else: they are listed, and stay."""
    settings, database, packed = Paths(home).config_file, Paths(home).database, Paths(home).packed
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("")
    for place in (settings, database, packed):
        place.rename(tmp_path / place.name)
        place.symlink_to(tmp_path / place.name)
    (tmp_path / "packed" / "thesis.tex").write_text("mine")
    result = called(home, "uninstall", "--yes")
    assert result.returncode == 0 and not (tmp_path / "localspec.db").exists()
    assert (tmp_path / "packed" / "thesis.tex").read_text() == "mine" and (tmp_path / "config.toml").exists()
    assert not any(os.path.lexists(place) for place in (settings, database, packed))
    for place in (tmp_path / "packed", tmp_path / "config.toml"):
        assert f"a link to {place}, which stays" in result.stdout


def test_files_of_others_stay_in_the_directories_of_packed_models(home: Path) -> None:
    mine = [Paths(home).packed / "mine.txt", Paths(home).data_dir / "localspec.db.mybackup"]
    mine[0].parent.mkdir(exist_ok=True)
    for file in mine:
        file.write_text("mine")
    called(home, "use", "here")
    result = called(home, "uninstall", "--yes")
    assert result.returncode == 0 and all(file.read_text() == "mine" for file in mine)
    assert f"\n              {mine[0]} stays, because localspec did not write it" in result.stdout
    assert files(home) == {*mine, home / "here.gguf", *files(home / "model")}


def test_what_cannot_be_deleted_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(uninstall, "erase", refuse)
    result = called(home, "uninstall", "--yes")
    database = Paths(home).database
    assert result.returncode == 1 and str(database) in result.stderr
    assert wording("could_deleted_permission_denied") in result.stderr
    assert database.exists() and not Paths(home).packed.exists()
    monkeypatch.undo()
    assert called(home, "uninstall", "--yes").returncode == 0 and not database.exists()


def test_a_home_that_cannot_be_written_is_left_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file: file.read_bytes() for file in files(home)}

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(uninstall.os, "access", lambda path, mode: False)
    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(uninstall.shutil, "rmtree", refuse)
    result = called(home, "uninstall", "--yes")
    assert result.returncode == 1 and wording("nothing_was_deleted_correct_that") in result.stderr
    assert result.stderr.count("Permission denied") == 1
    assert {file: file.read_bytes() for file in files(home)} == before


def test_the_rest_is_only_claimed_to_be_gone_if_something_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninstall.os, "access", lambda path, mode: Path(path) != Paths(home).data_dir)
    result = called(home, "uninstall", "--yes")
    assert result.returncode == 1 and wording("other_files_are_deleted") in result.stderr
    assert Paths(home).database.exists() and not Paths(home).packed.exists()


def test_a_directory_that_cannot_be_read_has_no_size(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path) == Paths(home).packed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(uninstall.os, "scandir", refuse)
    listed = called(home, "uninstall").stdout
    assert "unreadable  packed: packed models" in listed and "0 bytes  packed" not in listed


@pytest.mark.parametrize("refused", ["listdir", "lstat"])
def test_it_says_so_where_it_cannot_look(home: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Data that it cannot see would seem to be missing, and the user would believe that they were deleted."""
    data, original, before = Paths(home).data_dir, getattr(os, refused), files(home)

    def refuse(path: str | Path, *rest: object, **more: object) -> object:
        if data in (Path(path), Path(path).parent):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *rest, **more)

    monkeypatch.setattr(uninstall.os, refused, refuse)
    result = called(home, "uninstall", "--yes")
    assert result.returncode == 1 and f"{data}" in result.stderr and wording("cannot_be_used") in result.stderr
    assert files(home) == before


def test_a_link_in_place_of_a_directory_is_not_said_to_hold_files(home: Path, tmp_path: Path) -> None:
    data = Paths(home).data_dir
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    result = called(home, "uninstall", "--yes")
    assert result.returncode == 0 and not files(tmp_path / "elsewhere")
    assert wording("stays_and_is_empty", path=data) in result.stdout


def test_sizes_are_those_of_what_is_deleted(home: Path) -> None:
    place = next(one for one in uninstall.places_of(Paths(home))[Paths(home).cache_dir] if one.path.name == "packed")
    place.path.mkdir(exist_ok=True)
    (place.path / "one.packed").write_text("packed")
    before = uninstall.FoundPlace.of(place)
    assert before.bytes == sum(file.stat().st_size for file in files(place.path)) > 0
    (place.path / "thesis").mkdir()
    for file in ("thesis.tex", "thesis/one.packed"):
        (place.path / file).write_text("mine")
    assert uninstall.FoundPlace.of(place).bytes == before.bytes
    assert {file.name for file in uninstall.FoundPlace.of(place).foreign} == {"thesis", "thesis.tex"}


def test_what_was_remembered_of_digests_goes(home: Path) -> None:
    Paths(home).packed.mkdir(exist_ok=True)
    (Paths(home).packed / "digests.json").write_text("{}")
    assert called(home, "uninstall", "--yes").returncode == 0
    assert not Paths(home).cache_dir.exists()


@pytest.mark.slow
def test_a_choice_that_names_any_directory_does_no_harm(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "etc"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    Paths(home).config_file.unlink(missing_ok=True)
    for name in (os.path.relpath(outside), str(outside)):
        Paths(home).choice.write_text(json.dumps({"model": name, "by": "use"}))
        assert name not in called(home, "use").stdout
        result = called(home, "run", "hi", "-n", "1", "--no-log")
        assert result.returncode == 0 and wording("model_that_was_chosen_last_no_longer", name=name) in result.stderr
    assert called(home, "uninstall", "--yes").returncode == 0
    assert (outside / "mine").read_text() == "mine" and not Paths(home).choice.exists()


def test_a_large_file_is_overwritten_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "_PIECE", 3)
    (tmp_path / "one").write_bytes(b"x" * 10)
    os.link(tmp_path / "one", tmp_path / "two")
    cleaning.erase(tmp_path / "one")
    assert not (tmp_path / "one").exists() and (tmp_path / "two").read_bytes() == bytes(10)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="other processes' files cannot be seen there")
def test_it_refuses_while_a_chat_runs_and_names_it(home: Path) -> None:
    chat = subprocess.Popen(
        [sys.executable, "-m", "localspec", "chat", "--plain", "-m", "here"],
        env=environment(home), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + PATIENCE
        while not any(map(os.path.isfile, _opened(chat.pid, home))):
            assert time.monotonic() < until and chat.poll() is None
            time.sleep(0.05)
        before = files(home) - _journals(home)
        result = called(home, "uninstall", "--yes")
        assert (
            result.returncode == 1 and f"Process {chat.pid} (" in sentence(result) and "chat --plain" in result.stderr
        )
        assert before <= files(home)
    finally:
        chat.kill()
        chat.communicate()
    assert called(home, "uninstall", "--yes").returncode == 0


def _journals(home: Path) -> set[Path]:
    # SQLite creates and removes its rollback journal whenever the chat writes.
    return set(home.rglob("*-journal"))


def _opened(process: int, home: Path) -> list[str]:
    import psutil

    found = [file.path for file in psutil.Process(process).open_files()]
    return [file for file in found if file.startswith(str(Paths(home).data_dir))]


@pytest.mark.slow
def test_fetched_models_go_only_where_that_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = home_with_cache(tmp_path, monkeypatch)
    fetched = repository(tmp_path / "model", numbers=10_000)
    with served(org__name=fetched, org__other=Repository({**fetched.files, "LICENSE": b"other"})) as hub:
        for name in ("org/name", "org/other"):
            assert at(home, hub, "pull", name).returncode == 0
        result = at(home, hub, "uninstall", "--yes")
        assert result.returncode == 0, result.stderr
        assert "org/name, in " in result.stdout and wording("stay_hugging_face_cache") in result.stdout
        assert len(list(common_cache(home).glob("models--*"))) == 2 and not Paths(home).data_dir.exists()
        for name in ("org/name", "org/other"):
            assert at(home, hub, "pull", name).returncode == 0
        assert at(home, hub, "uninstall", "--yes", "--fetched").returncode == 0
        assert list(common_cache(home).glob("models--*")) == []
