import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from each import each

from localspec.paths import OWNER_READS, OWNER_WRITES, Paths, mount_of, private_directory, without_rights, write_anew

posix = pytest.mark.skipif(os.name != "posix", reason="modes as on POSIX")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_home_moves_everything_below_one_directory(tmp_path):
    paths = Paths(tmp_path)
    assert paths.config_file == tmp_path / "config" / "config.toml"
    assert paths.user_models_file == tmp_path / "config" / "models.toml"
    assert paths.database == tmp_path / "data" / "localspec.db"
    assert paths.drafters == tmp_path / "data" / "drafters"
    assert paths.logs == tmp_path / "state" / "logs"


def test_without_home_the_platform_decides(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert "localspec" in Paths().config_file.parts
    if os.name == "posix" and os.uname().sysname == "Linux":
        assert Paths().database == tmp_path / "localspec" / "localspec.db"


def test_asking_makes_nothing(tmp_path):
    paths = Paths(tmp_path / "home")
    assert paths.database and paths.logs and paths.config_file
    assert list(tmp_path.iterdir()) == []


def test_the_mount_point_is_the_nearest_of_those_above(tmp_path, monkeypatch):
    (place := tmp_path / "a" / "b").mkdir(parents=True)
    mounted = {str(tmp_path.resolve()), str(tmp_path.resolve().parent)}
    monkeypatch.setattr(os.path, "ismount", lambda one: str(one) in mounted)
    assert mount_of(place) == tmp_path.resolve()


@each("mask", [0o000, 0o022, 0o177, 0o277, 0o777])
def test_private_directory_makes_every_missing_parent_private(tmp_path, mask):
    before = os.umask(mask)
    try:
        made = private_directory(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert made == tmp_path / "a" / "b" / "c"
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b"), mode(made)] == [0o700] * 3


def test_private_directory_closes_its_own_and_leaves_parents_unchanged(tmp_path):
    parent = tmp_path / "shared"
    (parent / "mine").mkdir(parents=True)
    parent.chmod(0o755)
    (parent / "mine").chmod(0o755)
    private_directory(parent / "mine")
    assert (mode(parent), mode(parent / "mine")) == (0o755, 0o700)


@posix
def test_private_directory_does_not_change_directories_above_a_way_back(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    private_directory(shared / "new" / ".." / "mine" / "data")
    assert (mode(shared), mode(shared / "mine"), mode(shared / "mine" / "data")) == (0o755, 0o700, 0o700)


def test_private_directory_opens_nothing(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert mode(private_directory(tmp_path / "locked")) == 0o500
    (tmp_path / "locked").chmod(0o700)


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        private_directory(tmp_path / "file" / "below")


@posix
def test_files_that_others_may_read_and_not_write(tmp_path):
    before = os.umask(0)
    try:
        with without_rights(OWNER_WRITES):
            (tmp_path / "one").mkdir()
            (tmp_path / "one" / "file").touch()
        with without_rights(OWNER_READS):
            (tmp_path / "private").touch()
        os.umask(0o077)
        with without_rights(OWNER_WRITES):
            (tmp_path / "stricter").touch()
        assert os.umask(0) == 0o077
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("one", "one/file", "private", "stricter")]
    assert modes == [0o755, 0o644, 0o600, 0o600]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "one.json"
    write_anew(file, b"first")
    write_anew(file, b"second")
    assert file.read_bytes() == b"second" and list(tmp_path.iterdir()) == [file]
    if os.name == "posix":
        assert mode(file) == 0o600
        write_anew(file, b"third", 0o644)
        assert mode(file) == 0o644


def test_a_file_that_cannot_be_replaced_stays_as_before(tmp_path, monkeypatch):
    write_anew(tmp_path / "one.json", b"first")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_anew(tmp_path / "one.json", b"second")
    assert (tmp_path / "one.json").read_bytes() == b"first" and len(list(tmp_path.iterdir())) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from localspec.paths import write_anew
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_anew(Path(sys.argv[1]), b"half")
"""


@posix
def test_what_a_killed_process_left_goes_when_the_file_is_written_again(tmp_path):
    file = tmp_path / "one.json"
    write_anew(file, b"first")
    subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert len(list(tmp_path.iterdir())) == 2 and file.read_bytes() == b"first"
    being_written = tmp_path / f".one.json.{os.getppid()}-1.new"
    anothers = tmp_path / ".one.json.mine.new"
    for other in (being_written, anothers):
        other.write_bytes(b"of a process that goes on, or of nobody we know")
    write_anew(file, b"second")
    assert set(tmp_path.iterdir()) == {file, being_written, anothers} and file.read_bytes() == b"second"
