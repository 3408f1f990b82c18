"""`localspec distill` as a command: the model writes the replies, and a run that ended can be continued."""

import json
import os
import re
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from golden import wording
from safetensors.torch import load_file, save_file
from tiny_models import END, stock_reply
from torture.cage import Signal
from transformers import AutoModelForCausalLM

from localspec.choosing.choose import choose
from localspec.cli.main import main
from localspec.config import Settings
from localspec.models.registry import resolve
from localspec.training import answering
from localspec.training.distill import append
from localspec.training.examples import read_examples

pytestmark = pytest.mark.slow

MODEL = "phi3-grouped-window-partial-rotary"
PROMPTS = ["the cat", "one two three four five six", "and the dog sat on the log", "über allen", "sat", "log and cat"]


@pytest.fixture(scope="module")
def model(tiny):
    return tiny(MODEL)


@pytest.fixture
def prompts(tmp_path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": f"p{n}", "prompt": text}) + "\n" for n, text in enumerate(PROMPTS)))
    return file


@pytest.fixture
def distill(tmp_path, monkeypatch, capfd, model, prompts):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))

    def call(*arguments: object, file: Path = prompts, out: str = "out.jsonl"):
        capfd.readouterr()
        words = ["distill", "-m", str(model.path), "--prompts", str(file), "-o", str(tmp_path / out), "-n", "20"]
        code = main([*words, *map(str, arguments)])
        return code, *capfd.readouterr()

    return call


def lines(file: Path) -> dict[str, dict]:
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert len({line["id"] for line in found}) == len(found)
    return {line["id"]: line for line in found}


def test_greedy_replies_are_those_of_a_plain_loop_over_the_stock_model(distill, tmp_path, model):
    """Prompts are batched and padded on the left, so a wrong mask or wrong positions would show."""
    code, text, errors = distill("--batch", 4)
    assert code == 0 and "6 replies" in text and re.search(r"6 replies take about \d+ (s|min) at most", errors)
    agree(lines(tmp_path / "out.jsonl"), model)
    assert len(read_examples([tmp_path / "out.jsonl"])) == 6, "what it writes is what train reads"


def agree(found: dict[str, dict], model) -> None:
    """Assert that each reply is that of a plain loop over the stock model."""
    assert len(found) == 6
    for number, prompt in enumerate(PROMPTS):
        asked = [{"role": "user", "content": prompt}]
        reply = stock_reply(model.stock, model.target.encode(asked), 20, (END,))
        line = found[f"p{number}"]
        assert line["messages"] == [*asked, {"role": "assistant", "content": model.target.decode(reply)}]
        assert line["finish_reason"] == ("length" if len(reply) == 20 else "stop")


def test_our_engine_answers_on_a_cpu_and_says_the_same(distill, tmp_path, model):
    code, text, errors = distill("--dtype", "fp32")
    assert code == 0 and "6 replies" in text and re.search(r"6 replies take about \d+ (s|min) at most", errors)
    agree(lines(tmp_path / "out.jsonl"), model)


def test_packed_weights_answer_one_by_one(distill, tmp_path):
    assert distill("--quantize", "int4", "--limit", 2)[0] == 0
    found = lines(tmp_path / "out.jsonl")
    assert len(found) == 2 and distill("--quantize", "int8")[0] == 2, "other weights, other replies"
    code, text, errors = distill("--quantize", "int8", "--batch", 3, out="other")
    assert (code, text) == (2, "") and wording("batch_3_effect_int8_cpu") in errors


@pytest.mark.parametrize("flags", [[], ["--batch", 2]])
def test_every_turn_is_answered_in_what_was_said_before(distill, tmp_path, model, flags):
    file = tmp_path / "turns.jsonl"
    turns = ["the cat", "and the dog?", "three"]
    file.write_text(json.dumps({"id": "a", "turns": turns}) + "\n" + json.dumps({"id": "b", "turns": ["sat"]}) + "\n")
    code, _, errors = distill("--dtype", "fp32", *flags, file=file)
    assert code == 0, errors
    found, said = lines(tmp_path / "out.jsonl"), []
    for turn in turns:
        said.append({"role": "user", "content": turn})
        reply = stock_reply(model.stock, model.target.encode(said), 20, (END,))
        said.append({"role": "assistant", "content": model.target.decode(reply)})
    assert found["a"]["messages"] == said and len(found["b"]["messages"]) == 2
    file.write_text(json.dumps({"id": "a", "turns": turns[:2]}))
    assert distill("--dtype", "fp32", *flags, file=file)[0] == 2, "other turns are another question"


def test_a_conversation_ends_where_the_context_does(distill, tmp_path, model):
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"turns": ["the cat", "word " * 60, "word " * 60]}))
    assert distill(file=file)[0] == 0
    (line,) = lines(tmp_path / "out.jsonl").values()
    assert [message["role"] for message in line["messages"]] == ["user", "assistant"] * 2


@pytest.mark.parametrize("quantize", ["nf4", "int8"])
def test_transformers_uses_the_same_packed_weights(quantize):
    """bitsandbytes computes on a CPU as on CUDA."""
    choice = choose(resolve("demo"), Settings(drafter="none", quantize="none"))
    packed = answering.bitsandbytes_config(replace(choice, quantize=quantize, dtype="fp32"))
    logits = []
    for how in ({"quantization_config": packed}, {}):
        stock = AutoModelForCausalLM.from_pretrained(choice.target.path, dtype=torch.float32, **how)
        with torch.inference_mode():
            logits.append(stock(torch.tensor([[2, 40, 41, 42, 43]])).logits[0, -1])
    difference = float((logits[0] - logits[1]).norm() / logits[1].norm())
    assert 0 < difference < {"nf4": 0.5, "int8": 0.1}[quantize]


def test_a_seed_gives_the_same_replies_also_after_a_stop(distill, tmp_path):
    flags = ["--temp", 0.9, "--seed", 3, "--batch", 2]
    assert distill(*flags, out="whole")[0] == 0
    whole = (tmp_path / "whole").read_bytes()
    for cut in (len(whole) // 3, len(whole) // 2, len(whole) - 3):  # as a kill would leave it
        (tmp_path / "cut").write_bytes(whole[:cut])
        code, _, errors = distill(*flags, out="cut")
        assert code == 0 and wording("are_there_already") in errors
        assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert distill("--temp", 0.9, "--seed", 4, "--batch", 2, out="other")[0] == 0
    assert lines(tmp_path / "other") != lines(tmp_path / "whole")


def test_what_is_there_is_not_asked_again(distill, tmp_path, monkeypatch):
    assert distill("--batch", 2, "--limit", 2)[0] == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    asked = []
    honest = answering.Batched.answer
    monkeypatch.setattr(answering.Batched, "answer", lambda self, *a: asked.append(a) or honest(self, *a))
    code, _, errors = distill("--batch", 2)
    assert code == 0 and (tmp_path / "out.jsonl").read_bytes().startswith(before)
    assert len(lines(tmp_path / "out.jsonl")) == 6
    asked.clear()
    code, text, errors = distill("--batch", 2)
    assert code == 0 and not asked and wording("n6_6_replies_there_already") in errors
    code, text, errors = distill("--batch", 2, "--temp", 0.5)
    assert (code, text) == (2, "") and wording("asked_for_with_another") in errors


def test_conversations_and_prompts_that_are_too_long(distill, tmp_path):
    file = tmp_path / "chat.jsonl"
    chat = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "sat"},
        {"role": "user", "content": "on?"},
    ]
    file.write_text(
        json.dumps({"messages": [*chat, {"role": "assistant", "content": "gone"}]})
        + "\n"
        + json.dumps({"prompt": "word " * 600})
    )
    code, _, errors = distill(file=file)
    (line,) = lines(tmp_path / "out.jsonl").values()
    assert code == 0 and line["messages"][:3] == chat and len(line["messages"]) == 4 and line["id"] == "1"
    assert wording("n1_prompts_are_too_long") in errors
    file.write_text(json.dumps({"prompt": "word " * 600}))
    code, text, errors = distill(file=file, out="other")
    assert (code, text) == (2, "") and "512" in errors and not (tmp_path / "other").exists()


def test_a_full_disk_leaves_whole_lines(distill, tmp_path):
    assert distill("--limit", 2, "--batch", 2)[0] == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        code, text, errors = distill("--batch", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, text) == (4, "") and wording("cannot_be_written") in errors
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_file_of_something_else_is_not_touched(distill, tmp_path):
    (tmp_path / "out.jsonl").write_text('{"text": "mine"}\n')
    code, _, errors = distill()
    assert code == 2 and "line 1" in errors and (tmp_path / "out.jsonl").read_text() == '{"text": "mine"}\n'


@pytest.mark.parametrize(
    "content",
    ["My only precious note without a newline", '{"id": "p0", "prompt": "the cat"}', '{"id": "a", "asked": 1}'],
)
def test_what_has_no_newline_is_cut_off_only_where_it_is_ours(distill, tmp_path, content):
    note = tmp_path / "note"
    note.write_text(content)
    code, _, errors = distill(out="note")
    assert code == 2 and wording("line_1_reply") in errors and note.read_text() == content
    assert distill(file=note, out="note")[0] == 2 and note.read_text() == content


def test_a_model_is_known_by_what_it_is_and_not_by_how_it_was_named(distill, tmp_path, model, monkeypatch):
    copy = shutil.copytree(model.path, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    assert distill("-m", "./copy", "--limit", 1)[0] == 0
    code, _, errors = distill("-m", copy)
    assert code == 0 and wording("n1_6_replies_there_already") in errors
    tensors = load_file(copy / "model.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, copy / "model.safetensors")
    code, _, errors = distill("-m", copy)
    assert code == 2 and wording("was_asked_for_with_another") in errors


def test_ctrl_c_leaves_a_file_to_continue(tmp_path, training_cage):
    file, out = tmp_path / "many.txt", tmp_path / "out.jsonl"
    file.write_text("".join(f"the cat sat on {number}\n" for number in range(300)))
    interrupt = Signal(signal.SIGINT, when=lambda: out.exists() and out.stat().st_size)
    ended = training_cage.run(
        tmp_path, "distill", "-m", "demo", "--prompts", str(file), "-o", str(out), "-n", "60", sent=interrupt
    )
    assert ended.code == 130 and ended.out == "" and wording("the_same_command_goes_on") in ended.errors
    assert out.read_bytes().endswith(b"\n") and 0 < len(lines(out)) < 300


@pytest.mark.skipif(os.name != "posix", reason="modes as on POSIX")
def test_replies_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        append(tmp_path / "replies.jsonl", [{"id": "1"}])
    finally:
        os.umask(before)
    assert (tmp_path / "replies.jsonl").stat().st_mode & 0o777 == 0o600
