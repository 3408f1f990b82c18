"""`localspec history` prints conversations as safe text, deletes only those named, and never writes when it reads."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from each import each
from golden import matching, wording
from rich.cells import cell_len
from typer.testing import CliRunner

from localspec.cli import console
from localspec.cli import history as history_module
from localspec.cli.main import main
from localspec.errors import UsageMistake
from localspec.store import cleaning, opening
from localspec.store import database as database_module
from localspec.store.conversations import SOURCES
from localspec.store.database import StoreTrouble
from localspec.store.store import Store
from localspec.text import one_line

EVIL = "evil\x1b[2J \x9b31m\u202e\nline\r <b>"


def keep(
    database: Path, *turns: tuple[str, str, str | None], model: str = "demo", system: str | None = None
) -> list[int]:
    """Keep a conversation; return its id and those of its turns."""
    number: int | None = None
    ids: list[int] = []
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        for prompt, reply, reason in turns:
            number, turn = store.history.say(number, prompt, model=model, system=system)
            store.history.write(turn, reply, reason, {"seed": 1})
            ids.append(turn)
    assert number is not None
    return [number, *ids]


def learn(database: Path) -> None:
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        pool = store.phrases.pool("demo", "hash")
        assert pool is not None
        store.phrases.learn(pool, [(1, b"", b"1234")])


def run(*arguments: str, answer: str | None = None) -> str:
    result = CliRunner().invoke(history_module.app, list(arguments), input=answer, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def kept(database: Path) -> list[str]:
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        return [info.title for info in store.history.conversations()]


def test_looking_makes_nothing(database: Path) -> None:
    assert "No conversations" in run("list")
    assert json.loads(run("list", "--json")) == []
    assert wording("nothing_was_found") in run("search", "word")
    assert json.loads(run("search", "word", "--json")) == []
    assert run("export") == "" and json.loads(run("export", "--json")) == []
    assert wording("no_conversations_to_delete") in run("rm", "--all")
    for arguments in (("show", "1"), ("show", "1", "--json"), ("export", "1"), ("rm", "1", "--yes")):
        with pytest.raises(UsageMistake, match=matching("conversation_1_here_localspec")):
            run(*arguments)
    assert not database.parent.exists()


@pytest.mark.slow
def test_list_shows_every_conversation_the_last_used_first(database: Path) -> None:
    start = time.time()
    first, *_ = keep(database, ("first", "reply", "stop"), ("more", "reply", "stop"))
    second, *_ = keep(database, (EVIL, "reply", "stop"), model=f"/models/{EVIL}")
    lines = run("list").splitlines()
    assert lines[0].startswith(f"{second}: evil␛[2J �31m line <b> (1 turn, /models/evil␛[2J �31m line <b>, 20")
    assert lines[1].startswith(f"{first}: first (2 turns, demo, 20") and len(lines) == 2
    output = run("list", "--json")
    assert output.isascii() and len(output.splitlines()) == 1
    listed = json.loads(output)
    times = [(entry.pop("created"), entry.pop("used")) for entry in listed]
    assert all(start <= created <= used <= time.time() for created, used in times)
    common = {"branch_of": None, "named": False, "source": "chat"}
    assert listed == [
        {"id": second, "title": "evil␛[2J �31m line <b>", "model": f"/models/{EVIL}", "turns": 1, **common},
        {"id": first, "title": "first", "model": "demo", "turns": 2, **common},
    ]
    assert run("list", "--limit", "1").splitlines() == lines[:1]
    assert [entry["id"] for entry in json.loads(run("list", "--limit", "1", "--json"))] == [second]
    assert run("list", "--limit", "9" * 23).splitlines() == lines


@pytest.mark.slow
def test_the_list_of_very_many(database: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for number in range(3):
        keep(database, (f"prompt {number}", "reply", "stop"))
    assert len(run("list").splitlines()) == 3
    monkeypatch.setattr(history_module, "SHOWN", 2)
    capsys.readouterr()
    assert main(["history", "list", "--json"]) == 0
    out, told = capsys.readouterr()
    assert [entry["id"] for entry in json.loads(out)] == [3, 2]
    assert wording("before_newest_2_left_out_limit_n") in told and told.count("\n") == 1
    assert len(run("list", "--limit", "3").splitlines()) == 3


def test_at_a_terminal_the_list_is_a_table(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = keep(database, ("first", "reply", "stop"), ("more", "reply", "stop"))
    second, *_ = keep(database, (EVIL + "word " * 60, "reply", "stop"), model=f"/models/{EVIL}/Qwen3")
    monkeypatch.setattr(history_module, "output_is_terminal", lambda: True)
    monkeypatch.setattr(history_module, "width", lambda: 60)
    head, *lines = run("list").splitlines()
    assert head.split() == ["ID", "USED", "TURNS", "MODEL", "TITLE"] and max(map(len, lines)) <= 60
    assert lines[0].split()[0] == str(second) and " Qwen3 " in lines[0]
    title = json.loads(run("list", "--json"))[0]["title"]
    left = head.index("TITLE")
    assert " ".join(line[left:].strip() for line in lines[:-1]) == one_line(title), "it continues below its beginning"
    assert re.fullmatch(rf" *{first}  (just now|\d+ minutes? ago) +2  demo +first", lines[-1])
    assert not {"\x1b", "\u202e"} & set("".join(lines))
    assert json.loads(run("list", "--json"))[1]["title"] == "first"


def test_a_title_without_blanks_is_wrapped_too(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(database, ("中" * 60, "reply", "stop"))
    monkeypatch.setattr(history_module, "output_is_terminal", lambda: True)
    monkeypatch.setattr(history_module, "width", lambda: 60)
    head, *lines = run("list").splitlines()
    title = json.loads(run("list", "--json"))[0]["title"]
    assert "".join(line[head.index("TITLE") :].strip() for line in lines) == title and all(map(str.strip, lines))
    assert max(map(cell_len, lines)) <= 60


def test_at_a_terminal_the_list_marks_conversations_of_pipes(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(database, pytest.fail) as store:
        for source in SOURCES:
            store.history.say(None, f"by {source}", model="demo", system=None, source=source)
    monkeypatch.setattr(history_module, "output_is_terminal", lambda: True)
    assert [line.rpartition("demo")[2].strip() for line in run("list").splitlines()[1:]] == [
        "by pipe (piped)",
        "by run",
        "by chat",
    ]
    assert [entry["source"] for entry in json.loads(run("list", "--json"))] == ["pipe", "run", "chat"]


@pytest.mark.slow
def test_search_shows_where_the_words_stand(database: Path) -> None:
    first, _, turn = keep(database, ("about cats", "they purr", "stop"), ("and dogs?", f"they {EVIL} bark", "stop"))
    keep(database, ("nothing", "here", "stop"))
    assert run("search", "THEY", "bar").splitlines()[1:] == ["    they evil␛[2J �31m line <b> bark"]
    assert run("search", "THEY bar").splitlines()[0].startswith(f"{first}: about cats (2 turns, demo, ")
    output = run("search", "dogs", "--json")
    assert output.isascii()
    hits = json.loads(output)
    info = next(entry for entry in json.loads(run("list", "--json")) if entry["id"] == first)
    assert hits == [{**info, "turn": turn, "excerpt": "and dogs?"}]
    assert (
        run("search", "zebra") == wording("nothing_was_found_2") and json.loads(run("search", "zebra", "--json")) == []
    )
    assert len(json.loads(run("search", "h", "--json"))) == 2
    assert len(json.loads(run("search", "h", "--json", "--limit", "1"))) == 1
    assert run("search", "--", "-x") == wording("nothing_was_found_2")


@each("words", [("",), (" ", "\n")])
def test_a_search_needs_a_word(database: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageMistake, match=matching("nothing_to_search_for")):
        run("search", *words)


def test_show_is_safe_text(database: Path) -> None:
    number, *_ = keep(
        database,
        (EVIL, "all of it", "stop"),
        ("second", "at the end", "length"),
        ("third", f"half {EVIL}", "interrupted"),
        ("fourth", "killed", None),
        ("fifth", "", "interrupted"),
        model="de\x1bmo",
        system=f"Be {EVIL}",
    )
    first, rest = run("show", str(number)).split("\n\n", 1)
    assert first.startswith(f"{number}: evil␛[2J �31m line <b> (5 turns, de␛mo, 20")
    evil = "evil␛[2J �31m\nline <b>"
    assert rest == (
        "# evil␛[2J �31m line <b>\n\n"
        f"## System\n\nBe {evil}\n\n"
        f"## You\n\n{evil}\n\n## localspec (de␛mo)\n\nall of it\n\n"
        "## You\n\nsecond\n\n## localspec (de␛mo)\n\nat the end\n\n*(the reply reached its token limit)*\n\n"
        f"## You\n\nthird\n\n## localspec (de␛mo)\n\nhalf {evil}\n\n*(stopped)*\n\n"
        "## You\n\nfourth\n\n## localspec (de␛mo)\n\nkilled\n\n*(cut off: localspec was stopped while it wrote this)*\n\n"
        "## You\n\nfifth\n\n## localspec (de␛mo)\n\n*(no reply)*\n"
    )


@pytest.mark.slow
def test_json_has_everything_as_it_was_said(database: Path) -> None:
    one, first = keep(database, (EVIL, f"half {EVIL}", "interrupted"), system=EVIL)
    two, second = keep(database, ("two", "", None))
    output = run("show", str(one), "--json")
    assert output.isascii() and len(output.splitlines()) == 1
    shown: dict[str, Any] = json.loads(output)
    listed = {entry["id"]: entry for entry in json.loads(run("list", "--json"))}
    asked = shown["turns"][0].pop("asked")
    assert abs(asked - time.time()) < 60
    turn = {"id": first, "prompt": EVIL, "reply": f"half {EVIL}", "reason": "interrupted", "figures": {"seed": 1}}
    turn["reasoning"] = ""
    assert shown == {**listed[one], "turns": [turn], "system": EVIL}
    exported = json.loads(run("export", "--json"))
    assert [conversation["id"] for conversation in exported] == [one, two]
    assert exported[0] == json.loads(output) and exported[1]["turns"][0]["id"] == second
    assert exported[1]["system"] is None and exported[1]["turns"][0]["reason"] is None
    assert [conversation["id"] for conversation in json.loads(run("export", str(two), "--json"))] == [two]


def test_export_is_one_document(database: Path) -> None:
    numbers = [keep(database, (f"prompt {n}", f"reply {n}", "stop"))[0] for n in range(3)]

    def document(*which: int) -> str:
        parts = [f"# prompt {n}\n\n## You\n\nprompt {n}\n\n## localspec (demo)\n\nreply {n}\n" for n in which]
        return "\n".join(parts)

    assert run("export") == document(0, 1, 2)
    assert run("export", str(numbers[2]), str(numbers[0]), str(numbers[2])) == document(0, 2)


@each(
    "text, end",
    [
        ("```python\nprint(1)", "```"),
        ("~~~~\nx\n~~~\n```", "~~~~"),
        ("a\n   ```\nb\n```\n\n```", "```"),
        ("```python\nprint(1)\n```", ""),
        ("```\n``` no end\n```", ""),
        ("````\n```\n`````", ""),
        ("```inline```", ""),
        ("    ```", ""),
    ],
)
def test_a_code_block_that_breaks_off_does_not_swallow_the_rest(database: Path, text: str, end: str) -> None:
    keep(database, (text, text, "interrupted"), system=text)
    block = f"{text}\n{end}" if end else text
    exported = run("export")
    assert f"## System\n\n{block}\n\n## You\n\n{block}\n\n## localspec (demo)\n\n{block}\n\n*(stopped)*\n" in exported


@pytest.mark.slow
def test_rm_of_one_leaves_the_others(database: Path) -> None:
    one, two, _, four = (keep(database, (name, "zebras", "stop"))[0] for name in ("one", "two", "three", "four"))
    assert run("rm", str(two), "--yes") == "Deleted 1 conversation.\n"
    assert kept(database) == ["four", "three", "one"]
    learn(database)
    assert run("rm", str(one), str(four), str(one), "-y") == (wording("deleted_2_conversations_phrases"))
    assert kept(database) == ["three"]
    assert run("rm", "--all", "--yes").startswith("Deleted 1 conversation.\n")
    assert kept(database) == []
    assert run("rm", "--all", "--yes") == wording("there_conversations_delete")
    assert b"zebras" not in b"".join(file.read_bytes() for file in database.parent.iterdir())


def test_rm_asks_at_a_terminal(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "at_a_terminal", lambda: True)
    one, *_ = keep(database, (EVIL, "reply", "stop"))
    keep(database, ("two", "reply", "stop"))
    output = run("rm", str(one), answer="n\n")
    assert (
        f"Delete conversation {one}, 'evil␛[2J �31m line <b>'?" in output and wording("nothing_was_deleted") in output
    )
    assert "Delete 2 conversations?" in run("rm", "--all", answer="\n") and len(kept(database)) == 2
    assert "Deleted 1 conversation." in run("rm", str(one), answer="y\n")
    assert kept(database) == ["two"]


def test_rm_without_a_terminal_names_yes(database: Path) -> None:
    one, *_ = keep(database, ("one", "reply", "stop"))
    keep(database, ("two", "reply", "stop"))
    for arguments, what in ((("rm", str(one)), f"conversation {one}, 'one'"), (("rm", "--all"), "2 conversations")):
        with pytest.raises(UsageMistake, match=f"Deleting {what} needs confirmation.*--yes"):
            run(*arguments)
    assert len(kept(database)) == 2


@each("arguments", ["rm", "rm --yes", "rm 1 --all --yes", "rm 1 --older-than 1d", "rm --all --older-than 1d"])
def test_rm_deletes_only_what_was_said_clearly(database: Path, arguments: str) -> None:
    keep(database, ("one", "reply", "stop"))
    before = kept(database)
    with pytest.raises(UsageMistake, match=matching("their_ids_which_list_shows_older")):
        run(*arguments.split())
    assert kept(database) == before


def used(database: Path, conversation: int, days: float) -> None:
    """Set the last use of a conversation to `days` days ago."""
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        update = "UPDATE conversation SET used = ? WHERE id = ?"
        moment = time.time() - 86400 * days
        store._database.save(lambda connection: connection.execute(update, (moment, conversation)))


@pytest.mark.slow
def test_rm_of_what_is_older_leaves_what_is_not(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, days in (("old", 40), ("a month", 31), ("of late", 29)):
        used(database, keep(database, (name, "zebras", "stop"))[0], days)
    keep(database, ("now", "reply", "stop"))
    monkeypatch.setattr(console, "at_a_terminal", lambda: True)
    output = run("rm", "--older-than", "30d", answer="n\n")
    assert re.search(r"Delete 2 conversations last used before \d{4}-\d\d-\d\d\?", output)
    assert run("rm", "--older-than", "30d", "--yes") == "Deleted 2 conversations.\n"
    assert kept(database) == ["now", "of late"]
    assert run("rm", "--older-than", "5 weeks", "--yes").startswith(wording("there_conversations_delete_2"))
    with pytest.raises(UsageMistake, match=matching("soon_length_time")):
        run("rm", "--older-than", "soon", "--yes")
    used(database, 3, 30_000)  # before 1970: unknown
    assert "no conversations" in run("rm", "--older-than", "4w", "-y")


def test_rm_says_that_the_next_start_overwrites_a_large_file(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(database, ("one", "reply", "stop"))
    keep(database, ("SECRETZEBRA", "reply", "stop"))
    monkeypatch.setattr(cleaning, "SMALL", 5)
    result = CliRunner().invoke(history_module.app, ["rm", "2", "--yes"], catch_exceptions=False)
    assert result.stdout == "Deleted 1 conversation.\n" and result.stderr.count("\n") == 1
    assert wording("is_overwritten_at_the_next_start") in result.stderr
    result = CliRunner().invoke(history_module.app, ["list"], catch_exceptions=False)
    assert "one" in result.stdout and wording("is_overwritten_now") in result.stderr
    assert not any(b"SECRETZEBRA" in file.read_bytes() for file in database.parent.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_rm_of_everything_deletes_what_was_typed_and_never_sent(database: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from localspec.store.store import Store\n"
        "Store.open(Path(sys.argv[1]), print).drafts.keep('zanzibar'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    one, *_ = keep(database, ("one", "reply", "stop"))
    keep(database, ("two", "reply", "stop"))
    subprocess.run([sys.executable, "-c", code, str(database)], check=False)
    with pytest.raises(UsageMistake, match=matching("deleting_2_conversations_and_1_unsent")):
        run("rm", "--all")
    assert run("rm", str(one), "--yes") == "Deleted 1 conversation.\n"
    assert run("rm", "--all", "--yes") == "Deleted 1 conversation and 1 unsent prompt.\n"
    assert b"zanzibar" not in b"".join(file.read_bytes() for file in database.parent.iterdir())
    subprocess.run([sys.executable, "-c", code, str(database)], check=False)
    assert run("rm", "--all", "--yes") == "Deleted 1 unsent prompt.\n"
    assert run("rm", "--all", "--yes") == wording("there_conversations_delete")


def test_a_branch_says_of_what(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = keep(database, ("first", "reply", "stop"))
    with Store.open(database, lambda sentence: pytest.fail(sentence)) as store:
        found = store.history.read(first)
        assert found is not None
        store.history.branch(first, found.turns, model="demo", system=None)
    monkeypatch.setattr(history_module, "output_is_terminal", lambda: True)
    assert run("list").splitlines()[1].endswith(wording("first_the_same_as_reply", first=first))


def test_rm_deletes_what_was_copied_too(database: Path) -> None:
    first, *_ = keep(database, ("one", "reply", "stop"))
    keep(database, ("two", "reply", "stop"))
    copied = database.parent / "copied.txt"
    other = copied.with_name("other")
    for arguments in (["rm", str(first)], ["rm", "--all"]):
        copied.write_text("zanzibar")
        os.link(copied, other)
        assert run(*arguments, "--yes") == wording("deleted_1_conversation_text")
        assert not copied.exists() and b"zanzibar" not in other.read_bytes()
        other.unlink()
    copied.write_text("zanzibar")
    assert run("rm", "--all", "--yes") == wording("deleted_text_copied_last") and not copied.exists()
    assert run("rm", "--all", "--yes") == wording("there_conversations_delete")


@each("number", ["7", "0", str(10**30)])
@each("arguments", [("show",), ("export", "1"), ("rm", "1", "--yes")])
def test_an_id_that_is_not_there_is_reported_before_anything_happens(database, arguments, number):
    if not kept(database):
        keep(database, ("one", "reply", "stop"))
    result = CliRunner().invoke(history_module.app, [*arguments, number])
    assert isinstance(result.exception, UsageMistake) and result.stdout == ""
    assert str(result.exception) == (wording("there_conversation_here_localspec", number=number))
    assert kept(database) == ["one"]


def test_files_set_aside_are_reported_when_deleting(database: Path) -> None:
    keep(database, ("one", "reply", "stop"))
    aside = database.with_name("localspec.db.broken-1")
    aside.write_bytes(b"old")
    for answer in ("Deleted 1 conversation.\n", wording("there_conversations_delete")):
        result = CliRunner().invoke(history_module.app, ["rm", "--all", "--yes"], catch_exceptions=False)
        assert (result.exit_code, result.stdout) == (0, answer)
        assert result.stderr == (wording("localspec_set_aside_may_hold", aside=aside))
    assert aside.exists()


def test_a_file_set_aside_is_reported_in_one_line_with_its_parts(database: Path) -> None:
    keep(database, ("one", "reply", "stop"))
    for part in ("", "-wal", "-shm"):
        database.with_name(f"localspec.db.broken-1{part}").write_bytes(b"old")
    result = CliRunner().invoke(history_module.app, ["rm", "--all", "--yes"], catch_exceptions=False)
    assert result.stderr.count("\n") == 1 and wording("delete_wal_shm_rid_them") in result.stderr


@pytest.mark.slow
def test_a_broken_file_is_reported_on_standard_error(database: Path) -> None:
    database.parent.mkdir(parents=True)
    database.write_bytes(b"no database" * 100)
    result = CliRunner().invoke(history_module.app, ["list", "--json"], catch_exceptions=False)
    assert json.loads(result.stdout) == [] and "set aside" in result.stderr
    assert result.stderr.rstrip().endswith(wording("to_get_text_back", file=f"{database}.broken-1"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "rm"])
def test_damage_that_a_command_meets_is_one_error_and_the_rest_is_kept(
    database: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    for n in range(1, 31):
        keep(database, (f"prompt {n}", f"reply {n} " * 400, "stop"))
    content = bytearray(database.read_bytes())
    for start in range(content.index(b"reply 15 " * 9) // 4096 * 4096, len(content), len(content)):
        content[start : start + 4096] = b"\xff" * 4096
    database.write_bytes(content)
    arguments = ["history", command, "15", *["--yes"] * (command == "rm")]
    assert main(arguments) == 1
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and " of 30 conversations" in said.err
    assert main(["history", "list"]) == 0
    assert len(capfd.readouterr().out.splitlines()) >= 28


def test_a_file_that_cannot_be_used_is_an_error(database: Path) -> None:
    database.mkdir(parents=True)
    with pytest.raises(StoreTrouble, match=matching("conversations_can_neither_shown")):
        run("list")


def test_the_whole_command_line(database: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keep(database, ("one", "reply", "stop"))
    assert main(["history", "show", "9"]) == 2
    assert capfd.readouterr().err == (wording("localspec_there_conversation_9"))
    assert main(["history", "show", "x"]) == 2 and "'x'" in capfd.readouterr().err
    assert main(["history", "export", "1"]) == 0 and capfd.readouterr().out.startswith("# one\n")
    assert main(["history"]) == 0
    assert main(["history", "list"]) == 0
    without, listed = (half for half in capfd.readouterr().out.splitlines())
    assert without == listed


def half_saved(connection: sqlite3.Connection) -> None:
    """Write text that reaches the log and is never committed, as on a full disk."""
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "INSERT INTO draft VALUES (?, 0, ?, NULL, NULL)", ((n, "SECRETZEBRA" * 500) for n in range(-20, 0))
    )
    connection.execute("ROLLBACK")


def test_rm_of_nothing_takes_what_could_not_be_saved_out_of_the_log(database, monkeypatch):
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    log = Path(f"{database}-wal")
    with (
        Store.open(database, pytest.fail),
        contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other,
    ):
        half_saved(other)
        assert b"SECRETZEBRA" in log.read_bytes()
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM draft").fetchone()
        with pytest.raises(StoreTrouble, match=f"{matching('may_still_be_in')} .*another process"):
            run("rm", "--all", "--yes")
        other.execute("ROLLBACK")
        for arguments in (["--all"], ["--older-than", "1d"]):
            half_saved(other)
            assert run("rm", *arguments, "--yes").startswith(wording("there_conversations_delete_3"))
            assert not any(b"SECRETZEBRA" in file.read_bytes() for file in database.parent.iterdir())


def test_rm_of_nothing_says_where_the_log_cannot_be_emptied(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(database, pytest.fail), contextlib.closing(sqlite3.connect(database)) as other:
        half_saved(other)

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(database_module, "open_writable", full)
        with pytest.raises(StoreTrouble, match=f"{matching('may_still_be_in')} .*disk is full"):
            run("rm", "--older-than", "1d", "--yes")


@pytest.mark.parametrize("arguments", [["history", "rm", "1", "--yes"], ["pool", "clear", "--yes"]])
def test_a_full_disk_is_reported_once_and_what_to_do(
    database: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    keep(database, ("one", "reply", "stop"))
    learn(database)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(database_module, "open_writable", full)
    assert main(arguments) == 1
    why, do = capfd.readouterr().err.splitlines()
    assert "disk is full" in why and "room" not in why and "make room" in do and "disk is full" not in do
    monkeypatch.undo()
    with Store.open(database, pytest.fail) as store:
        assert len(store.history.conversations()) == 1 and store.phrases.any_phrase()


@pytest.mark.parametrize(
    ("change", "others"),
    [
        ("UPDATE turn SET conversation = 77 WHERE prompt LIKE 'SECRET%'", False),
        ("DELETE FROM conversation WHERE id = 1", True),
        ("DELETE FROM conversation WHERE id = 1", False),
        ("UPDATE conversation SET model = 'SECRETZEBRA' WHERE id = 1; DELETE FROM turn WHERE conversation = 1", True),
    ],
)
def test_rm_of_everything_deletes_what_belongs_to_no_conversation(database: Path, change: str, others: bool) -> None:
    keep(database, ("SECRETZEBRA?", "SECRETZEBRA!", "stop"), system="SECRETZEBRA.")
    if others:
        keep(database, ("two?", "Two.", "stop"))
    with contextlib.closing(sqlite3.connect(database)) as other:
        other.executescript(change)
    with Store.open(database, pytest.fail) as store:  # an open store keeps the log, which the last session would remove
        assert run("rm", "--all", "--yes") == (
            "Deleted 1 conversation.\n" if others else wording("there_conversations_delete")
        )
        assert store.history.conversations() == []
        assert not any(b"SECRETZEBRA" in file.read_bytes() for file in database.parent.iterdir())
        assert run("rm", "--all", "--yes") == wording("there_conversations_delete")


@pytest.mark.skipif(os.name != "posix", reason="links as on POSIX")
@pytest.mark.parametrize(
    ("lost", "command"), [("data", ["list"]), ("localspec.db", ["search", "x"]), ("data", ["rm", "--all", "-y"])]
)
def test_what_cannot_be_reached_is_not_said_to_be_empty(database, command, lost, capsys):
    place = database if lost == database.name else database.parent
    place.parent.mkdir(parents=True)
    (disk := database.parents[2] / "disk").mkdir()
    place.symlink_to(disk / lost)
    assert main(["history", *command]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err == (wording("localspec_cannot_reached_link", database=database, place=place))
    assert not list(disk.iterdir())


def test_notices_about_the_database_begin_like_all_messages(database: Path) -> None:
    database.parent.mkdir(parents=True)
    database.touch()
    result = CliRunner().invoke(history_module.app, ["list"], catch_exceptions=False)
    assert result.stderr.startswith(f"localspec: {database} has 0 bytes")
