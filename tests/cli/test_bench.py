"""`localspec bench` as a command: the report, the table, and arguments that it refuses before it loads a model."""

import json
import shutil
from pathlib import Path

import pytest
from each import each
from golden import wording
from pretended_terminal import read_at_a_terminal
from scripted_models import random_model, scripted_model

from localspec import Engine, Sampling
from localspec.cli import bench as module
from localspec.cli.main import main
from localspec.events import Done
from localspec.models.drafter_cards import PACKAGE

pytestmark = pytest.mark.slow

PIECES = [f"{word} ".encode() for word in ("one", "two", "three", "four")]
ROW = {
    "drafter": str, "name": str, "trained": list, "nodes": (int, str), "accept": str, "exactness": str, "prompts": int, "tokens": int,
    "tokens_per_second": float, "tokens_per_second_quartiles": list, "speedup": float, "speedup_quartiles": list,
    "acceptance_length": float, "acceptance_by_depth": list, "draft_cost": float, "verify_cost": float,
    "host_cost": float, "bandwidth_share": float, "peak_bytes": int, "M": float, "identical": bool,
    "identical_prompts": int, "off_reason": (str, type(None)), "categories": dict,
    "speedup_limit": float, "speedup_limit_quartiles": list, "reliable": bool,
}  # fmt: skip
REPORT = {
    "machine": dict, "model": str, "revision": str, "device": str, "engine": str, "dtype": str, "quantize": str,
    "bits_per_weight": (float, type(None)), "exactness": str,
    "prompts": int, "left_out": int, "repeat": int, "max_tokens": int, "temperature": float, "seed": int, "pool": str,
    "rows": list, "peers": list,
}  # fmt: skip


@pytest.fixture(scope="session")
def words(tmp_path_factory) -> Path:
    """Return a model that repeats itself without end, so that phrases of its reply are right."""
    return scripted_model(tmp_path_factory.mktemp("models") / "words", PIECES, again=0, context=2000).path


@pytest.fixture(scope="session")
def noise(tmp_path_factory) -> Path:
    return random_model(tmp_path_factory.mktemp("models") / "noise", context=2000)


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    """Run `localspec bench ARGUMENTS` in this process, so that torch is imported once: (code, output, errors)."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))

    def call(*arguments: object):
        capfd.readouterr()
        code = main(["bench", *map(str, arguments)])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def prompts(tmp_path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "Count again and again: one two three.", "category": "counting"},
        {"turns": ["Hello, hello!", "And?"], "category": "chat"},
        {"prompt": "Count again and again: two three four.", "category": "counting"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_json_is_one_line_and_the_table_goes_to_standard_error(bench, noise, prompts, tmp_path):
    code, out, errors = bench(
        "-m",
        noise,
        "--drafter",
        "none,phrases",
        "--nodes",
        "3,auto",
        "--prompts",
        prompts,
        "--max-tokens",
        12,
        "--json",
    )
    assert code == 0, errors
    assert out.endswith("\n") and out.count("\n") == 1
    report = json.loads(out)
    assert {name: isinstance(report[name], kind) for name, kind in REPORT.items()} == dict.fromkeys(report, True)
    assert report["machine"].keys() == {"versions", "cores", "memory", "bandwidth", "others"}
    assert report["machine"]["bandwidth"] > 1e8 and report["machine"]["memory"] > 2**28
    assert (report["temperature"], report["max_tokens"], report["prompts"], report["pool"]) == (0.0, 12, 3, "off")
    for row in report["rows"]:
        assert {name: isinstance(row[name], kind) for name, kind in ROW.items()} == dict.fromkeys(row, True)
        assert row["identical"] is True and row["identical_prompts"] == 3 and row["tokens"] == 36
        assert row["categories"].keys() == {"counting", "chat"}
        assert 0.9 < row["speedup"] / row["M"] < 1.5
    assert [(row["drafter"], row["nodes"]) for row in report["rows"]] == [
        ("none", 0),
        ("phrases", 3),
        ("phrases", "auto"),
    ]
    plain = report["rows"][0]
    assert plain["speedup"] == plain["M"] == plain["speedup_limit"] == plain["acceptance_length"] == 1.0
    assert plain["reliable"] is True and plain["acceptance_by_depth"] == []
    assert min(plain["draft_cost"], plain["host_cost"]) >= 0 and plain["verify_cost"] > 0
    assert wording("kind_of_text") in errors and max(map(len, errors.splitlines())) <= 100
    assert not (tmp_path / "home" / "data").exists(), "a bench leaves nothing behind"


def test_only_the_table(bench, words, prompts, tmp_path):
    asked = ["-m", words, "--nodes", 4, "--prompts", prompts, "--limit", 2, "--repeat", 2, "-n", 24]
    code, out, errors = bench(*asked, "--plot", tmp_path / "drawn.svg", "--details")
    assert code == 0 and errors == f"localspec: the chart is in {tmp_path / 'drawn.svg'}.\n"
    assert "phrases, 4 nodes" in (tmp_path / "drawn.svg").read_text("utf-8")
    assert wording("faster_than_plain_decoding") in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("none ", "phrases  "))]
    assert [row[:2] for row in rows] == [["none", "0"], ["phrases", "4"]]
    assert all(row[-1] == "2/2" for row in rows)
    assert "2 prompts × 2" in out and "counting" in out and "chat" in out
    assert float(rows[1][6]) > 1.0, "the reply repeats itself, and nothing of that was accepted"


@each("columns, width", [(60, 60), (80, 80), (250, 100)])
def test_the_table_is_as_wide_as_the_terminal_that_shows_it(monkeypatch, columns, width):
    assert [module._width(as_json) for as_json in (False, True)] == [100, 100], "in a pipe"
    with monkeypatch.context() as patch:
        read_at_a_terminal(patch, "stderr", columns)
        assert [module._width(as_json) for as_json in (False, True)] == [100, width], "where it goes with --json"


def test_no_reply_helps_a_later_one(bench, words, prompts, monkeypatch):
    honest, steps = Engine.chat, {}

    def chat(engine, messages, *rest):
        for event in honest(engine, messages, *rest):
            if isinstance(event, Done):
                steps.setdefault((engine.choice.drafter, messages[0]["content"]), []).append(event.statistics.steps)
            yield event

    monkeypatch.setattr(Engine, "chat", chat)
    code, _, errors = bench("-m", words, "--nodes", 4, "--prompts", prompts, "-n", 12, "--repeat", 2)
    assert code == 0, errors
    assert len(steps) == 6 and all(len({*taken}) == 1 < len(taken) for taken in steps.values())


def test_a_reply_that_differs_is_reported(bench, words, prompts, monkeypatch):
    honest, told = Engine.chat, []

    def chat(engine, messages, *rest):
        for event in honest(engine, messages, *rest):
            if isinstance(event, Done) and engine.choice.drafter == "phrases" and "Hello" in messages[0]["content"]:
                ids = list(event.statistics.token_ids)
                ids[7] += 1
                object.__setattr__(event.statistics, "token_ids", tuple(ids))
                told.append(event)
            yield event

    monkeypatch.setattr(Engine, "chat", chat)
    code, out, _ = bench("-m", words, "--nodes", 4, "--prompts", prompts, "-n", 12, "--json")
    assert code == 0 and told
    plain, phrases = json.loads(out)["rows"]
    assert plain["identical"] is True and phrases["identical"] is False and phrases["identical_prompts"] == 2


def test_sampled_replies_are_the_same_too_and_flags_reach_every_engine(bench, noise, prompts, monkeypatch):
    honest, met = Engine.chat, []

    def chat(engine, messages, sampling, limits):
        met.append((engine.choice.exact, engine.choice.context, engine.target.precision, sampling, limits.max_tokens))
        return honest(engine, messages, sampling, limits)

    monkeypatch.setattr(Engine, "chat", chat)
    flags = ["--temp", 0.9, "--seed", 5, "-n", 16, "--dtype", "fp32", "--exact", "--context", 300, "--json"]
    code, out, errors = bench("-m", noise, "--nodes", 4, "--prompts", prompts, *flags)
    assert code == 0, errors
    report = json.loads(out)
    assert (report["temperature"], report["seed"], report["exactness"]) == (0.9, 5, "bitwise")
    assert [row["identical"] for row in report["rows"]] == [True, True]
    assert set(met) == {(True, 300, "fp32", Sampling(0.9, seed=5), 16)}


def test_prompts_that_do_not_fit_are_left_out_and_counted(bench, noise, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("hello\n" + "long " * 400 + "\nbye\n")
    code, out, errors = bench("-m", noise, "--drafter", "none", "--prompts", file, "-n", 8, "--json")
    report = json.loads(out)
    assert code == 0 and (report["prompts"], report["left_out"]) == (2, 1) and "1 too long" in errors
    code, out, errors = bench("-m", noise, "--drafter", "none", "--prompts", file, "-n", 1999)
    assert code == 2 and out == "" and "1999 tokens" in errors and errors.count("\n") == 1


def test_without_a_file_the_built_in_prompts_are_asked(bench, noise):
    code, out, _ = bench("-m", noise, "--drafter", "none", "--limit", 4, "-n", 4, "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0 and len(row["categories"]) == 4


def test_two_trained_drafters_of_a_kind_are_compared(bench, prompts, tmp_path):
    copied = tmp_path / "my-heads" / "drafter"
    shutil.copytree(PACKAGE / "demo" / "drafters" / "medusa", copied)
    names = f"medusa,medusa+phrases,{copied},{copied.parent}+phrases"
    code, out, errors = bench("-m", "demo", "--drafter", names, "--prompts", prompts, "-n", 12, "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["name"] for row in rows] == ["none", "medusa", "medusa+phrases", "my-heads", "my-heads+phrases"]
    assert [row["drafter"] for row in rows[3:]] == ["medusa", "medusa+phrases"]
    assert rows[3]["trained"] == [str(copied)] != rows[1]["trained"] and rows[0]["trained"] == []
    assert "my-heads+phrases" in errors
