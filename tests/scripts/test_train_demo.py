"""The script that made the demo model: its rows, its rates, its resuming, and whole runs in seconds."""

import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import demo_model
import demo_progress
import demo_tokens
import numpy as np
import pytest
import torch
import train_demo
from demo_data import mixture, passes
from demo_progress import agreement, held_out_losses
from demo_tokens import Corpus, train_tokenizer
from golden import matching
from safetensors.torch import load_file
from transformers import Phi3ForCausalLM, PreTrainedTokenizerFast

SCRIPT = Path(train_demo.__file__)


def corpus_of(sources: list[str], tokens: int = 50) -> Corpus:
    """Every example is `tokens` times its own number, the second half of it spoken by an assistant."""
    count = len(sources)
    ids = np.repeat(np.arange(count, dtype=np.uint16), tokens)
    spoken = np.tile(np.arange(tokens) >= tokens // 2, count)
    return Corpus(ids, spoken, np.arange(count + 1) * tokens, np.array(sources))


def test_rows_follow_each_other_and_labels_are_the_next_tokens():
    corpus = corpus_of(["made-sums"] * 300)
    rows = list(corpus.rows(512))
    assert len(rows) == 300 * 50 // 512
    assert (np.concatenate([ids for ids, _, _ in rows]) == corpus.ids[: 512 * len(rows)]).all()
    for ids, labels, spoken in rows:
        assert (labels[:-1] == ids[1:]).all()
        assert 0.4 < spoken.mean() < 0.6


def test_spoken_marks_the_tokens_that_are_predicted():
    corpus = corpus_of(["made-sums"] * 30)
    corpus.ids = np.arange(1500, dtype=np.uint16)
    _, labels, spoken = next(corpus.rows(100))
    assert (corpus.spoken[labels] == spoken).all()


def test_a_resumed_run_sees_the_rows_that_are_left():
    corpus = corpus_of(["identity"] * 300)
    rows = list(corpus.rows(128))
    again = list(corpus.rows(128, skip=37))
    assert len(again) == len(rows) - 37 > 50
    for before, after in zip(rows[37:], again, strict=True):
        assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_a_corpus_is_kept_whole_or_not_at_all(tmp_path, monkeypatch):
    corpus, file = corpus_of(["a", "b"]), tmp_path / "pass-0.npz"
    corpus.save(file)
    loaded = Corpus.load(file)
    assert (loaded.ids == corpus.ids).all() and (loaded.sources == corpus.sources).all()
    assert os.listdir(tmp_path) == ["pass-0.npz"]

    def killed(file: Path, **_: object) -> None:
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", killed)
    with pytest.raises(KeyboardInterrupt):
        corpus_of(["c"] * 9).save(file)
    assert len(Corpus.load(file).sources) == 2


def test_rates_are_level_for_as_long_as_it_takes_and_end_at_nothing():
    long, last, draft = (train_demo.STAGES[name] for name in ("long", "last", "draft"))
    assert train_demo.rate(long, 0, 0.0) == pytest.approx(1 / 40)
    assert train_demo.rate(long, 39, 0.0) == train_demo.rate(long, 10**6, 0.99) == 1
    assert train_demo.rate(last, 0, 0.0) == 1  # goes on from the long stage
    assert train_demo.rate(last, 5, 0.5) == pytest.approx(0.5)
    assert train_demo.rate(last, 5, 1.0) == train_demo.rate(draft, 100, 1.0) == 0
    assert train_demo.rate(draft, 100, 0.0) == train_demo.rate(draft, 100, draft.hold) == 2


def test_the_shapes_suit_the_kernels_and_the_wheel():
    for shape, most in (("small", 8_000_000), ("large", 20_000_000)):
        config = demo_model.demo_config(shape)
        assert config.num_hidden_layers >= 8
        assert config.hidden_size % 128 == config.intermediate_size % 128 == 0
        assert config.hidden_size // config.num_attention_heads in (32, 64)
        assert config.num_attention_heads % config.num_key_value_heads == 0
        with torch.device("meta"):
            assert sum(p.numel() for p in Phi3ForCausalLM(config).parameters()) < most


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A data and a work directory, and the scripts in a size for seconds."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "bird", "under", "that", "old", "tree"]
    chance = np.random.default_rng(0)

    def say(count: int) -> str:
        return " ".join(chance.choice(words, count)) + "."

    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    with lzma.open(data / "chat.jsonl.xz", "wt") as file:
        for _ in range(300):
            turns = [{"role": "user", "content": say(5)}, {"role": "assistant", "content": say(20)}]
            file.write(json.dumps({"source": "identity", "messages": turns}) + "\n")
    with lzma.open(data / "text.jsonl.xz", "wt") as file:
        for _ in range(300):
            file.write(json.dumps({"source": "pratham-books", "text": say(30)}) + "\n")
    for name, share in mixture.MADE.items():
        monkeypatch.setitem(mixture.MADE, name, type(share)(60, 60, share.why))
    monkeypatch.setattr(passes, "SET_ASIDE", 2)
    tiny = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    monkeypatch.setitem(demo_model.SHAPES, "small", tiny)
    for module in (demo_tokens, demo_model):
        monkeypatch.setattr(module, "VOCABULARY", 600)
    monkeypatch.setattr(train_demo, "MEASURED", 3)
    monkeypatch.setattr(train_demo, "SPOKEN", 6)
    monkeypatch.setattr(demo_progress, "PROMPTS", demo_progress.PROMPTS[:2])
    monkeypatch.setattr(demo_progress, "SAID", 5)
    monkeypatch.setattr(train_demo.signal, "signal", lambda *_: None)  # pytest keeps its own handlers
    return data, work


def run(monkeypatch, data: Path, work: Path, stage: str, steps: int, *more: str) -> None:
    words = ["train_demo", stage, "--data", str(data), "--work", str(work), "--tokens", str(2048 * steps)]
    words += ["--device", "cpu", "--batch", "2048", "--micro", "1024", "--float32", *more]
    monkeypatch.setattr(sys, "argv", words)
    train_demo.main()


def progress(work: Path, stage: str) -> dict:
    return torch.load(work / stage / "checkpoint.pt", weights_only=True)["progress"]


@pytest.mark.slow
@pytest.mark.long
def test_the_long_stage_goes_on_the_last_one_leaves_it_and_the_draft_follows(small, monkeypatch):
    data, work = small
    run(monkeypatch, data, work, "long", 4)
    first = progress(work, "long")
    assert first["steps"] == 4 and first["tokens"] == 2048 * 4
    run(monkeypatch, data, work, "long", 7)
    long = progress(work, "long")
    assert long["steps"] == 7 and long["number"] == 0 and long["rows"] > first["rows"]
    told = [json.loads(line) for line in (work / "long" / "held_out.jsonl").read_text().splitlines()]
    assert told and {"made-sums", "identity"} <= set(told[-1]["sources"])

    # What goes before: the very weights, and nothing of the long stage is changed.
    kept = (work / "long" / "checkpoint.pt").read_bytes()
    run(monkeypatch, data, work, "last", 3)
    assert (work / "long" / "checkpoint.pt").read_bytes() == kept
    assert progress(work, "last")["steps"] == 3
    from localspec.nn.target import Target

    target = Target.load(work / "model")
    trained = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    chat = [{"role": "user", "content": "the cat"}]
    given = trained.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert target.encode(chat) == given
    assert trained.eos_token_id in target.stop_tokens
    record = json.loads((work / "model.json").read_text())
    assert record["long"] == long and record["last"]["steps"] == 3

    run(monkeypatch, data, work, "draft", 3, "--towards", str(work / "model"))
    told = json.loads((work / "draft-model.json").read_text())
    assert told["held_out_tokens"] > 0
    assert 0 <= told["agreement"] <= 1 and 0 < told["overlap"] <= 1
    draft = Target.load(work / "draft-model")
    assert draft.config.num_hidden_layers == 2 and draft.config.hidden_size == 128
    assert draft.encode(chat) == given
    assert draft.stop_tokens == target.stop_tokens


@pytest.mark.slow
@pytest.mark.long
def test_a_stage_that_is_done_again_sees_other_passes_and_ends_with_the_mean(small, monkeypatch, tmp_path):
    data, work = small
    run(monkeypatch, data, work, "long", 1)
    run(monkeypatch, data, work, "last", 1)
    begin, again = work / "model", tmp_path / "again"
    run(monkeypatch, data, again, "last", 2, "--begin", str(begin), "--mean", "0.75", "--first-pass", "5")
    assert progress(again, "last")["number"] == 5 and not (again / "last" / "pass-0.npz").exists()
    before, after = load_file(begin / "model.safetensors"), load_file(again / "model" / "model.safetensors")
    ended = torch.load(again / "last" / "checkpoint.pt", weights_only=True)["model"]
    for name, weight in after.items():
        mean = 0.25 * before[name].float() + 0.75 * ended[name]
        assert torch.equal(weight, mean.to(weight.dtype)) and not torch.equal(weight, before[name])
    assert json.loads((again / "model.json").read_text())["mean"] == 0.75
    with pytest.raises(SystemExit):
        run(monkeypatch, data, again, "last", 2, "--mean", "0.5")


@pytest.mark.slow
@pytest.mark.long
def test_a_pass_whose_file_is_gone_is_over(small, monkeypatch):
    data, work = small
    run(monkeypatch, data, work, "long", 2)
    (work / "long" / "pass-0.npz").unlink()
    run(monkeypatch, data, work, "long", 3, "--ahead", "2")
    assert (work / "long" / "pass-2.npz").exists()
    assert progress(work, "long")["number"] == 1
    assert (work / "long" / "pass-1.npz").exists()


@pytest.mark.slow
def test_the_last_stage_needs_the_long_one_and_a_length(small, monkeypatch, tmp_path):
    data, work = small
    train_tokenizer(["the cat"], work / "tokenizer")
    with pytest.raises(SystemExit, match="let `train_demo.py long` run first"):
        run(monkeypatch, data, work, "last", 4)
    monkeypatch.setattr(sys, "argv", ["train_demo", "last", "--data", str(data), "--work", str(work)])
    with pytest.raises(SystemExit, match="needs --tokens"):
        train_demo.main()


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_is_killed_goes_on_and_a_second_one_is_refused(small, monkeypatch):
    """In processes of their own, at the true size but for the batch."""
    data, work = small
    (work / "long").mkdir(parents=True)
    demo = passes.ROOT / "localspec" / "demo"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(demo)
    paragraphs = (passes.ROOT / "docs" / "design.md").read_text("utf-8").split("\n\n")
    examples = [{"source": "docs", "text": paragraph} for paragraph in paragraphs]
    Corpus.encode(5 * examples, tokenizer).save(work / "long" / "pass-0.npz")  # some 90 steps
    words = ["long", "--data", str(data), "--work", str(work), "--device", "cpu", "--begin", str(demo)]
    words += ["--batch", "512", "--micro", "512", "--saved", "0", "--float32"]
    command = [sys.executable, str(SCRIPT), *words]
    checkpoint = work / "long" / "checkpoint.pt"

    def until_saved(process: subprocess.Popen, after: float) -> None:
        while not checkpoint.exists() or checkpoint.stat().st_mtime <= after:
            assert process.poll() is None
            time.sleep(0.1)

    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until_saved(first, 0)
    first.send_signal(signal.SIGSTOP)  # it is there, and takes no processor time from the second
    monkeypatch.setattr(sys, "argv", ["train_demo", *words])
    with pytest.raises(
        SystemExit, match=matching("running_already")
    ):  # the second is this process, which has imported torch
        train_demo.main()
    first.send_signal(signal.SIGKILL)
    first.wait()
    before, at = progress(work, "long"), checkpoint.stat().st_mtime
    third = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    until_saved(third, at)
    third.terminate()
    assert f"steps={before['steps']}" in third.communicate()[0]
    after = progress(work, "long")
    assert third.returncode == 1 and after["steps"] > before["steps"] and after["rows"] > before["rows"]


# -- the draft model --------------------------------------------------------------------------------------------------


def teacher_of(monkeypatch) -> Phi3ForCausalLM:
    monkeypatch.setattr(demo_model, "VOCABULARY", 512)
    torch.manual_seed(0)
    return Phi3ForCausalLM(demo_model.demo_config()).eval()


@pytest.mark.slow
def test_a_model_is_no_distance_from_itself(monkeypatch):
    teacher = teacher_of(monkeypatch)
    aside = corpus_of(["identity"] * 10)
    assert agreement(teacher, teacher, aside) == {
        "held_out_tokens": 250, "agreement": 1.0, "overlap": pytest.approx(1.0, abs=1e-4)
    }  # fmt: skip
    draft = demo_model.draft_of(teacher)
    assert agreement(draft, teacher, aside)["overlap"] < 1
    (loss,) = held_out_losses(teacher, aside)
    assert (loss.source, loss.kind, loss.examples, loss.tokens) == ("identity", "chat", 10, 250)
    assert loss.mean == pytest.approx(np.log(512), abs=0.5)


@pytest.mark.slow
def test_a_draft_begins_with_what_matters_most_of_the_embedding(monkeypatch):
    teacher = teacher_of(monkeypatch)
    table = teacher.model.embed_tokens.weight
    with torch.no_grad():
        table.copy_(torch.randn(512, 128) @ torch.randn(128, 256))  # all of it in 128 directions
    ours = demo_model.draft_of(teacher).model.embed_tokens.weight
    some = torch.arange(0, 512, 10)
    assert torch.allclose(ours[some] @ ours[some].T, table[some] @ table[some].T, rtol=1e-3, atol=0.5)
