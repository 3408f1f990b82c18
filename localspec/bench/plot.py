"""Draws the report: tokens/s of each row as a bar, in SVG, or in PNG if a library for it is installed."""

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from localspec.bench import server_table
from localspec.bench.table import gain, label, row_name
from localspec.environment import install_extra
from localspec.errors import LocalspecError, UsageMistake
from localspec.quantities import speedup
from localspec.text import one_line

INK, GRID = "#222222", "#bbbbbb"


def drawing(width: int, height: int, parts: list[str]) -> str:
    """Return a complete SVG file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="13" fill="#222">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def line(path: str, colour: str, dashes: str = "", width: float = 2.0) -> str:
    """Return an SVG line along a path."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def words(
    x: float, y: float, text: str, size: int = 13, anchor: str = "start", weight: str = "normal", colour: str = "#222"
) -> str:
    """Return an SVG line of text."""
    shape = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {shape}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a filled SVG rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


LEFT, WIDE, BAR, GAP, TOP, MARGIN = 200, 460, 22, 12, 76, 180  # pixels
PLAIN, FASTER, SLOWER, UNRELIABLE = "#777777", "#1f5fa8", "#c8591b", "#bbbbbb"


def check(file: Path) -> None:
    """Raise UsageMistake, before anything is measured, for a file to which no drawing can be written."""
    if file.suffix.lower() not in (".svg", ".png"):
        raise UsageMistake(f"--plot {file} is neither .svg nor .png; name a file with one of these endings.")
    if not file.parent.is_dir():
        raise UsageMistake(f"--plot {file} is in a directory that does not exist; create it, or name another file.")
    if file.suffix.lower() == ".png" and find_spec("resvg_py") is None:
        raise UsageMistake(
            f"--plot {file} needs a PNG library that is not installed; name an .svg file, or {install_extra('plot')}."
        )
    if file.suffix.lower() == ".png" and _png(drawing(40, 20, [words(9, 15, "M")])) == _png(drawing(40, 20, [])):
        raise UsageMistake(f"--plot {file} would have no text, because this machine has no font; name an .svg file.")


def write(svg: str, file: Path) -> None:
    """Write a drawing. Raises LocalspecError if the file cannot be written."""
    try:
        if file.suffix.lower() == ".svg":
            file.write_text(svg, encoding="utf-8")
        else:
            file.write_bytes(_png(svg))
    except OSError as error:
        raise LocalspecError(f"{file} cannot be written ({error.strerror}); name another --plot FILE.") from None


def _png(svg: str) -> bytes:
    from resvg_py import svg_to_bytes

    return bytes(svg_to_bytes(svg_string=svg, zoom=2))


def figure(report: dict[str, Any]) -> str:
    """Return the rows of a report as an SVG document."""
    bars = [
        PlotBar(row_name(row), row["tokens_per_second"], *_label_and_colour(row))
        for row in report["rows"]
        if row["tokens_per_second"]
    ]
    model = report["model"]
    title = f"{model}: tokens/s, plain and speculative"
    return _drawn(title, f"{label(report)} · {report['machine']['versions']}", bars)


def figure_of_servers(report: dict[str, Any]) -> str:
    """Return the rows of a report on servers as an SVG document."""
    first = report["rows"][0]
    bars = [
        PlotBar(
            server_table.row_name(row),
            row[server_table.WHOLE],
            "" if row is first or not row["speedup"] else f"  {speedup(row['speedup'])}",
            PLAIN if row is first else SLOWER if (row["speedup"] or 0) < 1 else FASTER,
        )
        for row in report["rows"]
        if row[server_table.WHOLE]
    ]
    return _drawn("tokens/s of whole replies", server_table.label(report), bars)


class PlotBar(NamedTuple):
    """One bar of a drawing: its name, its tokens/s, and the text after it."""

    name: str
    speed: float
    label: str
    colour: str


def _label_and_colour(row: dict[str, Any]) -> tuple[str, str]:
    ratio = row["speedup"]
    colour = UNRELIABLE if row["reliable"] is False else FASTER if (ratio or 0) > 1 else SLOWER
    return gain(row), colour if row["nodes"] else PLAIN


def _drawn(title: str, below: str, bars: Sequence[PlotBar]) -> str:
    fastest = max((bar.speed for bar in bars), default=1.0)
    parts = [
        words(MARGIN // 9, 30, one_line(title), size=17),
        words(MARGIN // 9, 52, one_line(below), colour=PLAIN),
    ]
    for number, bar in enumerate(bars):
        top, length = TOP + number * (BAR + GAP), WIDE * bar.speed / fastest
        middle = top + BAR / 2 + 5
        parts += [
            words(LEFT - 10, middle, one_line(bar.name), anchor="end"),
            box(LEFT, top, length, BAR, bar.colour),
            words(LEFT + length + 8, middle, f"{bar.speed:.1f}{bar.label}", colour=bar.colour),
        ]
    return drawing(LEFT + WIDE + MARGIN, TOP + len(bars) * (BAR + GAP) + GAP, parts)
