"""The script that made the demo model: its mixture, its resuming, and a whole run in seconds."""

import importlib.util
import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import Phi3ForCausalLM


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


@pytest.fixture
def small(script, tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A data and a work directory, and the script in a size for seconds."""
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
    # One step of the real size takes a minute where a processor has no bf16.
    for name, smaller in {"BATCH": 2048, "DRAFT_BATCH": 1024, "MICRO": 1024, "VOCABULARY": 512}.items():
        monkeypatch.setattr(script, name, smaller)
    config = script.demo_config()
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 128, 96, 2
    monkeypatch.setattr(script, "demo_config", lambda: config)
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)  # pytest keeps its own handlers
    return data, work


def run(script: ModuleType, monkeypatch, data: Path, work: Path, *more: str) -> dict:
    words = ["train_demo", "--data", str(data), "--work", str(work), "--hours", "0.0006", "--device", "cpu", *more]
    monkeypatch.setattr(sys, "argv", words)
    script.main()
    told = json.loads((work / "training.json").read_text())
    assert set(told["tokens_seen"]) == {"language", "chat"}
    return told


@pytest.mark.slow
def test_a_run_of_seconds_goes_through_both_stages_and_loads(script, small, monkeypatch):
    data, work = small
    run(script, monkeypatch, data, work)
    from localspec.nn.target import Target

    target = Target.load(work / "model")
    assert target.encode([{"role": "user", "content": "the cat"}])[-1] == target.tokenizer.token_to_id("<|assistant|>")
    assert target.tokenizer.token_to_id("<|end|>") in target.stop_tokens
    run(script, monkeypatch, data, work)  # a finished run is finished: stages are skipped, the export is made again


@pytest.mark.slow
def test_a_draft_model_of_seconds_loads_beside_the_model_it_was_trained_towards(script, small, monkeypatch):
    data, work = small
    torch.manual_seed(0)
    teacher = Phi3ForCausalLM(script.demo_config())
    script.export(teacher, script.train_tokenizer(data, work / "tokenizer"), work / "target")
    told = run(script, monkeypatch, data, work, "--towards", str(work / "target"), "--float32")
    assert told["held_out_tokens"] > 0
    assert 0 <= told["agreement"] <= 1 and 0 < told["overlap"] <= 1
    from localspec.nn.target import Target

    target, draft = Target.load(work / "target"), Target.load(work / "model")
    assert draft.config.num_hidden_layers == 2 and draft.config.hidden_size == 128
    assert draft.tokenizer.get_vocab() == target.tokenizer.get_vocab()
    chat = [{"role": "user", "content": "the cat"}]
    assert draft.encode(chat) == target.encode(chat)
    assert draft.stop_tokens == target.stop_tokens
    run(script, monkeypatch, data, work, "--towards", str(work / "target"), "--float32")  # nothing is left to train


@pytest.mark.slow
def test_a_model_is_no_distance_from_itself(script, monkeypatch):
    monkeypatch.setattr(script, "VOCABULARY", 512)
    torch.manual_seed(0)
    teacher = Phi3ForCausalLM(script.demo_config()).eval()
    corpus = corpus_of(script, ["identity"] * 20)
    corpus.aside[:10] = True
    told = script.agreement(teacher, teacher, corpus)
    assert told == {"held_out_tokens": 250, "agreement": 1.0, "overlap": pytest.approx(1.0, abs=1e-4)}
    ids, labels = torch.arange(40)[None], torch.arange(1, 41)[None]
    assert script.loss_of(teacher, teacher.model, ids, labels, teacher).item() == pytest.approx(0, abs=1e-4)
    draft = script.draft_of(teacher)
    assert script.loss_of(draft, draft.model, ids, labels, teacher).item() > 0.01
    assert script.agreement(draft, teacher, corpus)["overlap"] < 1


def test_a_draft_begins_with_what_matters_most_of_the_embedding(script):
    teacher = Phi3ForCausalLM(script.demo_config())
    table = teacher.model.embed_tokens.weight
    with torch.no_grad():
        table.copy_(torch.randn(script.VOCABULARY, 128) @ torch.randn(128, 256))  # all of it in 128 directions
    ours = script.draft_of(teacher).model.embed_tokens.weight
    some = torch.arange(0, script.VOCABULARY, 100)
    assert torch.allclose(ours[some] @ ours[some].T, table[some] @ table[some].T, rtol=1e-3, atol=0.5)


def test_a_draft_learns_faster_and_its_rate_ends_at_nothing(script):
    language, chat = script.DRAFT_STAGES
    assert script.rate(language, 0.0) == 0
    assert script.rate(language, 1.0) == script.rate(chat, 0.0) == script.rate(chat, chat.hold) == 2
    assert script.rate(chat, 1.0) == 0
    assert sum(stage.share for stage in script.DRAFT_STAGES) == pytest.approx(1)
