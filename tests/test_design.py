"""docs/design.md lists every file with the first sentence of its docstring."""

from command import ROOT
from design_files import PAGE, updated


def test_every_file_is_listed_as_its_docstring_says():
    page = PAGE.read_text("utf-8")
    assert updated(page) == page, "run `python tools/design_files.py`"


def test_every_folder_has_a_section():
    page = PAGE.read_text("utf-8")
    folders = [path.name for path in (ROOT / "localspec").iterdir() if (path / "__init__.py").is_file()]
    assert [name for name in folders if f"\n### {name}/" not in page] == []
    assert "\n### tui/localspec_tui/" in page and "\n### localspec/" in page
