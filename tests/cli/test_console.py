import pytest
from rich.cells import cell_len

from localspec.cli.console import ago, amount, moment, size, table

NOW = 1_700_000_000.0
MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("before", "shown"),
    [(0, "just now"), (59, "just now"), (MINUTE, "1 minute ago"), (59 * MINUTE, "59 minutes ago"), (HOUR, "1 hour ago"),
     (23 * HOUR, "23 hours ago"), (DAY, "1 day ago"), (30 * DAY, "30 days ago"), (-5, "just now")],
)  # fmt: skip
def test_how_long_ago(before, shown):
    assert ago(NOW - before, NOW) == shown


def test_what_is_long_ago_has_its_day():
    assert ago(NOW - 31 * DAY, NOW) == moment(NOW - 31 * DAY)[:10] and len(ago(0, NOW)) == 10


@pytest.mark.parametrize(
    ("count", "shown"),
    [(44, "44"), (999_999, "999,999"), (1_440_000, "1.44 M"), (494_032_768, "494 M"), (8.2e9, "8.2 B")],
)
def test_amounts(count, shown):
    assert amount(count) == shown


def test_sizes():
    assert (size(1), size(1023), size(1536), size(2**34)) == ("1 byte", "1,023 bytes", "1.5 KiB", "16.0 GiB")


def test_a_table_is_aligned_and_its_last_column_is_cut():
    rows = [["ID", "NAME", "TITLE"], ["7", "世界", "a long title that does not fit"], ["12", "x\x1b[2J", "short"]]
    head, wide, hostile = table(rows, right={0}, width=30)
    assert head == "ID  NAME   TITLE" and wide == " 7  世界   a long title that…" and "\x1b" not in hostile
    assert max(map(cell_len, (head, wide, hostile))) <= 30
    assert table(rows)[1].endswith("does not fit"), "without a width nothing is cut"
