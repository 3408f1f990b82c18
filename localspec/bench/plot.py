"""The report as a drawing: tokens/s of each row as a bar, in SVG, or PNG where a library for it is installed."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localspec.bench.table import label, row_name
from localspec.errors import LocalspecError, UsageMistake
from localspec.svg import box, drawing, words
from localspec.text import one_line

LEFT, WIDE, BAR, GAP, TOP, MARGIN = 200, 460, 22, 12, 76, 180  # pixels
PLAIN, FASTER, SLOWER, UNRELIABLE = "#777777", "#1f5fa8", "#c8591b", "#bbbbbb"


def check(file: Path) -> None:
    """Raises UsageMistake for a file that cannot become a drawing, before anything is measured."""
    if file.suffix.lower() not in (".svg", ".png"):
        raise UsageMistake(f"--plot {file} is neither .svg nor .png; name a file that ends so.")
    if not file.parent.is_dir():
        raise UsageMistake(f"--plot {file} lies in a directory that is not there; make it, or name another.")
    if file.suffix.lower() == ".png" and find_spec("resvg_py") is None:
        raise UsageMistake(
            f'--plot {file} needs a library for PNG, which pip install "localspec[plot]" brings; .svg needs none.'
        )
    if file.suffix.lower() == ".png" and _png(drawing(40, 20, [words(9, 15, "M")])) == _png(drawing(40, 20, [])):
        raise UsageMistake(f"--plot {file} would have no words, for this machine has no font; name an .svg.")


def write(report: dict[str, Any], file: Path) -> None:
    """Draws a report. Raises LocalspecError where the file cannot be written."""
    svg = figure(report)
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
    """An SVG document."""
    rows = [row for row in report["rows"] if row["tokens_per_second"]]
    most = max((row["tokens_per_second"] for row in rows), default=1.0)
    machine = report["machine"]["versions"]
    parts = [
        words(MARGIN // 9, 30, one_line(f"{report['model']}: tokens/s, plain and speculative"), size=17),
        words(MARGIN // 9, 52, one_line(f"{label(report)} · {machine}"), colour=PLAIN),
    ]
    for number, row in enumerate(rows):
        parts += _bar(row, TOP + number * (BAR + GAP), WIDE * row["tokens_per_second"] / most)
    return drawing(LEFT + WIDE + MARGIN, TOP + len(rows) * (BAR + GAP) + GAP, parts)


def _bar(row: dict[str, Any], top: float, length: float) -> Sequence[str]:
    speedup, text = row["speedup"], f"{row['tokens_per_second']:.1f}"
    colour = PLAIN
    if row["nodes"]:
        colour = UNRELIABLE if row["reliable"] is False else FASTER if (speedup or 0) > 1 else SLOWER
        text += ", unreliable" if row["reliable"] is False else f"  × {speedup:.2f}" if speedup else ""
    middle = top + BAR / 2 + 5
    return [
        words(LEFT - 10, middle, one_line(row_name(row)), anchor="end"),
        box(LEFT, top, length, BAR, colour),
        words(LEFT + length + 8, middle, text, colour=colour),
    ]
