"""`localspec run`: seeds, sampling and --exact give the same text with and without speculation, and the exactness is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.run.run_command import SHAPE, assert_consistent, assert_shape, decoded, refused
from golden import wording
from measured_at_once import at_once
from scripted_models import random_model

from localspec.cli import run as run_module
from localspec.config import Settings
from localspec.engine.engine import Engine
from localspec.models.registry import resolve
from localspec.paths import Paths
from localspec.store.store import Store

pytestmark = pytest.mark.slow


def test_seeds(run, noise):
    def said(*arguments: object) -> dict[str, Any]:
        reply = run("-m", noise, "hi", "--json", "--temp", "1", "-n", "40", *arguments).json
        assert_shape(reply, SHAPE)
        assert_consistent(reply)
        assert reply["text"].rstrip("\ufffd") == decoded(noise, reply["token_ids"]).rstrip(
            "\ufffd"
        )  # a limit may cut a character
        return reply

    fresh, other = said(), said()
    assert fresh["seed"] != other["seed"] and fresh["token_ids"] != other["token_ids"]
    again = said("--seed", fresh["seed"])
    assert again["seed"] == fresh["seed"] and again["text"] == fresh["text"]
    assert said("--seed", fresh["seed"], "--no-spec")["token_ids"] == fresh["token_ids"]
    assert said("--seed", 1)["token_ids"] != said("--seed", 2)["token_ids"]


def test_the_models_own_sampling(run, models):
    own = random_model(models / "own", generation={"do_sample": True, "temperature": 1.0, "top_k": 3})
    one, two = (run("-m", own, "hi", "--json", "-n", "30", "--seed", seed).json for seed in (1, 2))
    assert one["token_ids"] != two["token_ids"]
    one, two = (run("-m", own, "hi", "--json", "-n", "30", "--seed", seed, "--temp", "0").json for seed in (1, 2))
    assert one["token_ids"] == two["token_ids"]


@pytest.mark.parametrize("how", [["--temp", "0"], ["--seed", "3", "--temp", "1"]])
def test_exact_text_is_the_same_with_and_without_speculation_and_says_so(run, noise, how):
    arguments = ["-m", noise, "hi", "-n", "40", "--exact", "--json", *how]
    fixed = ("--draft-max", "8")  # also where it does not pay
    first, known, plain = (run(*arguments, *more).json for more in (fixed, fixed, ("--no-spec",)))
    assert first["token_ids"] == known["token_ids"] == plain["token_ids"]
    assert known["speculation"]["draft_n_accepted"] > first["speculation"]["draft_n_accepted"]
    assert {reply["exactness"] for reply in (first, known, plain)} == {"bitwise"}


@pytest.fixture
def inexact(home: Path, lived_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine whose rows depend on each other, which has not been measured yet."""
    from localspec.decoding.exactness import Exactness
    from localspec.engine import model_profile

    lived_in(home)
    found = Exactness(False, 65, largest=0.00123)
    monkeypatch.setattr(model_profile, "checking_exactness", at_once(lambda *_: found))


def test_what_no_self_test_has_found_is_not_said(run, home, hello, inexact):
    for word, label in (
        ("unchecked", wording("not_checked_yet_a_chat_checks")),
        ("numerical", wording("same_text_except_for_rounding")),
    ):
        result = run("-m", hello.path, "hi", "--stream-json", "--stats")
        start, *_, end = (json.loads(line) for line in result.out.splitlines())
        assert start["exactness"] == end["exactness"] == word
        assert f"int8 on cpu · {label} ·" in result.err
        with Store.open(Paths(home).database, pytest.fail) as store:
            for _ in Engine.open(Settings(), resolve(str(hello.path)), store=store).measure():
                pass


def test_exact_where_it_cannot_be_had_is_refused(run, hello, inexact, monkeypatch):
    refused(run("-m", hello.path, "hi", "--exact"), 2, "--exact", "int8", "1.2e-03")
    monkeypatch.setenv("LOCALSPEC_EXACT", "yes")
    refused(run("-m", hello.path, "hi"), 2, "--exact", str(hello.path))
    monkeypatch.setenv("LOCALSPEC_EXACT", "no")
    assert run("-m", hello.path, "hi").code == 0


def test_the_figures_name_the_precision(run, hello):
    assert wording("int8_cpu_same_text_without_drafts") in run("-m", hello.path, "hi", "--stats", "--exact").err
    assert "int8 on cpu" in run("-m", hello.path, "hi", "--stats", "--quantize", "int8").err


def test_only_exact_waits_for_a_measurement(run, first_start, hello, monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr(run_module.Progress, "show", lambda self, what: shown.append(what))
    for arguments, measured in (((), False), (("--exact",), True), (("--exact",), False)):
        assert run("-m", hello.path, "hi", "--drafter", "phrases", *arguments).code == 0
        assert any(wording("checking_drafts_leave_text") in what for what in shown) is measured, shown
        assert not any("timing" in what for what in shown)
        shown.clear()
