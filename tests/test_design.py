"""docs/design.md tells where things are; a file that moves must move there, too."""

import re

from command import ROOT

PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")
PACKAGES = (ROOT / "localspec", ROOT / "tui" / "localspec_tui")
FILES = {path for package in PACKAGES for path in package.rglob("*.py") if path.stem[0] != "_"}


def test_every_file_has_its_sentence():
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", PAGE))
    commands = ROOT / "localspec" / "cli"  # a command's file has the command's name
    assert {path.name for path in FILES if path.parent != commands} - named == set()


def test_no_sentence_is_about_a_file_that_is_gone():
    there = {path.name for path in FILES} | {"__init__.py"}
    there |= {str(path.relative_to(package)) for package in PACKAGES for path in FILES if path.is_relative_to(package)}
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert {name for name in named if name not in there and not (ROOT / name).is_file()} == set()


def test_every_folder_has_its_heading():
    folders = {path.parent.name for path in FILES} - {"localspec", "localspec_tui", "screens", "widgets"}
    headings = " ".join(line for line in PAGE.splitlines() if line.startswith("###"))
    assert {name for name in folders if f"{name}/" not in headings} == set()
