"""Write the lists of files in docs/design.md: each file with the first sentence of its docstring.

    python tools/design_files.py

Each section of "The house" names its folder in the heading. The text of a section stays, and its list is replaced.
"""

import ast
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design.md"
_HEADING = re.compile(r"^### `?([\w/]+)/", re.MULTILINE)
_LIST = re.compile(r"\n(?:- .*\n(?:  .*\n)*)+")


def updated(page: str) -> str:
    """Return the page with the list of files of each folder's section brought up to date."""
    pieces = re.split(r"(?=^##+ )", page, flags=re.MULTILINE)
    return "".join(_with_files(piece) if _HEADING.match(piece) else piece for piece in pieces)


def _with_files(section: str) -> str:
    folder = _folder(_HEADING.match(section)[1])  # type: ignore[index]
    lines = "".join(_line(folder, file) for file in _files(folder))
    text = _LIST.sub("\n", section, count=1) if _LIST.search(section) else section
    heading, _, prose = text.strip().partition("\n")
    return "\n\n".join(part for part in (heading, prose.strip(), lines.strip()) if part) + "\n\n"


def _folder(name: str) -> Path:
    """Return the folder of a heading: in the package, or the package of the terminal interface."""
    return ROOT / name if name.startswith(("localspec", "tui")) else ROOT / "localspec" / name


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder, and those of its subfolders without a section."""
    recursive = folder != ROOT / "localspec"
    files = folder.rglob("*.py") if recursive else folder.glob("*.py")
    return sorted((file for file in files if file.stem[0] != "_"), key=lambda file: (len(file.parts), file))


def _line(folder: Path, file: Path) -> str:
    sentence = " ".join((ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.][.!?]) (?=[A-Z`])", sentence)[0].rstrip(".")
    text = f"- `{file.relative_to(folder).as_posix()}`: {sentence}."
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


def main() -> int:
    """Rewrite docs/design.md, and return exit code 0."""
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
