import json
import os

from command import called, sentence
from golden import wording

from localspec.cli.main import main


def test_json_tells_every_origin(tmp_path):
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "config.toml"
    file.write_text('stop = ["a"]\nseed = 3\n')
    settings = json.loads(called(tmp_path, "config", "--json", LOCALSPEC_SEED="4").stdout)
    assert settings["stop"] == {"value": ["a"], "origin": str(file)}
    assert settings["seed"] == {"value": 4, "origin": "LOCALSPEC_SEED"}
    assert settings["drafter"] == {"value": "auto", "origin": "default"}
    assert settings["temperature"] == {"value": None, "origin": "default"}


def test_lines(tmp_path):
    lines = called(tmp_path, "config", LOCALSPEC_SYSTEM="red \x1b[31m").stdout.splitlines()
    assert ["temperature", "-", "default"] in [line.split() for line in lines]
    assert "system         red ␛[31m                LOCALSPEC_SYSTEM" in lines
    file = tmp_path / "config" / "config.toml"
    assert lines[-1] == wording("change_them_one_command_localspec", file=file)


def test_at_a_terminal_lines_are_broken_between_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_SYSTEM", "Answer in few words, and in verse where that is possible.")
    monkeypatch.setattr("localspec.cli.console.seen", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 20)))
    assert main(["config"]) == 0
    shown = capsys.readouterr().out
    assert (
        "system         Answer in few words, and in verse where that\n               is possible. LOCALSPEC_SYSTEM\n"
        in shown
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
