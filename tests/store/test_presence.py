"""It is known that a conversation is open in another window, as long as that window exists."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec.store.history import Presence

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="presence is not tracked on Windows")

WINDOW = """
import sys
from pathlib import Path
from localspec.store.history import Presence
presence = Presence(Path(sys.argv[1]))
for conversation in sys.argv[2:]:
    print(presence.enter(int(conversation)), flush=True)
sys.stdin.read()
"""


@contextmanager
def window(database: Path, *conversations: int) -> Iterator[list[str]]:
    """Yield the answers of a process that opens these conversations one after the other. It is killed at the end."""
    command = [sys.executable, "-c", WINDOW, str(database), *map(str, conversations)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [process.stdout.readline().strip() for _ in conversations]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_the_second_and_every_later_window_is_notified(tmp_path):
    database = tmp_path / "localspec.db"
    here = Presence(database)
    assert not here.enter(3) and not here.enter(3)
    with window(database, 3) as told:
        assert told == ["True"]
        here.enter(4)
        with window(database, 3, 5, 4) as told:
            assert told == ["True", "False", "True"]
            assert here.enter(4) is False, "a window that has it open already gets no notice"
        assert not here.enter(4) and here.enter(3)
    here.enter(None)
    assert not here.enter(3), "a window that was killed has none open"
    here.close()
    with window(database, 3) as told:
        assert told == ["False"]


def test_if_windows_cannot_be_counted_each_seems_to_be_the_only_one(tmp_path):
    (tmp_path / "file").touch()
    for database in (None, tmp_path / "file" / "localspec.db"):
        presence = Presence(database)
        assert not presence.enter(1)
        presence.close()
    presence = Presence(tmp_path / "localspec.db")
    assert not presence.enter(2**70) and not presence.enter(-1)
    presence.close()
