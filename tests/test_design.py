"""docs/design.md tells where things are; a file that moves must move there, too."""

import re
from pathlib import Path

from command import ROOT

PACKAGES = {"localspec": ROOT / "localspec", "localspec_tui": ROOT / "tui" / "localspec_tui"}


def told() -> set[Path]:
    """Every file that a bullet of the house names; a name without a folder is in that of its bullet, else its heading."""
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    house = page[page.index("\n## The house") :]
    found: set[Path] = set()
    for section in house.split("\n### ")[1:]:
        heading, *bullets = re.split(r"\n(?=- )", section)
        title = heading.split("\n")[0]
        package = PACKAGES["localspec_tui"] if "localspec_tui" in title else PACKAGES["localspec"]
        folders = [name for name in re.findall(r"(\w+)/", title) if name not in ("localspec", "tui", "localspec_tui")]
        for bullet in bullets or [heading]:
            place = package / folders[0] if len(folders) == 1 else package
            for folder, name in re.findall(r"`((?:\w+/)*)(\w+\.(?:py|tcss))?`", bullet):
                place = package / folder if folder else place
                if name:
                    found.add(place / name)
    return found


def test_every_file_has_its_sentence_where_it_is():
    files = {path for package in PACKAGES.values() for path in package.rglob("*.py") if path.stem[0] != "_"}
    commands = ROOT / "localspec" / "cli"  # a command's file has the command's name
    assert {path for path in files if path.parent != commands} - told() == set()


def test_no_sentence_is_about_a_file_that_is_not_there():
    assert {path for path in told() if not path.is_file()} == set()
