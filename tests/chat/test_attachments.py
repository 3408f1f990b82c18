"""Text files that a prompt names."""

import os
import re
import sys

import pytest
from each import each
from golden import matching, wording
from scripted_conversation import SAMPLING, Engine

from localspec.chat.attachments import (
    LONGEST,
    ComposedPrompt,
    counted_tokens,
    joined,
    measured,
    saved_prompt,
    with_files,
    with_piped,
)
from localspec.chat.conversation import Conversation
from localspec.errors import UsageMistake
from localspec.store.conversations import Turn
from localspec.store.store import Store


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("\nsome notes\n")
    (tmp_path / "my notes.txt").write_text("mine")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "deep.md").write_text("deep")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "null").write_bytes(b"a\0b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


@each("text, before, files", [
        ("see @notes.txt", "some notes\n\n", ["notes.txt"]),
        ("see @notes.txt, please", "some notes\n\n", ["notes.txt"]),
        ("(@notes.txt)", "some notes\n\n", ["notes.txt"]),
        ('@"my notes.txt" and @docs/deep.md.', "mine\n\ndeep\n\n", ["my notes.txt", "docs/deep.md"]),
        ("@~/notes.txt", "some notes\n\n", ["~/notes.txt"]),
        ("twice @notes.txt @notes.txt", "some notes\n\n", ["notes.txt"]),
        ("me@notes.txt", "", []),
        ("hello @bob and @docs and @docs/", "", []),
        ("@@notes.txt", "", []),
        ("a lone @ and @\"\"", "", []),
        ("@app.route('/x.html')\n@pytest.mark.slow\n@types/node", "", []),
        ('import x from "@/components/x.js"', "", []),
        ("mail to bob@site.py or (@/nope)", "", []),
    ])  # fmt: skip
def test_what_names_a_file_and_what_is_text(folder, text, before, files):
    found = with_files(text)
    assert (found.typed, found.before) == (text, before)
    assert [name.partition(" (")[0] for name in found.files] == files
    assert found.prompt == before + text


@each("name", ["/nope", "~/nope", "./nope", "../nope.x", "nope.txt", "docs/nope.md", '"no such file"', "/"])
def test_a_missing_file_is_reported_if_a_file_was_meant(folder, name):
    shown = name.strip('"')
    with pytest.raises(UsageMistake, match=re.escape(f"@{shown} cannot be read (") + r".*\\@ for a plain @"):
        with_files(f"what is in @{name}, please")
    assert with_files(f"what is in \\@{name}, please") == ComposedPrompt(f"what is in @{name}, please")
    assert [said.partition(" (")[0] for said in measured(f"@{name} is", None, 0)] == [f"@{shown} cannot be read"]
    assert measured(f"what is in @{name}", None, 0) == [], "it is still being typed"


def test_all_unreadable_files_are_reported_at_once(folder):
    with pytest.raises(UsageMistake) as told:
        with_files("@gone.txt @notes.txt @image.png @lost.md @gone.txt")
    missing = "cannot be read (No such file or directory)"
    assert str(told.value) == (wording("gone_txt_image_png_utf_8_text", missing=missing))


def test_an_escaped_name_is_text_and_other_backslashes_stay(folder):
    assert with_files(r"\@notes.txt and \@array") == ComposedPrompt(r"@notes.txt and \@array")


@each("name, why", [("image.png", wording("is_not_utf_8_text")), ("null", "has NUL bytes")])
def test_what_is_no_text_is_refused(folder, name, why):
    with pytest.raises(UsageMistake, match=f"@{name} {why}"):
        with_files(f"see @{name}")
    assert f"@{name} {why}" in measured(f"see @{name}", None, 0)[0]


def test_what_is_too_long_or_no_file_is_refused(folder, monkeypatch):
    with open(folder / "long", "wb") as file:
        file.truncate(LONGEST + 1)
    with pytest.raises(UsageMistake, match=matching("long_cannot_be_read_it_is")):
        with_files("@long")
    if sys.platform != "win32":
        os.mkfifo(folder / "pipe")
        with pytest.raises(UsageMistake, match=matching("pipe_cannot_be_read_it_is")):
            with_files("@pipe")
        with pytest.raises(UsageMistake, match=matching("dev_null_cannot_be_read_it")):
            with_files("@/dev/null")


def test_what_is_said_before_it_is_sent(folder):
    assert measured("no file", len, 100) == []
    assert measured("@notes.txt", None, 0) == ["notes.txt (12 bytes)"]
    assert measured("@notes.txt", len, 100) == ["notes.txt (12 bytes, 12 tokens)"]
    assert measured("@notes.txt!", len, 20) == [
        wording("too_long_23_tokens_model_reads_20"), "notes.txt (12 bytes, 12 tokens)"
    ]  # fmt: skip


def test_tokens_are_counted_in_pieces():
    asked = []
    assert counted_tokens("x" * 50_000, lambda piece: asked.append(len(piece)) or len(piece)) == 50_000
    assert max(asked) < 50_000


def test_the_history_shows_what_was_typed(folder, tmp_path):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        conversation = Conversation(store.history, "demo")
        prompt, engine = with_files("Sort these: @notes.txt"), Engine("Yes.")
        list(conversation.ask(engine, prompt.prompt, SAMPLING, None, prompt.figures))
        assert engine.asked[0][-1]["content"] == "some notes\n\nSort these: @notes.txt"
        kept = store.history.read(1)
        assert saved_prompt(kept.turns[0]) == prompt
        assert kept.info.title == "Sort these: @notes.txt"
        assert store.history.prompts(5) == ["Sort these: @notes.txt"]


@each(
    "figures", [{}, {"typed_from": 99}, {"typed_from": -1}, {"typed_from": "3"}, {"files": ["x"]}, {"typed_from": None}]
)
def test_figures_that_others_wrote_fold_nothing(figures):
    assert saved_prompt(Turn(1, "whole", "", None, figures)) == ComposedPrompt("whole")
    assert saved_prompt(Turn(1, "a\n\nb", "", None, {"typed_from": 3, "files": "x"})) == ComposedPrompt("b", "a\n\n")
    assert saved_prompt(Turn(1, "a\n\nb", "", None, {"typed_from": 3, "files": [1, "e\x1b"]})).files == ("e␛",)


def test_files_before_other_files():
    assert ComposedPrompt("x", "b\n\n", ("b",)).after("a\n", "a") == ComposedPrompt("x", "a\n\nb\n\n", ("a", "b"))
    assert ComposedPrompt("x").after("", "none") == ComposedPrompt("x")
    assert joined("a\n", "", "\n b") == "a\n\n b"


@each("run, fence", [(0, 3), (1, 3), (2, 3), (3, 4), (4, 5), (9, 10)])
def test_the_fence_around_piped_text_is_longer_than_any_run_of_backticks_in_it(run, fence):
    piped = f"before\n{'`' * run}\nafter ` too"
    prompt = with_piped("Explain it.", piped).prompt
    assert prompt == f"{'`' * fence}\n{piped}\n{'`' * fence}\n\nExplain it."
