from localspec import marks


def test_a_bar_is_as_long_as_its_share():
    assert marks.bar(1.0, 10) == "█" * 10 and marks.bar(0.5, 10) == "█" * 5 and marks.bar(0.25, 2) == "▌"
    assert marks.bar(0.0, 10) == "" and marks.bar(0.0001, 10) == "▏" and marks.bar(3.0, 4) == "████"
    assert all(len(marks.bar(share / 100, 30)) <= 30 for share in range(101))


def test_a_curve_has_a_column_a_value_and_stands_on_its_least():
    top, bottom = marks.curve([0.0, 1.0, 2.0], height=2)
    assert top == " ▁█" and bottom == "▁██"
    assert marks.curve([3.0, 3.0], height=2) == ["", "▁▁"]
    fallen = marks.curve([float(9 - n) for n in range(10)], height=3)
    assert len(fallen) == 3 and max(map(len, fallen)) == 10 and fallen[0].startswith("█") and fallen[2].endswith("▁")


def test_more_values_than_columns_become_means_of_neighbours():
    assert marks.means([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0] and marks.means([1.0, 2.0], 9) == [1.0, 2.0]
    assert len(marks.means(range(1000), 72)) == 72 and marks.means(range(7), 3) == [0.5, 2.5, 5.0]
