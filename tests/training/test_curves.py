import json
from xml.etree import ElementTree as ET

import pytest

from localspec.training.curves import draw, figure

LINES = [
    {"step": 0, "accuracy_by_depth": [[0.1, 0.05], [0.0, 0.1]]},
    *({"step": step, "loss": 8.0 / step, "rate": 1e-3, "tokens": step} for step in range(1, 1001)),
    {"step": 1000, "accuracy_by_depth": [[0.62, 0.05], [0.31, 0.1]]},
]


def paths(drawn: str) -> list[list[tuple[float, float]]]:
    found = [e.attrib["d"] for e in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}path")]
    lines = [d for d in found if " h" not in d]
    return [[tuple(map(float, point.split())) for point in line[1:].split(" L")] for line in lines]


def test_a_line_for_the_loss_and_one_for_each_depth():
    loss, first, second = paths(figure(LINES, "medusa for <demo>"))
    assert 100 < len(loss) <= 400 and len(first) == len(second) == 2
    assert loss == sorted(loss), "the loss falls, so its line goes down, which is up in y"
    assert first[1][1] < second[1][1] < first[0][1] < second[0][1]
    assert {first[-1][0], second[-1][0], loss[-1][0]} == {710.0}
    text = "".join(ET.fromstring(figure(LINES, "medusa for <demo>")).itertext())
    assert "medusa for <demo>" in text and "depth 1: 62 %" in text and "1000 steps" in text


@pytest.mark.parametrize("lines", [[], LINES[:1], LINES[1:2]])
def test_little_to_draw(lines):
    ET.fromstring(figure(lines, "?"))


def test_from_a_log_to_a_file(tmp_path):
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    draw(tmp_path / "log", tmp_path / "a.svg", "title")
    assert (tmp_path / "a.svg").read_text() == figure(LINES, "title") and len(list(tmp_path.iterdir())) == 2
