"""Export of a conversation: it always creates a new file, which only its owner can read."""

import os
import sys

import pytest
from each import each
from golden import matching

from localspec.chat.export import proposed_file, write_new
from localspec.errors import UsageMistake


def test_the_proposed_name_is_made_of_the_title_and_free(tmp_path):
    assert proposed_file("Sorting in Python: a [quick] one?", tmp_path) == "sorting-in-python-a-quick-one.md"
    (tmp_path / "sorting.md").write_text("")
    (tmp_path / "sorting-2.md").symlink_to("nowhere")
    assert proposed_file("Sorting", tmp_path) == "sorting-3.md"
    assert proposed_file("../../etc/\x1b[2J", tmp_path) == "etc-2j.md"
    assert proposed_file("…", tmp_path) == "conversation.md"
    assert proposed_file("Äpfel und 梨", tmp_path) == "äpfel-und-梨.md"
    assert len(proposed_file("word " * 60, tmp_path)) <= 64


def test_a_file_is_written_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_new("über\n", " new.md ")
    assert path == tmp_path / "new.md" and path.read_text("utf-8") == "über\n"
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "dangling.md").symlink_to(tmp_path / "elsewhere.md")
    for name in ("new.md", "dangling.md", str(tmp_path)):
        with pytest.raises(UsageMistake, match=matching("there_already_nothing_overwritten")):
            write_new("other", name)
    assert path.read_text("utf-8") == "über\n" and not (tmp_path / "elsewhere.md").exists()


def test_home_is_understood_and_other_places_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert write_new("x", os.path.join("~", "x.md")) == tmp_path / "x.md"
    with pytest.raises(UsageMistake, match=f"{matching('cannot_be_written')} .*{matching('give_another_name')}"):
        write_new("x", str(tmp_path / "missing" / "x.md"))


@each("name", ["", "  ", "a\0b"])
def test_a_name_is_needed(name):
    with pytest.raises(UsageMistake, match=matching("a_file_needs_a_name")):
        write_new("x", name)
