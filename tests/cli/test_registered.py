"""Registered models from the plan to the answer: pulled by name, chosen without one, shown, removed."""

import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.hub_commands import at, rates_cost_nothing
from golden import wording
from hub_server import Hub, model_repository, served

from localspec.cli import meanwhile
from localspec.models.registry import resolve

ENTRIES = """
[mine]
repo = "org/name"
license = "Apache-2.0"
quality = 30
draft = "small"
[[mine.drafters]]
kind = "medusa"
[[mine.drafters]]
kind = "draft_model"
accepted = { length = 4.5, depth = 5, source = "a test" }

[small]
repo = "org/small"
quality = 20
"""


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("timed_briefly")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rates_cost_nothing(monkeypatch)
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True, mode=0o700)
    (home / "config" / "models.toml").write_text(ENTRIES)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    return home


@pytest.fixture
def hub():
    demo = resolve("demo").path
    with served(org__name=model_repository(demo), org__small=model_repository(demo / "draft")) as hub:
        yield hub


def pulled(home: Path, hub: Hub, *arguments: str) -> list[str]:
    """Return the repositories that a plan names."""
    result = at(home, hub, "pull", *arguments, "--dry-run", "--json")
    assert result.returncode == 0, result.stderr
    return [source["repo"] for source in json.loads(result.stdout)["sources"]]


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"the network was asked: {arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_what_comes_along(home, hub):
    assert pulled(home, hub, "mine", "--drafter", "none") == ["org/name"]
    assert pulled(home, hub, "mine", "--drafter", "draft_model") == ["org/name", "org/small"]
    assert pulled(home, hub, "mine")[0] == "org/name"
    result = at(home, hub, "pull", "mine", "--drafter", "medusa")
    assert result.returncode == 2 and wording("localspec_train_medusa_m_mine") in result.stderr
    result = at(home, hub, "pull", "mine", "--drafter", "draft-model")
    assert result.returncode == 2 and wording("did_you_mean_draft_model") in result.stderr
    result = at(home, hub, "pull", "org/name", "--drafter", "medusa")
    assert result.returncode == 2 and "no effect" in result.stderr


def test_a_name_from_the_plan_to_the_answer(home, hub, monkeypatch):
    result = at(home, hub, "run", "hi", "-m", "mine")
    assert result.returncode == 3 and "localspec pull mine" in result.stderr
    assert json.loads(at(home, hub, "show", "mine", "--json").stdout)["installed"] is False

    result = at(home, hub, "pull", "mine", "--drafter", "draft_model")
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert wording("localspec_train_medusa_m_mine_2") in last and "hours" in last and "GiB" in last

    listed = {row["name"] for row in json.loads(at(home, hub, "list", "--json").stdout)}
    assert listed == {"demo", "demo-draft", "mine", "small"}
    shown = json.loads(at(home, hub, "show", "mine", "--json").stdout)
    assert shown["installed"] and shown["verified"] and shown["parameters"] == 7_606_528 and len(shown["commit"]) == 40
    assert "draft_model:small" in shown["drafters"]
    assert at(home, hub, "verify", "mine").returncode == 0

    no_network(monkeypatch)
    for arguments in (("-m", "mine"), ("-m", "mine", "--drafter", "draft_model"), ("-m", "org/name"), ()):
        result = at(home, hub, "run", "Who are you?", "--temp", "0", "-n", "8", "--json", "--no-log", *arguments)
        assert result.returncode == 0, result.stderr
        said = json.loads(result.stdout)
        # without a name, the best model here answers, and the demo model is not mentioned
        assert said["model"] == (arguments[1] if arguments else "mine") and "demo" not in result.stderr
        assert "localspec" in said["text"]
    doctor = json.loads(at(home, hub, "doctor", "--json").stdout)
    assert doctor["chosen"]["model"] == "mine" and doctor["chosen"]["installed"]

    result = at(home, hub, "rm", "mine", "--yes")
    assert result.returncode == 0
    assert at(home, hub, "run", "hi", "-m", "mine").returncode == 3


def test_another_revision_than_main_is_pinned(home, hub):
    hub.repositories["org/name"].revisions["v1"] = hub.repositories["org/name"].revisions["main"]
    (home / "config" / "models.toml").write_text('[mine]\nrepo = "org/name"\nrevision = "v1"\n')
    result = at(home, hub, "pull", "mine")
    assert result.returncode == 0 and "org/name@v1" in result.stdout
    assert json.loads(at(home, hub, "show", "mine", "--json").stdout)["source"] == "org/name@v1"


def test_a_damaged_model_is_not_chosen(home, hub):
    assert at(home, hub, "pull", "mine", "--drafter", "none").returncode == 0
    shutil.rmtree(home / "hf" / "hub" / "models--org--name" / "blobs")
    shutil.rmtree(home / "cache" / "packed")  # otherwise it would still answer from there
    result = at(home, hub, "run", "hi", "-n", "2", "--no-log")
    assert result.returncode == 0 and wording("the_embedded_demo_model_answers") in result.stderr


def test_what_was_pulled_by_its_repository_is_here_like_any_other(home, hub):
    (home / "config" / "models.toml").unlink()
    assert at(home, hub, "pull", "org/small").returncode == 0
    assert "org/small" in {row["name"] for row in json.loads(at(home, hub, "list", "--json").stdout)}
    result = at(home, hub, "run", "hi", "-n", "2", "--json", "--no-log")
    assert json.loads(result.stdout)["model"] == "org/small" and "demo model" not in result.stderr
    (Path(json.loads(at(home, hub, "show", "org/small", "--json").stdout)["path"]) / "tokenizer.json").unlink()
    assert at(home, hub, "run", "hi", "-n", "2", "--no-log").returncode == 0, "it is passed over"


def test_at_a_terminal_what_was_fetched_is_measured_once(home, hub, monkeypatch):
    measured: list[str] = []
    monkeypatch.setattr("localspec.cli.pull.output_is_terminal", lambda: True)
    monkeypatch.setattr(meanwhile, "measure_now", lambda engine, _: measured.append(engine.choice.target.name))
    assert at(home, hub, "pull", "small", "--drafter", "none", "--yes").returncode == 0
    assert measured == [], "no terminal shows how far it is"
    monkeypatch.setattr(meanwhile, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))
    result = at(home, hub, "pull", "mine", "--drafter", "none", "--yes")
    assert result.returncode == 0 and measured == ["mine"]
    assert at(home, hub, "pull", "mine", "--drafter", "none", "--yes").returncode == 0
    assert measured == ["mine"], "nothing was fetched"
