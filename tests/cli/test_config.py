import json
import os

import pytest
from command import called, sentence
from each import each
from golden import wording

from localspec.cli.main import main
from localspec.config import load
from localspec.errors import UsageMistake
from localspec_tui import keymap, themes


def test_json_names_every_origin(tmp_path):
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "config.toml"
    file.write_text('stop = ["a"]\nseed = 3\n')
    settings = json.loads(called(tmp_path, "config", "--json", LOCALSPEC_SEED="4").stdout)
    assert settings["stop"] == {"value": ["a"], "origin": str(file)}
    assert settings["seed"] == {"value": 4, "origin": "LOCALSPEC_SEED"}
    assert settings["drafter"] == {"value": "auto", "origin": "default"}
    assert settings["temperature"] == {"value": None, "origin": "default"}


def test_json_names_the_answering_model_if_no_model_is_set(tmp_path):
    model = json.loads(called(tmp_path, "config", "--json").stdout)["model"]
    assert (model["value"], model["origin"], model["used"]) == (None, "default", "demo")
    lines = called(tmp_path, "config").stdout.splitlines()
    assert ["model", "demo", *model["used_because"].split()] in [line.split() for line in lines]
    model = json.loads(called(tmp_path, "config", "--json", LOCALSPEC_MODEL="any").stdout)["model"]
    assert model == {"value": "any", "origin": "LOCALSPEC_MODEL", "used": "any", "used_because": "LOCALSPEC_MODEL"}


@each("content", ['theme = "nope"\n', '[keymap]\n"chat.nothing" = "f12"\n', '[keymap]\n"chat.stop" = "noway"\n'])
def test_what_the_chat_refuses_is_refused_here_too(tmp_path, monkeypatch, capsys, content):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "config").mkdir(exist_ok=True)
    file = tmp_path / "config" / "config.toml"
    file.write_text(content)
    check = themes.check if "theme" in content else keymap.effective
    with pytest.raises(UsageMistake) as refused:
        check(load())
    for arguments in (["config"], ["config", "--json"]):
        assert main(arguments) == 2
        assert capsys.readouterr() == ("", f"localspec: {refused.value}\n")
    assert str(file) in str(refused.value)


def test_lines(tmp_path):
    lines = called(tmp_path, "config", LOCALSPEC_SYSTEM="red \x1b[31m").stdout.splitlines()
    assert ["temperature", "-", "default"] in [line.split() for line in lines]
    assert "system         red ␛[31m                LOCALSPEC_SYSTEM" in lines
    values = [line for line in lines[:-1] if "default" in line]
    assert len(values) > 20 and {line.index("default") for line in values} == {40}, (
        "in one column, after a long value too"
    )
    file = tmp_path / "config" / "config.toml"
    assert lines[-1] == wording("change_them_one_command_localspec", file=file)


def test_at_a_terminal_lines_are_broken_between_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_SYSTEM", "Answer in few words, and in verse where that is possible.")
    monkeypatch.setattr("localspec.cli.console.output_is_terminal", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 20)))
    assert main(["config"]) == 0
    shown = capsys.readouterr().out
    assert (
        "system         Answer in few words, and in verse where that\n               is possible.\n"
        "                                        LOCALSPEC_SYSTEM\n" in shown
    )
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 60


def test_mistakes_are_2_and_touch_nothing(tmp_path):
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "config.toml"
    file.write_text("top_k = 1\ntop_p = 2\n")
    before = file.stat().st_mtime_ns
    result = called(tmp_path, "config")
    assert result.returncode == 2 and f"top_p = 2 in {file}" in sentence(result)
    assert file.stat().st_mtime_ns == before and len(list(file.parent.iterdir())) == 1
    file.unlink()
    result = called(tmp_path, "config", LOCALSPEC_SEDE="1")
    assert result.returncode == 2 and "LOCALSPEC_SEED" in sentence(result)
