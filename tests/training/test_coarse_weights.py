"""Weights in bf16 that are trained in steps smaller than the distance of two neighbouring numbers."""

import json
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from each import each
from tiny_models import byte_tokenizer, read, write
from torch import nn
from training.minimal_drafter import Linears
from transformers import LlamaConfig

from localspec.nn.linear_bitsandbytes import adamw_8bit
from localspec.nn.target import Target
from localspec.training import train
from localspec.training.corpus import Corpus
from localspec.training.examples import Example
from localspec.training.train import Training, TrainingPlan, rounded_by_chance

PLAN = TrainingPlan(batch=256, at_once=256, rate=1e-4, seed=1, distill=True, steps=8)


class Coarse(Linears):
    """The base class with matrices in bf16."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        given = [matrix.detach() for matrix in self.matrices]
        del self.matrices
        self.coarse = nn.ParameterList(matrix.to(torch.bfloat16) for matrix in given)

    def __getattr__(self, name: str) -> object:
        made = name == "matrices" and "coarse" in self._modules
        return [matrix.float() for matrix in self.coarse] if made else super().__getattr__(name)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=300,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=4, pad_token_id=0,
    )  # fmt: skip
    return read(write(tmp_path_factory.mktemp("model"), config, byte_tokenizer(), seed=0)).target


@pytest.fixture
def training(target, tmp_path):
    letters, processes = "abcdefghijklmnop", Accelerator(cpu=True)
    corpus = Corpus(target, [Example(f"{letters[n % 16 :]}{letters * 3}") for n in range(60)], 64, 256, seed=1)

    def make(where="a", plan=PLAN, kind=Coarse):
        torch.manual_seed(0)
        (tmp_path / where).mkdir(exist_ok=True)
        return Training(kind(target), corpus, plan, tmp_path / where, processes, {})

    return make


def losses(training: Training) -> list[float]:
    lines = (training.directory / "losses.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


@each("x", [1.0, -1.0, 0.0, 1.0 + 2**-7, 3.1415, -0.02, 1e-30, 6e4])
def test_a_number_becomes_a_neighbour_and_itself_on_average(x: float) -> None:
    found = rounded_by_chance(torch.full((200_000,), x), "seed")
    assert found.dtype == torch.bfloat16
    values = found.double().unique().tolist()
    nearest = torch.tensor(x).to(torch.bfloat16).double().item()
    if nearest == torch.tensor(x).double().item():
        assert values == [nearest]
        return
    below, above = values
    assert below < x < above and nearest in values and above - below == pytest.approx(2.0**-7 * abs(x), rel=0.6)
    assert found.double().mean().item() == pytest.approx(x, abs=0.01 * (above - below))


def test_rounding_follows_from_its_seed() -> None:
    x = torch.linspace(0.1, 0.9, 1000)
    one, again, other = (rounded_by_chance(x, seed) for seed in ("1", "1", "2"))
    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.slow
def test_steps_that_rounding_would_lose_are_made_on_average(training) -> None:
    """A diagonal of ones: the nearest other numbers of bf16 are 0.004 and 0.008 away, and a step is 0.0001 at most."""
    made, dense = training(), training("dense", kind=Linears)
    list(made.run())
    list(dense.run())
    ones = torch.eye(32, dtype=torch.bool)
    moved = [(matrix.float() - torch.eye(32))[ones] for matrix in made.drafter.coarse]
    right = [(matrix.detach() - torch.eye(32))[ones] for matrix in dense.drafter.matrices]
    assert all(1e-4 < part.abs().max() < 1e-3 for part in right), "rounded to the nearest, all would stay ones"
    assert all(part.count_nonzero() > 2 for part in moved)
    # Off the diagonal they begin as zero, where bf16 is as fine as fp32.
    for matrix, other in zip(made.drafter.coarse, dense.drafter.matrices, strict=True):
        torch.testing.assert_close(matrix.float()[~ones], other.detach()[~ones], rtol=0.15, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("small", [False, True])
def test_what_was_stopped_continues_bit_for_bit(training, monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    """Moments stay finer than their weights, also with eight bits of bitsandbytes."""
    if small:
        made_of = partial(adamw_8bit(), min_8bit_size=16)
        monkeypatch.setattr("localspec.nn.linear_bitsandbytes.adamw_8bit", lambda: made_of)
        monkeypatch.setattr(train, "has_small_moments", lambda device: True)
    whole = training("whole")
    list(whole.run())
    asked: list[int] = []
    list(training("parted").run(lambda: asked.append(1) or len(asked) == 4))
    second = training("parted")
    assert second.state.step == 4
    kept = {name: one.dtype for one in second._optimizer.state.values() for name, one in one.items() if name != "step"}
    assert torch.bfloat16 not in kept.values()
    list(second.run())
    assert losses(second) == losses(whole)
    for one, other in zip(second.drafter.parameters(), whole.drafter.parameters(), strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    assert {one.dtype for one in second.drafter.parameters()} == {torch.float32, torch.bfloat16}
