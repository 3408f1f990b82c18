"""`pull NAME --dry-run` of a registered model uses only the registry, without a network."""

import json
import re
from pathlib import Path

import pytest
from cli.hub_commands import at, common_cache, repository
from command import sentence
from each import each
from golden import wording
from hub_server import Hub, served
from machines import cpu, machine

from localspec.choosing.measure import NoMeasurements
from localspec.choosing.survey import recommend
from localspec.machine.machine import Device, Machine
from localspec.models.model import model_of
from localspec.models.registry import cards

SHAPE = (
    "layers = 2, width = 64, inner = 128, heads = 4, key_heads = 2, head_width = 16, vocabulary = 1000, context = 128"
)
PARAMETERS = 2 * (64 * 16 * 12 + 3 * 64 * 128) + 2 * 64 * 1000 + 5 * 64
ENTRIES = f"""
[mine]
repo = "org/name"
revision = "v1"
license = "Apache-2.0"
publisher = "Somebody"
gated = true
draft = "small"
shape = {{ {SHAPE} }}
[[mine.drafters]]
kind = "medusa"
repo = "org/heads"
license = "MIT"
publisher = "Another"
parameters = 1000
[[mine.drafters]]
kind = "draft_model"
[[mine.forms]]
repo = "org/name-GGUF"
gguf = "Q8_0"
publisher = "Somebody"
license = "Apache-2.0"
bytes = 123456789

[small]
repo = "org/small"
license = "Apache-2.0"

[lacking]
repo = "org/lacking"
[[lacking.drafters]]
kind = "s3d"

[here]
repo = "org/here"
shape = {{ {SHAPE} }}
"""


@pytest.fixture
def home(home: Path) -> Path:
    (home / "config").mkdir(mode=0o700)
    (home / "config" / "models.toml").write_text(ENTRIES)
    return home


NOBODY = Hub(endpoint="http://127.0.0.1:9")


def announced(home: Path, *arguments: str, **more: str) -> dict:
    result = at(home, NOBODY, "pull", *arguments, "--dry-run", "--json", **more)
    assert (result.returncode, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    return json.loads(result.stdout)


@pytest.mark.parametrize("offline", ["", "1"])
def test_a_registered_model_is_described_without_a_network(home, offline):
    said = announced(home, "mine", "--drafter", "medusa", HF_HUB_OFFLINE=offline)
    assert said["asked"] == "registry" and said["name"] == "mine" and said["fits"] is True
    nobody_says = {"commit": None, "files": [], "gguf": None}
    assert said["sources"] == [
        {"repo": "org/name", "revision": "v1", "bytes": 2 * PARAMETERS, "license": "Apache-2.0", "gated": True, **nobody_says},
        {"repo": "org/heads", "revision": "main", "bytes": 2000, "license": "MIT", "gated": False, **nobody_says},
    ]  # fmt: skip
    total = 2 * PARAMETERS + 2000
    assert (said["bytes"], said["fetch_bytes"], said["cached_bytes"]) == (total, total, 0)
    assert said["forms"] == [
        {"repo": "org/name-GGUF", "revision": "main", "gguf": "Q8_0", "publisher": "Somebody", "license": "Apache-2.0",
         "bytes": 123456789}
    ]  # fmt: skip
    assert not common_cache(home).exists() and not (home / "data").exists()


@pytest.mark.slow
def test_as_text_it_says_that_nobody_was_asked(home):
    result = at(home, NOBODY, "pull", "mine", "--dry-run", "--drafter", "draft_model")
    assert result.returncode == 0 and result.stderr == ""
    first, own, small, form, total, memory, drafter, asks = result.stdout.splitlines()
    assert first == wording("mine_from_registry_hub_asked")
    assert own.startswith(wording("org_name_v1_somebody_license"))
    assert small == "org/small, by unknown, license Apache-2.0, size unknown"
    assert form == "  also available: org/name-GGUF:Q8_0, by Somebody, license Apache-2.0, 117.7 MiB"
    assert total.startswith("size unknown to fetch; ") and memory.startswith("memory: ") and "as you asked" in drafter
    assert wording("localspec_pull_org_name_v1_dry") in asks
    assert "tokens/s" not in memory, "of another drafter than the one that was named"
    assert announced(home, "mine", "--drafter", "draft_model")["bytes"] is None


def test_a_drafter_that_nobody_publishes_is_named_with_what_makes_it(home):
    said = at(home, NOBODY, "pull", "lacking", "--dry-run").stdout
    assert wording("nobody_publishes_until_you_make_it", to_make="s3d", name="lacking") in said
    assert "hours here" not in said, "its entry gives no sizes"
    sized = at(home, NOBODY, "pull", "phi3-s3d", "--dry-run").stdout
    assert re.search(r"would take about \d+ hours here, estimated", sized)
    assert "s3d" not in at(home, NOBODY, "pull", "mine", "--dry-run").stdout


@each("name", ["gemma-4-e2b-it", "gemma-4-e4b-it", "qwen3.5-4b", "smollm3-3b"])
def test_memory_is_that_of_the_survey_also_where_layers_differ_or_have_tables(home, monkeypatch, name):
    """From the flat sizes in config.json, a Gemma 4 would have 1.9 of its 4.6 billion parameters."""
    here = machine(cpu(24))
    monkeypatch.setattr("localspec.pulling.announced.this_machine", lambda: here)
    monkeypatch.setattr("localspec.pulling.announced.free_disk_bytes", lambda: 10**12)
    plan = recommend(model_of(cards()[name]), here, NoMeasurements(), here=False).plan
    assert plan is not None
    said = announced(home, name)
    assert said["drafter"].startswith(f"{plan.candidate.name} in {plan.precision}: ")
    assert said["fits"] is True and said["memory"].startswith(f"{plan.bytes / 2**30:.1f} GiB in {plan.precision}")


def test_a_layer_of_the_models_own_is_not_published_apart_and_not_packed(home):
    said = announced(home, "qwen3.5-4b", "--drafter", "mtp")
    assert [one["repo"] for one in said["sources"]] == ["Qwen/Qwen3.5-4B"] and said["fits"] is not None
    refused = at(home, NOBODY, "pull", "qwen3.5-4b", "--dry-run", "--drafter", "mtp", "--packed-only")
    assert refused.returncode == 2 and wording("packed_only_keeps_no_layer") in sentence(refused)


@pytest.mark.slow
def test_what_is_not_registered_is_requested_and_offline_that_is_reported(home, tmp_path):
    with served(org__name=repository(tmp_path / "model", 900)) as hub:
        result = at(home, hub, "pull", "org/name", "--dry-run", "--json")
        assert json.loads(result.stdout)["asked"] == "hub" and hub.requests
        hub.requests.clear()
        refused = at(home, hub, "pull", "org/name", "--dry-run", HF_HUB_OFFLINE="1")
        assert refused.returncode == 3 and "HF_HUB_OFFLINE" in sentence(refused) and hub.requests == []
        refused = at(home, hub, "pull", "mine", HF_HUB_OFFLINE="1")
        assert refused.returncode == 3 and wording("told_localspec_pull_mine_dry_run") in sentence(refused)
        assert at(home, hub, "pull", "mien", "--dry-run").returncode == 3 and hub.requests == []


@pytest.mark.slow
def test_what_is_here_is_not_fetched_again(home, tmp_path):
    with served(org__here=repository(tmp_path / "model", 900)) as hub:
        assert at(home, hub, "pull", "here", "--yes", "--force").returncode == 0
    said = announced(home, "here")
    assert said["cached_bytes"] == said["bytes"] == 2 * PARAMETERS and said["fetch_bytes"] == 0
    assert "  here\n" in at(home, NOBODY, "pull", "here", "--dry-run").stdout
    assert announced(home, "demo")["sources"] == []


@pytest.mark.slow
def test_mistakes_and_what_does_not_fit_are_the_same_as_of_a_pull(home, monkeypatch):
    refused = at(home, NOBODY, "pull", "mine", "--drafter", "medus", "--dry-run")
    assert refused.returncode == 2 and wording("did_you_mean_medusa") in sentence(refused)
    small = Machine((Device("cpu", "a CPU", 10**9, 600 * 10**6 + 1000, ("fp32",)),), 1)
    monkeypatch.setattr("localspec.pulling.announced.this_machine", lambda: small)
    said = announced(home, "mine", "--drafter", "none")
    assert said["fits"] is False and wording("does_not_fit") in said["memory"]


@pytest.mark.slow
def test_the_text_says_how_to_chat_with_the_fetched_model(home, tmp_path, monkeypatch):
    with served(org__here=repository(tmp_path / "model", 900)) as hub:
        assert wording("chat_with_it") not in at(home, hub, "pull", "here", "--yes", "--force").stdout, (
            "scripts read paths"
        )
        monkeypatch.setattr("localspec.cli.pull.output_is_terminal", lambda: True)
        for name in ("here", "demo"):
            result = at(home, hub, "pull", name, "--yes", "--force")
            assert result.stdout.splitlines()[-1] == wording("chat_localspec_chat_m", name=name)
        assert wording("chat_with_it") not in at(home, hub, "pull", "here", "--dry-run").stdout
