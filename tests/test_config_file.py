"""One setting is written into the user's file, and nothing else in it changes."""

import os
import stat
import sys
import tomllib

import pytest
from each import each
from golden import matching

from localspec.config import keep_setting
from localspec.errors import UsageMistake

MINE = """# my settings
model = "demo"   # small

stop = [
  "a",
  "[b]",
]
system = '''
theme = "no"
[not a table]
'''

# keys
[keymap]
"chat.new" = "f6"
theme = "not this one"
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config" / "config.toml"


def given(file, text):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text.encode())


def test_only_its_owner_can_read_a_new_file(file):
    keep_setting(file, "theme", "nord")
    assert file.read_text() == 'theme = "nord"\n'
    if sys.platform != "win32":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert os.listdir(file.parent) == ["config.toml"]


def test_comments_order_and_what_only_looks_like_it_stay(file):
    given(file, MINE)
    keep_setting(file, "theme", "nord")
    assert file.read_text() == MINE.replace("'''\n\n# keys", "'''\ntheme = \"nord\"\n\n# keys")
    keep_setting(file, "theme", "dracula")
    keep_setting(file, "theme", "dracula")
    assert file.read_text() == MINE.replace("'''\n\n# keys", "'''\ntheme = \"dracula\"\n\n# keys")


def test_a_mark_of_the_encoding_stands_in_the_way_of_nothing(file):
    given(file, '\ufefftheme = "nord"\n')
    keep_setting(file, "theme", "dracula")
    assert file.read_text() == 'theme = "dracula"\n'


@each(
    "before, after",
    [
        ("theme='a' # nice\nseed=1\n", 'theme="b" # nice\nseed=1\n'),
        ('  "theme"\t= "a"', '  "theme"\t= "b"'),
        ("seed = 1", 'seed = 1\ntheme = "b"\n'),
        ("seed = 1\r\n\r\n[keymap]\r\n", 'seed = 1\r\ntheme = "b"\r\n\r\n[keymap]\r\n'),
        ("# nothing\n", '# nothing\ntheme = "b"\n'),
        ("[keymap]\n", 'theme = "b"\n[keymap]\n'),
        ("theme = 3\n", 'theme = "b"\n'),
    ],
)
def test_how_it_stands_there(file, before, after):
    given(file, before)
    keep_setting(file, "theme", "b")
    assert file.read_bytes().decode() == after


def test_a_value_that_needs_it_is_escaped(file):
    keep_setting(file, "theme", 'a"\\\n\x1bü')
    assert tomllib.loads(file.read_text("utf-8")) == {"theme": 'a"\\\n\x1bü'}


@each("text", ['theme = """a"""\n', "theme = '''\na'''\n"])
def test_entries_that_are_not_understood_stay_unchanged(file, text):
    given(file, text)
    with pytest.raises(UsageMistake, match=matching("left_put_theme_b_there")):
        keep_setting(file, "theme", "b")
    assert file.read_text() == text


def test_a_broken_file_stays_unchanged(file):
    given(file, "theme = \n")
    with pytest.raises(UsageMistake, match="line 1"):
        keep_setting(file, "theme", "b")
    assert file.read_text() == "theme = \n"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
def test_a_link_stays_one(file, tmp_path):
    (tmp_path / "dotfiles").mkdir()
    given(file, "")
    file.unlink()
    file.symlink_to(tmp_path / "dotfiles" / "localspec.toml")
    (tmp_path / "dotfiles" / "localspec.toml").write_text("seed = 1\n")
    keep_setting(file, "theme", "b")
    assert file.is_symlink() and file.resolve().read_text() == 'seed = 1\ntheme = "b"\n'


def test_a_file_that_cannot_be_written_is_reported(file, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    given(file, "seed = 1\n")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageMistake, match=matching("cannot_be_written_no_space_left")):
        keep_setting(file, "theme", "b")
    assert file.read_text() == "seed = 1\n" and os.listdir(file.parent) == ["config.toml"]
