"""A setting that is refused names the variable or the file that it comes from, and a flag by its name."""

import io
import sys
from pathlib import Path

import pytest

from localspec.cli.main import main
from localspec.machine import hardware
from localspec.paths import Paths

WRONG = {
    "device": ("cuda:9", "There is no device 'cuda:9' here"),
    "drafter": ("nope", "There is no drafter 'nope'"),
    "threads": ("9999", "here; give fewer threads"),
    "context": ("99999", "is more than the 1024 tokens that this model was made for"),
}


@pytest.mark.parametrize("origin", ["flag", "variable", "file"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_names_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, origin: str
) -> None:
    value, sentence = WRONG[name]
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setattr(hardware._Allowed, "cores", None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    written = value if value.isdigit() else repr(value)
    arguments, file = ["run", "-m", "demo", "hi"], Paths(tmp_path).config_file
    if origin == "flag":
        arguments += [f"--{name}", value]
    elif origin == "variable":
        monkeypatch.setenv(f"LOCALSPEC_{name.upper()}", value)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name} = {written}\n")
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    where = {
        "flag": f"--{name} {value}" if name in ("threads", "context") else "",
        "variable": f"LOCALSPEC_{name.upper()}={written}",
        "file": f"{name} = {written} in {file}",
    }
    said = err.splitlines()[-1]
    assert out == "" and sentence in said and where[origin] in said
    assert "--context" not in said or origin == "flag"
