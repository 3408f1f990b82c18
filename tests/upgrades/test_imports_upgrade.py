"""A home whose imports are in the cache directory, as 66a34518 made it: they move, and everything still belongs to them."""

import errno
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from command import called, environment
from golden import wording

from localspec.engine.assemble import SavedPhrases
from localspec.events import Reporter
from localspec.models import only_copies
from localspec.models.drafter_cards import trained_drafters
from localspec.models.only_copies import is_only_copy, move_only_copies
from localspec.models.registry import resolve
from localspec.paths import Paths
from localspec.store.store import Store
from localspec.weights.packed_file import Origin
from localspec.weights.packed_files import imports, packed_files, packed_in

ARCHIVE = Path(__file__).parent / "imports-66a34518.tar.xz"
NAMES = {"here", "gone"}
STRIDE = 1 if "WHOLE_MATRIX" in os.environ else 3  # lines between kills
AS_THEN = ("-n", "24", "--seed", "1", "--temp", "1", "--top-p", "1", "--no-log")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "home"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.packed")}


def replies_of_then(home: Path) -> dict[str, str]:
    with Store.open(Paths(home).database, pytest.fail) as store:
        saved = filter(None, map(store.history.read, (1, 2)))
        return {one.info.model: one.turns[0].reply for one in saved}


@pytest.mark.slow
def test_every_model_answers_as_it_did_and_lies_in_the_data_directory_then(home: Path) -> None:
    before, said = contents(Paths(home).packed), replies_of_then(home)
    assert len(before) == 2 and said.keys() == NAMES
    for name, prompt in (("here", "hello"), ("gone", "hello again")):
        result = called(home, "run", prompt, "-m", name, *AS_THEN)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.removesuffix("\n") == said[name].removesuffix("\n")
    assert contents(Paths(home).imports) == before and not contents(Paths(home).packed)
    assert list(Paths(home).imports.glob("*.lock")) == []
    assert {row["name"] for row in json.loads(called(home, "list", "--json").stdout)} >= NAMES
    for name in NAMES:
        assert called(home, "verify", name).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("by", ["import", "run"])
def test_a_file_that_is_still_there_is_read_as_it_is_once_it_is_named(home: Path, by: str) -> None:
    pools = {pool["model"]: pool for pool in json.loads(called(home, "pool", "list", "--json").stdout)}
    file = home / "here.gguf"
    command = ("import", str(file)) if by == "import" else ("run", "hello", "-m", str(file), *AS_THEN)
    assert called(home, *command).returncode == 0
    reply = json.loads(called(home, "run", "hello", "-m", "here", "-n", "2", "--json").stdout)
    assert (reply["model"], reply["quantize"]) == ("here", "blocks")
    after = {pool["model"]: pool for pool in json.loads(called(home, "pool", "list", "--json").stdout)}
    assert after.keys() == pools.keys() and after["here"]["phrases"] >= pools["here"]["phrases"] > 0
    paths = Paths(home)
    assert len([*paths.imports.glob("*-int8-*.packed")]) == 2, "what was promised to be a copy stays one"
    file.unlink()
    reply = called(home, "run", "hello", "-m", "here", *AS_THEN)
    assert reply.returncode == 0 and wording("answers_as_packed_before") in reply.stderr
    assert reply.stdout.removesuffix("\n") == replies_of_then(home)["here"].removesuffix("\n")
    result = called(home, "rm", "here", "--yes")
    assert (
        result.returncode == 0
        and "learned from the model stay until you run `localspec pool clear here`" in result.stdout
    )
    assert len([*paths.imports.glob("*.packed")]) == 1


def test_the_settings_and_the_conversation_still_name_the_model(home: Path) -> None:
    result = called(home, "run", "hi", "-n", "1", "--no-log", "--json")
    assert json.loads(result.stdout)["model"] == "gone"
    result = called(home, "run", "-c", "more", "-n", "1")
    assert result.returncode == 0, result.stderr
    with Store.open(Paths(home).database, pytest.fail) as store:
        saved = store.history.read(2)
        assert saved and saved.info.model == "gone" and len(saved.turns) == 3


def test_the_path_of_then_is_still_a_name(home: Path) -> None:
    file = next(iter(Paths(home).packed.glob("*.packed")))
    before = called(home, "run", "hi", "-m", str(file), *AS_THEN)
    assert before.returncode == 0 and not file.exists()
    assert called(home, "run", "hi", "-m", str(file), *AS_THEN).stdout == before.stdout


def test_phrases_belong_to_the_model_in_both_places(home: Path) -> None:
    paths = Paths(home)
    with Store.open(paths.database, pytest.fail) as store:
        pools = {pool.model: pool for pool in store.phrases.pools()}
        assert pools.keys() == NAMES and all(pool.phrases for pool in pools.values())
        for name, pool in pools.items():  # the archive was written elsewhere
            place = str(paths.packed / Path(str(pool.path)).name)
            assert store.phrases.pool(name, pool.tokenizer, place) == pool.pool
    move_only_copies(paths, Reporter())
    with Store.open(paths.database, pytest.fail) as store, pytest.MonkeyPatch.context() as patched:
        patched.setenv("LOCALSPEC_HOME", str(home))
        for name, pool in pools.items():
            found = SavedPhrases.open(store, resolve(name, paths), pool.tokenizer, True, Reporter())
            assert found and found.pool_id == pool.pool
        now = {pool.pool: pool for pool in store.phrases.pools()}
        assert len(now) == 2 and {pool.path for pool in now.values()} == {str(one.path) for one in packed_files(paths)}
        assert {pool: one.phrases for pool, one in now.items()} == {one.pool: one.phrases for one in pools.values()}


def test_the_trained_drafter_still_belongs_to_its_model(home: Path) -> None:
    assert [one.kind for one in trained_drafters(resolve(str(home / "model")), Paths(home))] == ["medusa"]


@pytest.fixture(params=["rename", "copy"])
def moved_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "copy":
        onto_another_disk(monkeypatch)
    return str(request.param)


def onto_another_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(*_: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(only_copies.os, "rename", rename)


def killed_at(line: int, move: Callable[[], None]) -> bool:
    """Run it in a child that is killed before this line of the module that moves; False where it had ended before."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != only_copies.__file__:
            return None
        left -= event == "line"
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    with suppress(BaseException):
        move()
    os._exit(0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize("again", [False, True], ids=["killed once", "killed at each try"])
def test_a_move_that_is_killed_anywhere_loses_nothing(home: Path, moved_by: str, again: bool) -> None:
    paths, lines = Paths(home), 0
    before = contents(paths.packed)
    while killed_at(lines + 1, lambda: move_only_copies(paths, Reporter())):
        lines += STRIDE
        assert {one.header.origin.name for one in packed_files(paths)} == NAMES
        here = {**contents(paths.packed), **contents(paths.imports)}
        assert here == before
        if not again:
            for file in paths.imports.glob("*.packed"):
                os.replace(file, paths.packed / file.name)
    assert again or lines > (10 if moved_by == "rename" else 20)
    move_only_copies(paths, Reporter(pytest.fail))
    assert contents(paths.imports) == before and not contents(paths.packed)
    assert {file.suffix for file in paths.imports.iterdir()} <= {".packed", ".lock"}


def test_a_full_disk_leaves_them_where_they_are_and_they_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    onto_another_disk(monkeypatch)
    before = contents(Paths(home).packed)
    monkeypatch.setattr(only_copies.os, "fsync", full)
    result = called(home, "run", "hello again", "-m", "gone", *AS_THEN)
    assert result.returncode == 0 and result.stderr.count("\n") == 1
    assert wording("could_not_be_moved_to") in result.stderr
    assert contents(Paths(home).packed) == before and list(Paths(home).imports.iterdir()) == []
    monkeypatch.undo()
    assert called(home, "run", "hello again", "-m", "gone", *AS_THEN).stdout == result.stdout
    assert contents(Paths(home).imports) == before


def test_one_that_cannot_be_moved_keeps_no_other_and_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, move, said = Paths(home), only_copies._move, list[str]()
    stays, other = (one.path for one in packed_in(paths.packed))  # in the order in which they are tried

    def refuse(file: Path, new: Path, reporter: Reporter) -> None:
        if file == stays:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        move(file, new, reporter)

    monkeypatch.setattr(only_copies, "_move", refuse)
    move_only_copies(paths, Reporter(said.append))
    assert len(said) == 1 and f"{stays} (Permission denied)" in said[0] and str(other) not in said[0]
    assert wording("free_space_or_correct_permissions") in said[0]
    assert stays.exists() and not other.exists() and (paths.imports / other.name).exists()
    monkeypatch.undo()
    move_only_copies(paths, Reporter(pytest.fail))
    assert (paths.imports / stays.name).exists() and not list(paths.imports.glob("*.lock"))


@pytest.mark.slow
def test_several_processes_at_once_find_every_model(home: Path) -> None:
    command = [sys.executable, "-m", "localspec", "run", "hi", "-n", "24", "--no-log", "-m"]
    started = [
        subprocess.Popen([*command, name], env=environment(home), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for name in ("here", "gone", "here", "gone")
    ]
    assert [(one.communicate()[1], one.returncode) for one in started] == [(b"", 0)] * 4


def test_what_can_be_made_again_stays_in_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths, files = Paths(tmp_path), {"model.safetensors": (1, "")}
    pulled = Origin("org/name", "0" * 40, repo="org/name", commit="1" * 40, files=files)
    monkeypatch.setattr(only_copies, "find_snapshot", lambda source, paths: tmp_path)
    assert not is_only_copy(pulled, paths)
    assert not is_only_copy(Origin(str(tmp_path), "0" * 40, files=files), paths)
    assert not is_only_copy(Origin("a drafter, of mine", "0" * 40), paths)
    assert is_only_copy(Origin("mine", "0" * 40, files={"/somewhere/mine.gguf": (1, "")}), paths)
    assert is_only_copy(Origin("org/name:Q8_0", "0" * 40, repo="org/name:Q8_0", files={"a.gguf": (1, "")}), paths)
    monkeypatch.setattr(only_copies, "find_snapshot", lambda source, paths: None)
    assert is_only_copy(pulled, paths)


@pytest.mark.slow
def test_an_import_that_cannot_be_read_stays_and_is_named(home: Path) -> None:
    file = imports(Paths(home))["gone"].path
    damaged = file.read_bytes()[:-1]
    file.write_bytes(damaged)
    result = called(home, "list")
    assert result.returncode == 0 and wording("left_out_packed_file_damaged", name="gone", file=file) in result.stderr
    assert called(home, "run", "hi", "-m", "here", "-n", "1", "--no-log").returncode == 0
    assert called(home, "doctor", "--help").returncode == 0 and file.read_bytes() == damaged
