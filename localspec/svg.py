"""Lines, words and bars of drawings, as SVG."""

from html import escape

INK, GRID = "#222222", "#bbbbbb"


def drawing(width: int, height: int, parts: list[str]) -> str:
    """A whole file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="13" fill="#222">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def line(path: str, colour: str, dashes: str = "", width: float = 2.0) -> str:
    """A path."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def words(
    x: float, y: float, text: str, size: int = 13, anchor: str = "start", weight: str = "normal", colour: str = "#222"
) -> str:
    """A line of text."""
    shape = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {shape}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
