from rich.cells import cell_len

from localspec.cli.console import table


def test_a_table_is_aligned_and_its_last_column_is_cut():
    rows = [["ID", "NAME", "TITLE"], ["7", "世界", "a long title that does not fit"], ["12", "x\x1b[2J", "short"]]
    head, wide, hostile = table(rows, right={0}, width=30)
    assert head == "ID  NAME   TITLE" and wide == " 7  世界   a long title that…" and "\x1b" not in hostile
    assert max(map(cell_len, (head, wide, hostile))) <= 30
    assert table(rows)[1].endswith("does not fit"), "without a width nothing is cut"
