import sys
from contextlib import nullcontext
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from bench_reports import report, row
from golden import matching
from reply_statistics import said

from localspec.bench import plot
from localspec.errors import LocalspecError, UsageMistake


def two(**unlike):
    rows = [row("none", 0, [said(), said()]), row("phrases", 8, [said(seconds=0.5, steps=2)] * 2)]
    return report([rows[0], {**rows[1], **unlike}])


def texts(svg: str) -> list[str]:
    return [element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def boxes(svg: str) -> list[dict[str, str]]:
    return [element.attrib for element in ET.fromstring(svg).iter() if element.tag.endswith("rect")][1:]


def test_a_bar_is_as_long_as_it_is_fast():
    svg = plot.figure(two())
    slow, fast = boxes(svg)
    assert float(fast["width"]) == 2 * float(slow["width"]) and slow["fill"] != fast["fill"]
    assert texts(svg)[2:] == ["plain decoding", "4.0", "phrases, 8 nodes", "8.0  2.0× faster"]


def test_what_is_slower_or_unreliable_is_drawn_in_another_colour_and_says_so():
    colours = {boxes(plot.figure(two(**one)))[1]["fill"] for one in ({}, {"speedup": 0.5}, {"reliable": False})}
    assert len(colours) == 3 and "8.0, unreliable" in texts(plot.figure(two(reliable=False)))


def test_names_are_only_text():
    svg = plot.figure(two() | {"model": "<script>&\x1b[31m"})
    assert "<script>" not in svg and "\x1b" not in svg and ET.fromstring(svg) is not None


def test_the_file_is_written_as_its_name_ends(tmp_path, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "resvg_py", SimpleNamespace(svg_to_bytes=lambda svg_string, zoom: svg_string[:4].encode())
    )
    for name, start in (("a.svg", b"<svg"), ("b.PNG", b"<svg")):
        plot.write(plot.figure(two()), tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    assert (tmp_path / "b.PNG").stat().st_size == 4
    with pytest.raises(LocalspecError, match=matching("cannot_be_written")):
        plot.write(plot.figure(two()), tmp_path / "away" / "a.svg")


def test_what_cannot_be_drawn_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    for file, said_of_it in (
        (tmp_path / "a.jpg", "neither .svg nor .png"),
        (tmp_path / "away" / "a.svg", matching("directory_that_is_not_there")),
        (tmp_path / "a.png", r"\.\[plot\]"),
    ):
        with pytest.raises(UsageMistake, match=said_of_it):
            plot.check(file)
    plot.check(tmp_path / "a.svg")
    monkeypatch.setattr(plot, "find_spec", lambda name: object())
    for drawn, refused in ((len, False), (lambda svg: 7, True)):  # a machine with fonts, and one without
        library = SimpleNamespace(svg_to_bytes=lambda svg_string, zoom, drawn=drawn: str(drawn(svg_string)).encode())
        monkeypatch.setitem(sys.modules, "resvg_py", library)
        with pytest.raises(UsageMistake, match=matching("no_font")) if refused else nullcontext():
            plot.check(tmp_path / "a.png")
