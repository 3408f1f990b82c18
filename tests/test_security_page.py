"""Every test that docs/security.md names exists."""

import re

from command import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_test_that_it_names_is_there():
    named = re.findall(r"`(tests/[\w/.]*)(?:::(\w+))?`", PAGE)
    assert len(named) > 30
    for place, name in named:
        path = ROOT / place
        assert path.is_file() or (path.is_dir() and any(path.glob("test_*.py"))), place
        if name:
            assert re.search(rf"^(async )?def {name}\(", path.read_text("utf-8"), re.MULTILINE), f"{place}::{name}"


def test_every_row_says_what_is_attacked_what_stops_it_and_which_test_shows_it():
    tables = re.findall(r"^\|.*\| shown by \|\n(?:\|.*\n)+", PAGE, re.MULTILINE)
    assert len(tables) == 8
    others = ("import-linter", "`research/", "by hand")
    for row in (row for table in tables for row in table.splitlines()[2:]):
        *cells, shown = (cell.strip() for cell in row.strip("|").split(" | "))
        assert len(cells) > 1 and all(cells) and ("`tests/" in shown or any(other in shown for other in others)), row


def test_where_to_report_is_one_place():
    assert "](docs/security.md)" in (ROOT / "SECURITY.md").read_text("utf-8")
    assert "](../SECURITY.md)" in PAGE and "--version" in PAGE
