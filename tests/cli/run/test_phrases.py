"""`localspec run`: phrases between sessions, the flags that save them and those that do not."""

import contextlib
import json
import sqlite3
import stat
import struct
from typing import Any

import pytest
from cli.run.run_command import kept_tokens, process
from clocks import PATIENCE
from scripted_models import scripted_model

from localspec.cli.main import main
from localspec.paths import Paths
from localspec.store.store import Store

pytestmark = pytest.mark.slow


def test_the_second_time_is_faster(home, long):

    def answer() -> dict[str, Any]:
        with process(home, "-m", long.path, "hi", "--json", "--draft-max", 8) as running:
            out, err = running.communicate(timeout=PATIENCE)
        assert (running.returncode, err) == (0, b"")
        reply: dict[str, Any] = json.loads(out)
        assert reply["text"] == long.text
        return reply

    first, second = answer(), answer()
    assert first["speculation"]["acceptance_length"] == 1.0
    assert second["speculation"]["acceptance_length"] > 3
    assert second["speculation"]["sources"]["phrases"] > len(long.ids) / 2
    database = Paths(home).database
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700


def test_what_learns_and_what_forgets(run, long):
    def length(*arguments: object) -> float:
        drafter = (
            () if "--no-spec" in arguments else ("--drafter", "phrases", "--draft-max", 8)
        )  # otherwise a busy machine switches drafts off
        reply = run("-m", long.path, "hi", "--json", *drafter, *arguments).json
        assert reply["text"] == long.text
        return float(reply["speculation"]["acceptance_length"])

    for arguments in (["--no-log"], ["--pool", "readonly"], ["--pool", "off"], ["--no-spec"]):
        assert length(*arguments) == length(*arguments) == 1.0
    assert length() == 1.0
    assert length() > 3
    assert length("--pool", "off") == 1.0
    assert length("--pool", "readonly") > 3 and length("--no-log") > 3
    assert main(["pool", "clear", "--yes"]) == 0
    assert length("--no-log") == length() == 1.0


def test_a_directory_has_its_phrases_however_it_is_spelt(run, home, long, monkeypatch):
    monkeypatch.chdir(long.path.parent)
    spellings = (str(long.path), long.path.name, f"./{long.path.name}", f"{long.path}/")
    ask = ("hi", "--json", "--drafter", "phrases", "--draft-max", 8)  # otherwise a busy machine switches drafts off
    lengths = [run("-m", name, *ask).json["speculation"]["acceptance_length"] for name in spellings]
    assert lengths[0] == 1.0 and min(lengths[1:]) > 3
    with Store.open(Paths(home).database, lambda sentence: pytest.fail(sentence)) as store:
        assert [pool.model for pool in store.phrases.pools()] == [str(long.path)]
    assert main(["pool", "clear", f"./{long.path.name}", "--yes"]) == 0
    assert run("-m", long.path, *ask).json["speculation"]["acceptance_length"] == 1.0


@pytest.mark.parametrize("arguments", [[], ["--pool", "off"], ["--no-spec"], ["--draft-max", "0"], ["--exact"]])
def test_where_nothing_may_be_kept_there_is_no_database(run, first_start, hello, arguments):
    assert run("-m", hello.path, "hi", "--no-log", *arguments) == (0, hello.text + "\n", "")
    assert not (first_start / "data").exists()


@pytest.mark.parametrize("arguments", [["--pool", "off"], ["--no-spec"], ["--draft-max", "0"]])
def test_without_phrases_what_was_said_is_kept(run, first_start, hello, arguments):
    assert run("-m", hello.path, "hi", *arguments).code == 0
    with contextlib.closing(sqlite3.connect(Paths(first_start).database)) as connection:
        assert connection.execute("SELECT prompt FROM turn").fetchall() == [("hi",)]
        for table in ("pool", "phrase"):
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == []


def test_phrases_hold_nothing_of_the_prompt(run, home, models):
    # The script repeats the letters of the prompt's marker, as a wrong guess would: x, then Q, Z and J.
    follows = {ord("Q"): ord("Z"), ord("Z"): ord("J"), ord("J"): ord("Q")}
    told = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
    path = models / "discreet"
    script = scripted_model(path, told, follows={**follows, 260 + 3: ord("x"), ord("x"): 260 + 4})
    marker = "QZJQZJQZJ"
    reply = run("-m", path, "--drafter", "phrases", "--json", f"x{marker} yx{marker}").json
    assert reply["text"] == "abcdxefgh"
    assert reply["speculation"]["draft_n"] > reply["speculation"]["draft_n_accepted"]  # the marker was drafted
    database = Paths(home).database
    with Store.open(database, pytest.fail) as store:  # the conversation does contain it
        store.history.remove([store.history.latest()])
    files = [database, *database.parent.glob("localspec.db-*")]
    packed = b"".join(struct.pack("<I", ord(letter)) for letter in marker[:2])
    assert not any(marker[:3].encode() in file.read_bytes() or packed in file.read_bytes() for file in files)
    assert kept_tokens(database) <= {*script.ids, ord("x")}
