import json
import os
import re
from pathlib import Path

from checkpoints import write_checkpoint, write_drafter
from command import called
from golden import wording

from localspec.models import drafter_cards
from localspec.models.model import model_of
from localspec.models.registry import TargetCard


def register(home, text: str) -> None:
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "models.toml").write_text(text)


def test_json(tmp_path):
    model = write_checkpoint(tmp_path / "model")
    register(tmp_path, f'[demo]\npath = "{model}"\nlicense = "mit"\n[other]\npath = "../model"\n')
    result = called(tmp_path, "list", "--json")
    first, draft, second = json.loads(result.stdout)
    assert draft["name"] == "demo-draft"
    assert result.returncode == 0 and result.stderr == ""
    size = (model / "model.safetensors").stat().st_size
    assert first == {
        "name": "demo", "parameters": 44, "bytes": size, "packed": {}, "draft": None, "license": "mit", "path": str(model),
        "trained": [],
        "description": "", "chosen": False, "problem": None, "bits_per_weight": None, "missing": None,
    }  # fmt: skip
    assert second["name"] == "other" and second["license"] is None


def test_table(tmp_path):
    model = write_checkpoint(tmp_path / "model")
    register(tmp_path, f'[demo]\npath = "{model}"\n')
    lines = called(tmp_path, "list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "PARAMETERS", "BYTES", "PACKED", "DRAFTERS", "LICENSE", "PATH"]
    assert lines[1].split()[:2] == ["demo", "44"] and lines[1].endswith(str(model)) and "unknown" in lines[1]


def test_drafters_that_come_with_localspec_and_the_users_own_are_listed(tmp_path, monkeypatch):
    model = write_checkpoint(tmp_path / "model")
    register(tmp_path, f'[mine]\npath = "{model}"\n')
    monkeypatch.setattr(drafter_cards, "SHIPPED", tmp_path / "trained")
    write_drafter(tmp_path / "trained" / "mine", model)

    def shown() -> list[str]:
        (line,) = (line for line in called(tmp_path, "list").stdout.splitlines() if line.startswith("mine "))
        return re.split(" {2,}", line)

    assert "medusa, shipped" in shown()
    (row,) = (one for one in json.loads(called(tmp_path, "list", "--json").stdout) if one["name"] == "mine")
    assert row["trained"] == [{"kind": "medusa", "shipped": True}]
    weights = tmp_path / "trained" / "mine" / "drafter.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    result, card = called(tmp_path, "list"), TargetCard("mine", model, None, "")
    assert "shipped" not in result.stdout and wording("drafter_mine_left_out") in result.stderr
    assert str(weights) in result.stderr and model_of(card).passed_over in result.stderr
    weights.write_bytes(whole)
    assert model_of(card).passed_over == ""
    for kind in ("semi", "s3d", "eagle3"):
        write_drafter(tmp_path / "data" / "drafters" / kind / "drafter", model, kind)
        if kind == "s3d":
            assert "s3d, semi; medusa, shipped" in shown()
    assert "3 kinds; medusa, shipped" in shown()


def test_at_a_terminal_no_line_is_wider_than_it_and_programs_get_the_whole_path(tmp_path, monkeypatch):
    model = write_checkpoint(tmp_path / ("long-" * 30) / "model")
    register(tmp_path, f'[demo]\npath = "{model}"\n')
    monkeypatch.setenv("COLUMNS", "80")
    assert called(tmp_path, "list").stdout.splitlines()[1].endswith(str(model))
    monkeypatch.setattr("localspec.cli.console.output_is_terminal", lambda: True)
    lines = called(tmp_path, "list").stdout.splitlines()
    assert max(map(len, lines)) <= 80 and lines[1].endswith("…")
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((56, 20)))
    lines = called(tmp_path, "list").stdout.splitlines()
    assert max(map(len, lines)) <= 56 and lines[-1] == wording("room_license_path_which_json")


def test_names_are_made_safe(tmp_path):
    model = write_checkpoint(tmp_path / "model")
    register(tmp_path, f'["\\u001b[31mred\\nline"]\npath = "{model}"\n["\\u202ebroken"]\npath = "x"\n')
    for arguments in (["list"], ["list", "--json"]):
        result = called(tmp_path, *arguments)
        assert not {"\x1b", "\u202e"} & set(result.stdout + result.stderr)
    assert "␛[31mred line" in called(tmp_path, "list").stdout


def test_a_broken_model_hides_no_other(tmp_path):
    write_checkpoint(tmp_path / "model")
    register(tmp_path, '[demo]\npath = "../nowhere"\n[mine]\npath = "../model"\n')
    result = called(tmp_path, "list", "--json")
    assert result.returncode == 0 and [row["name"] for row in json.loads(result.stdout)] == ["demo-draft", "mine"]
    assert result.stderr.startswith(wording("localspec_demo_is_left_out")) and result.stderr.count("\n") == 1


def test_the_demo_is_here(tmp_path):
    row, draft = json.loads(called(tmp_path, "list", "--json").stdout)
    assert row["name"] == "demo" and row["parameters"] > 1_000_000
    assert draft["name"] == "demo-draft" and 500_000 <= draft["parameters"] <= 2_000_000
    place = Path(draft["path"])
    assert sum(file.stat().st_size for file in place.iterdir()) <= 4_000_000


def test_at_a_terminal_sizes_are_those_of_a_person(tmp_path, monkeypatch):
    piped = called(tmp_path, "list").stdout.splitlines()[1].split()
    monkeypatch.setattr("localspec.cli.console.output_is_terminal", lambda: True)
    lines = called(tmp_path, "list").stdout.splitlines()
    assert re.fullmatch(r"\* demo +\d+\.\d+ M +\d+\.\d MiB +no +5 kinds; demo-draft +Apache-2\.0.*", lines[1])
    assert piped[0] == "demo" and all(figure.replace(",", "").isdecimal() for figure in piped[1:3])
    assert json.loads(called(tmp_path, "list", "--json").stdout)[0]["bytes"] > 1_000_000
