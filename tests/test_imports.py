import json
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from command import ROOT, environment

import localspec

HEAVY = ("torch", "transformers", "tokenizers", "numpy", "safetensors", "textual", "pydantic")
LOADED = f"import sys, json; json.dump([m for m in {HEAVY!r} if m in sys.modules], sys.stderr)"
COMMANDS = [
    ["--help"],
    ["--version"],
    ["list"],
    ["path"],
    ["config"],
    ["show", "demo"],
    ["run", "--help"],
    ["chat", "--help"],
    ["doctor", "--help"],
    ["pull", "--help"],
    ["rm", "--help"],
    ["verify", "--help"],
    ["pool", "--help"],
    ["pool", "list"],
    ["history", "--help"],
    ["history", "list"],
]


def loaded(tmp_path, code: str, **variables: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(result.stderr.splitlines()[-1])
    return found


def test_importing_localspec_loads_nothing_heavy(tmp_path):
    assert loaded(tmp_path, f"import localspec; localspec.LocalspecError; dir(localspec); {LOADED}") == []


@pytest.mark.slow
def test_importing_the_terminal_interface_loads_no_model_and_draws_nothing(tmp_path):
    assert loaded(tmp_path, f"import localspec_tui; {LOADED}") == []


@pytest.mark.slow
def test_light_commands_load_nothing_heavy(tmp_path):
    """The commands run one after the other, so the modules at the end are those of all of them."""
    code = f"""
from localspec.cli.main import main
for arguments in {COMMANDS}:
    code = main(arguments)
    assert code == 0, (arguments, code)
{LOADED}
"""
    assert loaded(tmp_path, code) == []


@pytest.mark.slow
@pytest.mark.parametrize("words", ["localspec ", "localspec run --dev", "localspec show "])
def test_completion_loads_nothing_heavy(tmp_path, words):
    code = f"""
import atexit, sys
def report(): {LOADED}
atexit.register(report)
from localspec.cli.main import main
main([])
"""
    variables = {"_LOCALSPEC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert loaded(tmp_path, code, **variables) == []


@pytest.mark.slow
def test_before_the_first_paint_nothing_is_imported_that_looks_for_models(tmp_path):
    code = (
        "import localspec.cli.chat, localspec_tui.app, sys, json; json.dump(sorted(m for m in sys.modules if "
        "m.startswith(('localspec.models.', 'localspec.hub', 'localspec.store.'))), sys.stderr)"
    )
    assert loaded(tmp_path, code) == [
        "localspec.models.detokenize",
        "localspec.models.messages",
        "localspec.models.thinking",
        "localspec.store.conversations",
        "localspec.store.searched_words",
    ]


@pytest.mark.slow
def test_help_imports_no_command(tmp_path):
    code = (
        "from localspec.cli.main import main; main(['--help']); import sys, json; "
        "json.dump(sorted(m for m in sys.modules if m.startswith('localspec.cli.')), sys.stderr)"
    )
    shared = ("console", "interrupt", "main")
    assert loaded(tmp_path, code) == [f"localspec.cli.{name}" for name in shared]


def test_every_public_name_resolves():
    for name in localspec.__all__:
        assert getattr(localspec, name) is not None
        assert name in dir(localspec)
    assert localspec.LocalspecError is localspec.LocalspecError


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError, match="nonsense"):
        localspec.nonsense  # noqa: B018


def contract(**has: str) -> dict[str, Any]:
    """Return the one import contract whose lists contain these words, or whose values equal them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (found,) = (one for one in contracts if all(word in one.get(key, "") for key, word in has.items()))
    return found


def rooms() -> set[str]:
    """Return every folder and every file at the package's root."""
    package = ROOT / "localspec"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    files = {path.stem for path in package.glob("*.py") if path.stem[0] != "_"}
    return {f"localspec.{name}" for name in folders | files}


def test_every_folder_has_a_layer():
    """import-linter checks only folders that the contract names."""
    layers = contract(type="layers")["layers"]
    assert rooms() - {word.strip("()") for layer in layers for word in layer.split()} == set()


def test_every_folder_is_seen_by_the_linter():
    """A folder without __init__.py can still be imported, but no contract covers it."""
    files = [path for package in ("localspec", "tui/localspec_tui") for path in (ROOT / package).rglob("*.py")]
    assert {path.parent for path in files if not (path.parent / "__init__.py").exists()} == set()


@pytest.mark.slow
def test_facts_about_the_machine_are_asked_of_torch_only_when_they_are_needed(tmp_path):
    names = {path.stem for path in (ROOT / "localspec" / "machine").glob("[a-z]*.py")} - {"library"}  # it needs numpy
    files = ", ".join(f"localspec.machine.{name}" for name in names)
    assert loaded(tmp_path, f"import {files}; {LOADED}") == []
