"""The script that made the demo model: its mixture, its resuming, and a whole run in seconds."""

import importlib.util
import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "train_demo.py"
    spec = importlib.util.spec_from_file_location("train_demo", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_demo"] = module
    spec.loader.exec_module(module)
    return module


def corpus_of(script: ModuleType, sources: list[str], tokens: int = 50):
    """Every example is `tokens` times its own number, the second half of it learnt."""
    count = len(sources)
    ids = np.repeat(np.arange(count, dtype=np.uint16), tokens)
    learn = np.tile(np.arange(tokens) >= tokens // 2, count)
    return script.Corpus(ids, learn, np.arange(count + 1) * tokens, sources, np.zeros(count, bool))


def test_a_weight_is_how_often_an_example_is_seen_in_one_pass(script):
    corpus = corpus_of(
        script, ["tldr"] * 400 + ["standardebooks"] * 100 + ["openstax-biology"] * 400 + ["nowhere"] * 50
    )
    for number in range(2):
        order = corpus.order(script.STAGES[0], number)
        seen = np.bincount(order, minlength=950)
        assert set(seen[:400]) == {0, 1}  # weight 0.5
        assert abs(seen[:400].sum() - 200) < 50
        assert set(seen[400:500]) == {2}
        assert set(seen[500:900]) == {1, 2}
        assert not seen[900:].any()
    both = sum(np.bincount(corpus.order(script.STAGES[0], n), minlength=950) for n in range(2))
    assert set(both[:400]) == {1}, "two passes at weight 0.5 show every example once"
    assert set(both[500:900]) == {3}


def test_held_out_examples_are_never_seen(script):
    corpus = corpus_of(script, ["identity"] * 100)
    corpus.aside[::3] = True
    for stage in script.STAGES:
        assert not corpus.aside[corpus.order(stage, 0)].any()


def test_a_resumed_run_sees_the_rows_that_are_left(script):
    corpus = corpus_of(script, ["identity"] * 300)
    stage = script.STAGES[1]
    rows = list(corpus.rows(stage, 0))
    assert len(rows) > 100
    for (ids, labels, _), (again, labels_again, _) in zip(rows[37:], corpus.rows(stage, 37), strict=True):
        assert (ids == again).all()
        assert (labels == labels_again).all()


def test_only_what_an_assistant_says_is_learnt_in_the_chat_stage(script):
    corpus = corpus_of(script, ["identity"] * 300, tokens=100)
    ids, labels, _ = next(corpus.rows(script.STAGES[1], 0))
    # A label is the token behind its place; the first half of every example is a user's.
    learnt = labels != -100
    assert 0.4 < learnt.mean() < 0.6
    assert (labels[:-1][learnt[:-1]] == ids[1:][learnt[:-1]]).all()
    _, every, _ = next(corpus.rows(script.STAGES[0], 0))
    assert (every != -100).all()


def test_the_learning_rate_is_one_curve_over_both_stages_and_ends_at_nothing(script):
    first, second = script.STAGES
    assert script.rate(first, 0.0) == 0
    assert script.rate(first, 0.3) == 1
    assert script.rate(first, 1.0) == pytest.approx(script.rate(second, 0.0))
    assert script.rate(second, 1.0) == pytest.approx(0)


@pytest.mark.slow
def test_a_run_of_seconds_goes_through_both_stages_and_loads(script, tmp_path, monkeypatch):
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "bird", "under", "that", "old", "tree"]
    chance = np.random.default_rng(0)

    def say(count: int) -> str:
        return " ".join(chance.choice(words, count))

    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    with lzma.open(data / "chat.jsonl.xz", "wt") as file:
        for _ in range(600):
            turns = [{"role": "user", "content": say(5)}, {"role": "assistant", "content": say(20)}]
            file.write(json.dumps({"source": "identity", "messages": turns}) + "\n")
    with lzma.open(data / "text.jsonl.xz", "wt") as file:
        for _ in range(300):
            file.write(json.dumps({"source": "pratham-books", "text": say(200)}) + "\n")
    monkeypatch.setattr(
        sys, "argv", ["train_demo", "--data", str(data), "--work", str(work), "--hours", "0.0006", "--device", "cpu"]
    )
    # One step of the real size takes a minute where a processor has no bf16.
    for name, smaller in {"BATCH": 2048, "MICRO": 1024, "VOCABULARY": 512}.items():
        monkeypatch.setattr(script, name, smaller)
    config = script.demo_config()
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 64, 96, 2
    monkeypatch.setattr(script, "demo_config", lambda: config)
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)  # pytest keeps its own handlers
    script.main()
    told = json.loads((work / "training.json").read_text())
    assert set(told["tokens_seen"]) == {"language", "chat"}
    from localspec.engine.target import Target

    target = Target.load(work / "model")
    assert target.encode([{"role": "user", "content": "the cat"}])[-1] == target.tokenizer.convert_tokens_to_ids(
        "<|assistant|>"
    )
    assert target.tokenizer.convert_tokens_to_ids("<|end|>") in target.stop_tokens
    script.main()  # a finished run is finished: both stages are skipped, the export is made again
