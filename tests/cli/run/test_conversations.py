"""`localspec run` saves conversations and continues them; with --no-log it does neither."""

import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from cli.run.run_command import Gone, interrupting, kept, kept_tokens, refused, said
from command import what_is_kept
from golden import wording
from scripted_models import scripted_model

from localspec.chat.conversation import saved_conversation
from localspec.cli import console
from localspec.cli import run as run_module
from localspec.cli.main import main
from localspec.paths import Paths
from localspec.store.phrases import pack_tokens
from localspec.store.store import Store

pytestmark = pytest.mark.slow


def test_the_first_start_says_what_is_kept_and_no_other_does(run, first_start, hello):
    refused(run("-m", hello.path, "hi", "-n", "0"), 2, "--max-tokens 0")
    assert not first_start.exists()
    assert run("-m", hello.path, "hi", "--no-log").err == ""
    assert run("-m", hello.path, "hi") == (0, hello.text + "\n", what_is_kept(first_start))
    assert run("-m", hello.path, "hi", "--json").err == ""
    assert main(["history", "rm", "--all", "--yes"]) == 0
    assert run("-m", hello.path, "hi").err == ""


def test_a_reply_is_kept_with_how_it_was_made(run, home, hello, tmp_path):
    (tmp_path / "notes").write_text("some notes\n")
    began = time.time()
    reply = run(
        "-m", hello.path, "-s", "Be kind.", "-f", tmp_path / "notes", "--seed", 7, "--json", "hi", piped=b"so"
    ).json
    [conversation] = kept(home)
    assert said(conversation) == [("some notes\n\n```\nso\n```\n\nhi", hello.text, "stop")]
    assert (conversation.system, conversation.info.model) == ("Be kind.", str(hello.path))
    assert conversation.info.title == "hi" and began <= conversation.turns[0].asked <= time.time()
    assert (conversation.turns[0].typed, conversation.turns[0].files) == (
        "hi", (wording("the_files_of_file_2"), "standard input (2 bytes)")
    )  # fmt: skip
    figures = conversation.turns[0].figures
    assert (figures["seed"], figures["completion_tokens"]) == (7, len(hello.ids))
    assert figures["prompt_tokens"] == reply["prompt_tokens"]
    assert figures["sources"] == reply["speculation"]["sources"]
    assert figures["tokens_per_second"] == reply["timings"]["tokens_per_second"]
    run("-m", hello.path, "-n", "2", "cut")
    assert said(kept(home)[0]) == [("cut", "Hello", "length")]


def test_what_is_refused_is_not_kept(run, home, models):
    tight = scripted_model(models / "tighter", [b"a", b"b", b"c"], context=20)
    refused(run("-m", tight.path, "x" * 100), 2, "103 tokens")
    assert kept(home) == []


def test_continuing_with_the_last_one_and_with_another(run, home, hello, messages):
    for prompt in ("one", "two"):
        run("-m", hello.path, prompt)
    second, first = kept(home)
    last = run("-m", hello.path, "-c", "three", "--json").json
    said_so = ("assistant", hello.text)
    assert messages[-1] == [("user", "two"), said_so, ("user", "three")]
    assert last["prompt_tokens"] == 1 + sum(len(text.encode()) + 2 for _, text in messages[-1])
    assert run("--conversation", first.info.id, "four").out == hello.text + "\n"
    assert messages[-1] == [("user", "one"), said_so, ("user", "four")]
    run("--continue", "five")  # now the conversation used last
    assert messages[-1] == [("user", "one"), said_so, ("user", "four"), said_so, ("user", "five")]
    assert [conversation.info.id for conversation in kept(home)] == [first.info.id, second.info.id]
    assert [[turn.prompt for turn in conversation.turns] for conversation in kept(home)] == [
        ["one", "four", "five"], ["two", "three"]
    ]  # fmt: skip
    assert all(turn.reply == hello.text for conversation in kept(home) for turn in conversation.turns)


def test_a_chat_continues_no_run_and_run_continues_no_chat(run, home, hello, monkeypatch):
    def latest(which: Literal["last", "last run"]) -> str:
        with Store.open(Paths(home).database, pytest.fail) as store:
            return saved_conversation(store.history, which).turns[0].prompt

    monkeypatch.setattr(console, "at_a_terminal", lambda: True)
    monkeypatch.setattr(console, "output_is_terminal", lambda: True)
    with Store.open(Paths(home).database, pytest.fail) as store:
        store.history.say(None, "first chat", model=str(hello.path), system=None)
    run("-m", hello.path, "at a terminal")
    for name in ("at_a_terminal", "output_is_terminal"):
        monkeypatch.setattr(console, name, lambda: False)
        run("-m", hello.path, f"not {name}")
        assert (latest("last"), latest("last run")) == ("first chat", f"not {name}")
        monkeypatch.setattr(console, name, lambda: True)
    with Store.open(Paths(home).database, pytest.fail) as store:
        store.history.say(None, "a chat", model=str(hello.path), system=None)
    assert (latest("last"), latest("last run")) == ("a chat", "not output_is_terminal")
    run("-c", "more")
    assert [len(conversation.turns) for conversation in kept(home)] == [2, 1, 1, 1, 1]
    assert latest("last") == "a chat"
    with Store.open(Paths(home).database, pytest.fail) as store:  # as if it was continued in a chat
        store.history.say(kept(home)[0].info.id, "and more", model=str(hello.path), system=None)
    assert latest("last") == latest("last run") == "not output_is_terminal"


@pytest.mark.parametrize("which", [["-c"], ["--conversation", "1"]])
def test_nothing_to_continue(run, first_start, home, hello, which):
    said = (
        wording("no_conversation_to_continue")
        if which == ["-c"]
        else "no conversation 1 here; `localspec history list`"
    )
    refused(run("-m", hello.path, *which, "hi"), 2, said)
    assert not first_start.exists()
    run("-m", hello.path, "hi", "--no-log")
    refused(run("-m", hello.path, *which, "hi", "--no-log"), 2, said)


def files_with(home: Path, *needles: bytes) -> list[Path]:
    """Return the files that contain one of these."""
    return [
        file for file in home.rglob("*") if file.is_file() and any(needle in file.read_bytes() for needle in needles)
    ]


def test_no_log_keeps_nothing(run, home, long, monkeypatch):
    traces = (b"QZJX", long.text[:12].encode(), pack_tokens(long.ids[10:13]))
    for how in ("flag", "variable", "file"):
        if how == "variable":
            monkeypatch.setenv("LOCALSPEC_LOG", "no")
        elif how == "file":
            monkeypatch.delenv("LOCALSPEC_LOG")
            (home / "config").mkdir()
            (home / "config" / "config.toml").write_text("log = false\n")
        assert (
            run("-m", long.path, "QZJX", "--drafter", "phrases", *(["--no-log"] if how == "flag" else [])).out
            == long.text + "\n"
        )
        assert kept(home) == [] and kept_tokens(Paths(home).database) == set()
        assert files_with(home, *traces) == []
    (home / "config" / "config.toml").unlink()
    run("-m", long.path, "QZJX", "--drafter", "phrases")  # without a flag, it takes no drafter for so small a model
    for trace in traces:  # these tests would notice
        assert files_with(home, trace) == [Paths(home).database]


def test_no_log_reads_the_conversation_and_keeps_nothing_new(run, home, hello, long, messages):
    run("-m", hello.path, "-s", "Be kind.", "one")
    before = kept(home)
    result = run("-m", long.path, "-c", "--no-log", "-s", "QZJV", "QZJX")
    assert (result.code, result.out, result.err) == (0, long.text + "\n", "")
    assert messages[-1] == [("system", "QZJV"), ("user", "one"), ("assistant", hello.text), ("user", "QZJX")]
    assert run("--conversation", before[0].info.id, "--no-log", "QZJX").out == hello.text + "\n"
    assert kept(home) == before
    assert files_with(home, b"QZJX", b"QZJV", long.text[:12].encode(), pack_tokens(long.ids[10:13])) == []


@pytest.mark.parametrize("place", ["decode_step", "step"])
def test_an_interrupted_reply_is_kept_and_continued(run, home, endless, monkeypatch, messages, place):
    from localspec.decoding import session

    owner: Any = run_module._Output if place == "step" else session
    monkeypatch.setattr(owner, place, interrupting(getattr(owner, place), 5))
    reply = run("-m", endless.path, "hi", "--json").json
    [turn] = kept(home)[0].turns
    assert (turn.prompt, turn.reply, turn.reason) == ("hi", reply["text"], "interrupted")
    assert turn.figures["completion_tokens"] == reply["completion_tokens"] > 0
    assert run("-m", endless.path, "-c", "-n", "1", "on").code == 0
    assert messages[-1] == [("user", "hi"), ("assistant", reply["text"]), ("user", "on")]


def test_a_prompt_that_got_no_answer_gives_way_to_the_next(run, home, endless, monkeypatch, messages):
    from localspec.decoding import session

    original = session.prefill_step
    monkeypatch.setattr(session, "prefill_step", interrupting(original, 2))
    assert run("-m", endless.path, "x" * 2000, "--json").code == 130
    assert said(kept(home)[0]) == [("x" * 2000, "", "interrupted")]
    run("-m", endless.path, "-c", "-n", "1", "hi")
    assert messages[-1] == [("user", "hi")]
    assert said(kept(home)[0]) == [("hi", "and ", "length")]


def test_what_was_said_until_the_reader_left_is_kept(run, home, endless, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # this process still uses descriptor 1
    assert run("-m", endless.path, "hi") == (141, "", "")
    [turn] = kept(home)[0].turns
    assert ("and so on " * 10).startswith(turn.reply) and 30 < len(turn.reply) < 100
    assert turn.reason == "interrupted"


def test_what_was_said_before_a_failure_is_kept(run, home, endless, monkeypatch):
    from localspec.decoding import session

    steps = iter([session.decode_step] * 2)
    monkeypatch.setattr(session, "decode_step", lambda *arguments: next(steps)(*arguments))
    assert run("-m", endless.path, "hi", "--no-spec").code == 1
    assert said(kept(home)[0]) == [("hi", "and so on ", "interrupted")]
