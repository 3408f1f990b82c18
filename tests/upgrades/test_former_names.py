"""An import whose GGUF file the registry now lists: it gets the registry's name, and earlier data are still found."""

import json
import tarfile
from pathlib import Path

import pytest
from command import called

from localspec.models.registry import find, reference
from localspec.paths import Paths
from localspec.weights.packed_files import imports

ARCHIVE = Path(__file__).parent / "imports-66a34518.tar.xz"
OLD, NEW = "gone", "listed-name"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    home = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    ((_, digest),) = imports(Paths(home))[OLD].header.origin.files.values()
    Paths(home).user_models_file.write_text(f'[{NEW}]\nrepo = "org/name"\nsha256 = ["{digest}"]\n')
    Paths(home).config_file.unlink()
    return home


def shown(home: Path, *arguments: str) -> str:
    result = called(home, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_lists_show_the_present_name(home: Path) -> None:
    assert shown(home, "use", OLD).startswith(NEW)
    assert shown(home, "use").startswith(f"{NEW} (")
    for command in (("history", "list"), ("history", "search", "hello"), ("history", "show", "2"), ("pool", "list")):
        text = shown(home, *command)
        assert NEW in text and f"{OLD}," not in text and f"{OLD}:" not in text and f"({OLD})" not in text, command
    assert {one["model"] for one in json.loads(shown(home, "pool", "list", "--json"))} == {NEW, "here"}
    assert {one["model"] for one in json.loads(shown(home, "history", "list", "--json"))} == {NEW, "here"}
    assert NEW in shown(home, "history", "export") and f"({OLD})" not in shown(home, "history", "export")


def test_a_model_of_the_settings_is_shown_by_its_present_name(home: Path) -> None:
    Paths(home).config_file.write_text(f'model = "{OLD}"\n')
    assert shown(home, "use").startswith(f"{NEW} (")


@pytest.mark.slow
@pytest.mark.parametrize("name", [OLD, NEW])
def test_commands_accept_both_names(home: Path, name: str) -> None:
    for command in (("show",), ("verify",), ("use",), ("pool", "show"), ("run", "hi", "-n", "1", "--no-log", "-m")):
        shown(home, *command, name)
    assert shown(home, "pool", "show", name).startswith(f"{NEW}: ")


@pytest.mark.slow
@pytest.mark.parametrize("name", [OLD, NEW])
def test_phrases_are_found_by_both_names_after_the_model_was_deleted(home: Path, name: str) -> None:
    before = shown(home, "pool", "show", NEW)
    said = shown(home, "rm", name, "--yes")
    assert f"`localspec pool clear {NEW}`" in said
    for other in (OLD, NEW):
        assert shown(home, "pool", "show", other).splitlines()[0].startswith(f"{NEW}: ")
        assert shown(home, "pool", "show", other).count("\n") == before.count("\n")
    assert NEW in shown(home, "history", "list") and f"{OLD}," not in shown(home, "history", "list")
    for other in (OLD, NEW):
        result = called(home, "run", "hi", "-m", other)
        assert result.returncode == 3 and f"localspec pull {NEW}" in result.stderr
        assert called(home, "rm", other, "--yes").returncode == 3
        assert called(home, "verify", other).returncode == 3 and called(home, "show", other).returncode == 0
    assert f"phrases of {NEW}" in shown(home, "pool", "clear", name, "--yes")


def test_phrases_belong_to_a_model_that_is_imported_again(home: Path) -> None:
    file = next(Path(home).glob("*.gguf"))
    ((_, digest),) = imports(Paths(home))[file.stem].header.origin.files.values()
    Paths(home).user_models_file.write_text(f'[{NEW}]\nrepo = "org/name"\nsha256 = ["{digest}"]\n')
    shown(home, "rm", NEW, "--yes")
    assert shown(home, "import", str(file)).startswith(f"{NEW} is ready: ")
    card = find(NEW)
    assert card is not None and reference(card) == file.stem
    pools = {one["model"]: one["phrases"] for one in json.loads(shown(home, "pool", "list", "--json"))}
    shown(home, "run", "hello", "-m", NEW, "-n", "4", "--drafter", "phrases")
    now = {one["model"]: one["phrases"] for one in json.loads(shown(home, "pool", "list", "--json"))}
    assert now.keys() == pools.keys() and now[NEW] >= pools[NEW] > 0
