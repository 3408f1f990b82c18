import json
import os
from pathlib import Path

import pytest
from checkpoints import write_checkpoint, write_drafter
from command import called, sentence
from each import each
from golden import wording

from localspec.models import drafter_cards
from localspec.weights.checkpoint import revision

USUAL = ["none", "phrases", "lookahead", "layers"]
KEYS = {
    "name",
    "description",
    "installed",
    "path",
    "architecture",
    "parameters",
    "bytes",
    "context",
    "license",
    "drafters",
    "draft",
    "draft_form",
    "draft_origin",
    "idle",
    "M",
    "auto",
    "passed_over",
    "rule",
    "revision",
    "sampling",
    "shipped",
    "weights",
}


def test_json(tmp_path):
    model = write_checkpoint(tmp_path / "model")
    facts = json.loads(called(tmp_path, "show", "./model", "--json").stdout)
    assert set(facts) == KEYS
    assert facts == {
        **facts,
        "name": "./model",
        "installed": True,
        "path": str(model),
        "architecture": "LlamaForCausalLM",
        "parameters": 44,
        "bytes": (model / "model.safetensors").stat().st_size,
        "context": 512,
        "license": None,
        "drafters": ["none", "phrases", "lookahead", "layers"],
        "draft": None,
        "passed_over": None,
        "revision": revision(model),
        "sampling": "temperature 0.7, top-p 0.9 (localspec's default)",
    }


def test_the_drafters_of_a_model_that_is_not_here_are_those_that_it_can_have(tmp_path):
    """Qwen3.5 comes with a layer that drafts, and its recurrent layers read no trees and not without the others."""
    for name, drafters in (("qwen3.5-4b", ["none", "phrases", "mtp"]), ("smollm3-3b", USUAL)):
        assert json.loads(called(tmp_path, "show", name, "--json").stdout)["drafters"] == drafters


def test_lines(tmp_path):
    model = write_checkpoint(tmp_path / "model")
    shown = dict(line.split(maxsplit=1) for line in called(tmp_path, "show", str(model)).stdout.splitlines())
    assert shown["parameters"] == "44" and shown["license"] == "unknown"
    assert shown["drafters"] == "none, phrases, lookahead, layers" and "draft" not in shown


@pytest.mark.slow
def test_a_small_model_in_the_directory_drafts_or_is_passed_over_with_a_reason(tmp_path):
    model = write_checkpoint(tmp_path / "model")
    draft = write_checkpoint(model / "draft")
    shown = dict(line.split(maxsplit=1) for line in called(tmp_path, "show", str(model)).stdout.splitlines())
    assert (shown["draft"], shown["draft_origin"]) == (str(draft), wording("model_s_directory_draft"))
    assert shown["drafters"].endswith(f"draft_model:{draft}, ouroboros:{draft}") and "passed_over" not in shown
    register = tmp_path / "config" / "models.toml"
    register.parent.mkdir()
    register.write_text(f'[mine]\npath = "{model}"\n')
    assert json.loads(called(tmp_path, "list", "--json").stdout)[-1]["draft"] == f"draft{os.sep}"
    (draft / "model.safetensors").unlink()
    shown = json.loads(called(tmp_path, "show", str(model), "--json").stdout)
    assert (
        shown["draft"] is None and shown["draft_origin"] is None and wording("holds_no_weights") in shown["passed_over"]
    )
    assert json.loads(called(tmp_path, "list", "--json").stdout)[-1]["draft"] is None


def test_a_drafter_that_comes_with_localspec_has_its_figure_and_its_card(tmp_path, monkeypatch):
    facts = json.loads(called(tmp_path, "show", "qwen2.5-coder-0.5b", "--json").stdout)
    (shipped,) = facts["shipped"]
    assert "medusa" in facts["drafters"] and shipped.startswith("medusa, ")
    card = Path(shipped.split()[-1])
    length = json.loads((card.parent / "drafter.json").read_text())["acceptance_elsewhere"]["length"]
    assert f"{length:.2f} tokens/step with 16 nodes" in shipped and card.is_file()
    model = write_checkpoint(tmp_path / "model")
    monkeypatch.setattr(drafter_cards, "SHIPPED", tmp_path / "trained")
    write_drafter(tmp_path / "trained" / "mine", model)
    shown = dict(line.split(maxsplit=1) for line in called(tmp_path, "show", str(model)).stdout.splitlines())
    assert shown["shipped"].startswith("medusa, ") and "tokens/step" not in shown["shipped"], "it was not measured"


def test_the_demo(tmp_path):
    facts = json.loads(called(tmp_path, "show", "demo", "--json").stdout)
    assert facts["name"] == "demo" and facts["parameters"] > 1_000_000 and facts["license"] == "Apache-2.0"
    trained = ["eagle3", "medusa", "parallelspec", "s3d", "semi"]
    paired = ["draft_model:demo-draft", "ouroboros:demo-draft"]
    assert facts["drafters"] == ["none", "phrases", "lookahead", "layers", *trained, *paired]


@each("name", ["nowhere", "org/repo", "./nowhere", ""])
def test_what_is_not_here_is_3(tmp_path, name):
    result = called(tmp_path, "show", name, "--json")
    assert result.returncode == 3 and sentence(result)


def test_names_are_made_safe(tmp_path):
    write_checkpoint(tmp_path / "a\x1b[31m\nb", {"architectures": ["Evil\x1b[2J"]})
    result = called(tmp_path, "show", "a\x1b[31m\nb")
    assert result.returncode == 1 and "Evil␛[2J" in sentence(result) and "\x1b" not in result.stderr


def test_at_a_terminal_sizes_are_those_of_a_person(tmp_path, monkeypatch):
    piped = dict(line.split(maxsplit=1) for line in called(tmp_path, "show", "demo").stdout.splitlines())
    monkeypatch.setattr("localspec.cli.console.output_is_terminal", lambda: True)
    lines = called(tmp_path, "show", "demo").stdout.splitlines()
    seen = dict(line.split(maxsplit=1) for line in lines if line[0] != " ")
    assert seen["bytes"].endswith(f" MiB ({piped['bytes']})") and seen["parameters"].endswith(
        f" M ({piped['parameters']})"
    )
    assert seen["context"] == piped["context"]


def test_at_a_terminal_long_values_continue_below_themselves(tmp_path, monkeypatch):
    piped = called(tmp_path, "show", "demo").stdout
    monkeypatch.setattr("localspec.cli.console.output_is_terminal", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 20)))
    drafters = next(line for line in piped.splitlines() if line.startswith("drafters"))
    shown = called(tmp_path, "show", "demo").stdout
    assert len(drafters) > 60 and drafters not in shown
    assert " ".join(drafters.split()) in " ".join(shown.split())
    assert all(len(line) <= 60 for line in shown.splitlines() if not line.startswith("path"))


def test_what_auto_would_take_is_reported_with_m_and_the_rule_that_decided(tmp_path):
    facts = json.loads(called(tmp_path, "show", "demo", "--json").stdout)
    assert facts["rule"] == "speed" and facts["M"] > 0
    lines = dict(line.split(maxsplit=1) for line in called(tmp_path, "show", "demo").stdout.splitlines())
    assert lines["auto"] == facts["auto"] and f"M {facts['M']:.2f}" in facts["auto"] and "rule" not in lines
    by_m = json.loads(called(tmp_path, "show", "demo", "--json", LOCALSPEC_DRAFTER_RULE="memory").stdout)
    assert by_m["rule"] == "memory" and wording("drafter_rule_says_so") in by_m["auto"]


def test_of_a_model_that_is_not_here_it_is_reported_where_that_matters(tmp_path):
    lines = called(tmp_path, "show", "qwen3-0.6b").stdout.splitlines()
    assert "path          not here" in lines and "commit        not here" in lines


def test_of_a_model_that_is_not_here_it_says_what_auto_would_take(tmp_path):
    facts = json.loads(called(tmp_path, "show", "qwen3-0.6b", "--json").stdout)
    assert facts["rule"] in ("memory", "speed") and f"M {facts['M']:.2f}" in facts["auto"]


def test_an_empty_fact_is_none_and_not_unknown(tmp_path):
    lines = dict(line.split(maxsplit=1) for line in called(tmp_path, "show", "demo").stdout.splitlines())
    assert lines["forms"] == "none" and lines["source"] == wording("comes_with_localspec")
