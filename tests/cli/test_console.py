import pytest
from golden import wording
from pretended_terminal import read_at_a_terminal
from rich.cells import cell_len

from localspec.cli.console import folded, table
from localspec.cli.main import main


def test_a_table_is_aligned_and_its_last_column_is_cut():
    rows = [["ID", "NAME", "TITLE"], ["7", "世界", "a long title that does not fit"], ["12", "x\x1b[2J", "short"]]
    head, wide, hostile = table(rows, right={0}, width=30)
    assert head == "ID  NAME   TITLE" and wide == " 7  世界   a long title that…" and "\x1b" not in hostile
    assert max(map(cell_len, (head, wide, hostile))) <= 30
    assert table(rows)[1].endswith(wording("does_not_fit")), "without a width nothing is cut"


def test_the_last_column_of_a_table_may_continue_on_the_next_line():
    rows = [["NAME", "SIZE", "BY"], ["世界", "1", "draft_model+phrases, int4 and more"], ["b", "22", "phrases"]]
    assert table(rows, right={1}, width=25, wraps={2}) == [
        "NAME  SIZE  BY",
        "世界     1  draft_model+",
        "            phrases, int4",
        "            and more",
        "b       22  phrases",
    ]
    assert table(rows, right={1}, width=25, wraps={1})[1] == "世界     1  draft_model+…"
    assert table(rows, width=20, wraps={2})[1:3] == ["世界  1     draft_m…", "            phrases,"]


def test_of_a_table_that_is_too_wide_whole_columns_are_left_out():
    rows = [["NAME", "BYTES", "LICENSE", "PATH"], ["demo", "14.5 MiB", "Apache-2.0", "/a/path/to/it"]]
    shown = {width: table(rows, width=width)[1] for width in (45, 36, 30, 28, 26, 17, 16, 8)}
    assert shown == {
        45: "demo  14.5 MiB  Apache-2.0  /a/path/to/it",
        36: "demo  14.5 MiB  Apache-2.0  /a/path…",
        30: "demo  14.5 MiB  Apache-2.0",
        28: "demo  14.5 MiB  Apache-2.0",
        26: "demo  14.5 MiB  Apache-2.0",
        17: "demo  14.5 MiB",
        16: "demo  14.5 MiB",
        8: "demo",
    }
    assert table(rows, width=3)[1] == "de…"
    assert table(rows, width=36, whole={3})[1] == "demo  14.5 MiB  Apache-2.0"
    assert table(rows, width=36)[2:] == []
    assert table(rows, width=30)[2:] == folded(wording("room_path_which_json"), 30)
    assert table(rows, width=17)[2:] == [wording("no_room_for"), "LICENSE, PATH;", wording("which_json_has")]


def test_a_line_is_folded_between_words():
    line = "path          /a/path-with-hyphens/in it"
    assert folded(line, None) == [line] == folded(line, 40)
    assert folded(line, 38, indent=14) == ["path          /a/path-with-hyphens/in", "              it"]
    assert folded(line, 20, indent=14) == ["path", "              /a/path-with-hyphens/in", "              it"]
    assert folded("", 10) == [""]


def test_a_command_in_a_line_that_is_folded_can_be_copied():
    assert folded("leave it to `localspec history list` then", 30) == [
        "leave it to",
        wording("localspec_history_list_then"),
    ]
    assert folded("so: localspec chat --conversation 1", 20) == ["so:", wording("localspec_chat_conversation_1")]
    assert folded("localspec: /path/that/is/wider is gone", 20) == ["localspec: /path/that/is/wider", "is gone"]
    assert folded("localspec: localspec chat needs a terminal", 24) == [
        "localspec: localspec",
        wording("chat_needs_a_terminal"),
    ]
    assert folded("a /path/that/is/wider/than/it b", 12) == ["a", "/path/that/is/wider/than/it", "b"]


@pytest.mark.parametrize(("columns", "lines"), [(60, 2), (0, 1)])
def test_an_error_at_a_terminal_is_broken_between_words(monkeypatch, capsys, columns, lines):
    read_at_a_terminal(monkeypatch, "stderr", columns)
    assert main(["run", "--temperature", "999", "hello"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines and told[0].startswith("localspec: --temperature")
    assert lines == 1 or max(map(len, told)) <= 60
    monkeypatch.undo()
    assert main(["run", "--temperature", "999", "hello"]) == 2
    assert capsys.readouterr().err == " ".join(told) + "\n", "one line where no person reads it"
