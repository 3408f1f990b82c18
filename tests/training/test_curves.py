import json
from xml.etree import ElementTree as ET

import pytest
from each import each
from golden import wording

from localspec.training.curves import draw, figure, in_characters

LINES = [
    {"step": 0, "accuracy_by_depth": [[0.1, 0.05], [0.0, 0.1]]},
    *({"step": step, "loss": 8.0 / step, "rate": 1e-3, "tokens": step} for step in range(1, 1001)),
    {"step": 1000, "accuracy_by_depth": [[0.62, 0.05], [0.31, 0.1]]},
]


SVG = "{http://www.w3.org/2000/svg}"
PANELS = {wording("loss_mean_of_neighbouring_steps_2"), wording("first_guess_right_held_out_text")}


def paths(drawn: str) -> list[list[tuple[float, float]]]:
    """Return the points of every line except grid lines."""
    found = [element.attrib["d"] for element in ET.fromstring(drawn).iter(SVG + "path")]
    lines = [d for d in found if " h" not in d]
    return [[tuple(map(float, point.split())) for point in line[1:].split(" L")] for line in lines]


def words(drawn: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(drawn).iter(SVG + "text")]


def texts(drawn: str) -> dict[str, dict[str, str]]:
    """Return the attributes of each text element, by its text; of equal texts, those of the last."""
    return {element.text or "": element.attrib for element in ET.fromstring(drawn).iter(SVG + "text")}


def test_a_line_for_the_loss_and_one_for_each_depth():
    drawn = figure(LINES, "medusa for <demo>")
    loss, first, second = paths(drawn)
    assert len(loss) == 334, "a thousand steps are three to a point"
    assert loss == sorted(loss), "the loss falls, so its line goes down, which is up in y"
    highest = (8 / 1 + 8 / 2 + 8 / 3) / 3
    assert loss[0] == (71.9, 56.0) and loss[-1] == (710.0, round(256 - 200 * 8 / 1000 / highest, 1))
    assert first == [(70.0, 500.0), (710.0, 396.0)] and second == [(70.0, 520.0), (710.0, 458.0)]
    assert words(drawn)[0] == "medusa for <demo>" and {*words(drawn)} > PANELS
    assert [text for text in words(drawn) if text.startswith("depth")] == ["depth 1: 62 %", "depth 2: 31 %"]
    assert words(drawn).count("1000 steps") == 2 and {f"{highest:.3g}", "100"} < {*words(drawn)}


@pytest.mark.parametrize(
    ("lines", "drawn", "labels", "highest"),
    [
        pytest.param([], [], [], "1", id="nothing"),
        pytest.param(
            LINES[:1], [[(70.0, 500.0)], [(70.0, 520.0)]], ["depth 1: 10 %", "depth 2: 0 %"], "1", id="one look"
        ),
        pytest.param(LINES[1:2], [[(710.0, 56.0)]], [], "8", id="one step"),
    ],
)
def test_little_to_draw(lines, drawn, labels, highest):
    picture = figure(lines, "?")
    assert paths(picture) == drawn
    assert words(picture)[0] == "?" and {*words(picture)} > PANELS
    assert [text for text in words(picture) if text.startswith("depth")] == labels
    assert words(picture).count("1 steps") == 2
    axis = words(picture)[words(picture).index("loss (mean of neighbouring steps)") + 1 :][:6:2]
    assert axis[0] == "0" and axis[2] == highest, "the axis reaches the highest loss"


def test_lines_that_touch_the_ends_of_their_axis_and_beyond():
    """Losses that are all 0 have an axis too, and impossible values stay inside their panel."""
    drawn = figure([{"step": 1, "loss": 0.0}, {"step": 1, "accuracy_by_depth": [[1.0, 0.1], [1.5, 0.1]]}], "?")
    assert paths(drawn) == [[(710.0, 256.0)], [(710.0, 320.0)], [(710.0, 320.0)]]


def test_each_depth_has_a_colour_and_a_label_of_its_own():
    drawn = figure(LINES, "?")
    strokes = [
        element.attrib["stroke"]
        for element in ET.fromstring(drawn).iter(SVG + "path")
        if " h" not in element.attrib["d"]
    ]
    first, second = texts(drawn)["depth 1: 62 %"], texts(drawn)["depth 2: 31 %"]
    assert strokes[1:] == [first["fill"], second["fill"]] and first["fill"] != second["fill"]
    assert float(second["y"]) - float(first["y"]) >= 13, "a line of text is 13 pixels high"


def test_the_numbers_of_an_axis_are_next_to_their_grid_lines():
    drawn = figure(LINES[1:2], "?")
    grid = [element.attrib["d"] for element in ET.fromstring(drawn).iter(SVG + "path") if " h" in element.attrib["d"]]
    heights = [float(d.split()[1]) for d in grid]
    assert heights == [256.0, 156.0, 56.0, 520.0, 420.0, 320.0]
    found = [(element.text, float(element.attrib["y"]) - 4) for element in ET.fromstring(drawn).iter(SVG + "text")
             if element.attrib.get("text-anchor") == "end"]  # fmt: skip
    assert found == list(zip(["0", "4", "8", "0", "50", "100"], heights, strict=True))


def test_texts_have_attributes_that_svg_knows():
    drawn = texts(figure(LINES, "title"))
    assert drawn["title"]["font-size"] == "17" and all(drawn[panel]["font-weight"] == "bold" for panel in PANELS)
    known = {"x", "y", "font-size", "font-weight", "text-anchor", "fill"}
    assert {name for attributes in drawn.values() for name in attributes} == known


def test_from_a_log_to_a_file(tmp_path):
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    draw(tmp_path / "log", tmp_path / "a.svg", "title")
    assert (tmp_path / "a.svg").read_text() == figure(LINES, "title") and len(list(tmp_path.iterdir())) == 2


@each("width", [40, 80, 200])
def test_in_characters_the_loss_falls_from_its_highest_to_its_lowest(tmp_path, width):
    log = tmp_path / "losses.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    head, top, *_, bottom, steps = in_characters(log, width)
    assert "loss" in head and steps.strip() == "steps 1 to 1000"
    assert max(map(len, (top, bottom, steps))) < width and len(bottom) > min(width, 80) / 2
    (highest, above), (lowest, below) = (line.split(" │ ") for line in (top, bottom))
    assert float(highest) > 0.3 and lowest.strip() == "0.01" and above.strip() == "█" == above and below.endswith("▁")


def test_in_characters_one_step_makes_a_curve_and_no_step_makes_none(tmp_path):
    log = tmp_path / "losses.jsonl"
    log.write_text(json.dumps(LINES[0]) + "\n")
    assert in_characters(log, 80) == []
    log.write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    assert in_characters(log, 80, height=2)[2] == "  2.00 │ ▁"
