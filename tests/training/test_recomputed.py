"""Layers that are computed a second time in the backward pass: the same gradient, and less memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from each import each
from held_for_gradients import gradients_and_bytes
from invented_torch import invented_target
from quantized_layers import packed_target
from tiny_models import Tiny, prompt_ids
from torch import nn
from transformers import LlamaConfig

from localspec.choosing.choice import Choice
from localspec.families.model_config import ModelConfig
from localspec.models.registry import NOWHERE, TargetCard
from localspec.nn.cache import TextPrefix
from localspec.nn.target import Target
from localspec.training.estimate import needs
from localspec.training.trainable import Batch, TrainableDrafter, make_drafter

Make = Callable[[str], Tiny]
CHOICE = Choice(
    target=TargetCard("wide", NOWHERE, None, ""), device="cpu", dtype="fp32", quantize="none", engine="torch",
    loaded_bytes=0, bytes=0, drafter="none", nodes=0, fixed=False, reason="",
)  # fmt: skip
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "medusa-2": ("medusa", {"joint": True, "warmup": 0.0, "dropout": 0.3, "rank": 4}),
    "semi joint": ("semi", {"joint": True, "rank": 4}),
    "s3d": ("s3d", {"kept": "0,2"}),
    "s3d full": ("s3d", {"kept": "0,2", "full": True}),
    "parallelspec": ("parallelspec", {"layers": 3}),
    "eagle3": ("eagle3", {"depth": 3}),
}


def lesson(drafter: TrainableDrafter, length: int = 40) -> Batch:
    """Return a batch as the loop reads it."""
    target = drafter.target
    tokens = torch.tensor([prompt_ids(length, seed=seed) for seed in range(2)])
    counts = torch.ones_like(tokens, dtype=torch.bool)
    prefix = TextPrefix(drafter.reads_layers) if drafter.reads_layers else None
    causal, places = torch.ones(length, length).tril().bool(), drafter.reads_inner
    with torch.no_grad():
        output = target.forward_tensors(tokens, torch.arange(length), causal, inner=places)
        if prefix is not None:
            target.transformer(tokens, torch.arange(length), causal, prefix)
    return Batch(
        tokens, counts, output.hidden, True, torch.Generator().manual_seed(3), prefix.closed() if prefix else None,
        output.inner,
    )  # fmt: skip


def target_of(path: Path, packing: str) -> Target:
    return packed_target(path, packing) if packing else Target.load(path)


@pytest.mark.slow
@each("form, packing", [*((form, "") for form in FORMS), ("medusa-2", "int8"), ("s3d full", "int8")])
def test_a_gradient_is_the_same_to_the_bit(tiny: Make, form: str, packing: str) -> None:
    """This includes random numbers that are drawn on the way."""
    kind, options = FORMS[form]
    found = []
    for recomputed in (False, True):
        target = target_of(tiny("llama-grouped-dynamic").path, packing)
        torch.manual_seed(0)
        drafter = make_drafter(kind, target, options).train()
        with torch.no_grad():
            for parameter in drafter.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        for transformer in drafter.transformers:
            transformer.recomputed = recomputed
        torch.manual_seed(5)
        found.append(gradients_and_bytes(drafter, lesson(drafter)))
    (gradients, held), (again, less) = found
    assert gradients.keys() == again.keys() and len(gradients) > 3
    for name, gradient in gradients.items():
        assert gradient.abs().sum() > 0 and torch.equal(gradient, again[name]), name
    assert less < 0.75 * held


@pytest.mark.slow
@each("form", ["semi joint", "s3d full", "parallelspec", "eagle3"])
def test_the_estimate_knows_what_is_held_either_way(wide: Target, form: str) -> None:
    """A longer text takes more memory, by about the promised bytes for each token."""
    kind, options = FORMS[form]
    measured = []
    for recomputed in (False, True):
        held = []
        for length in (64, 128):
            drafter = make_drafter(kind, wide, options).train()
            for transformer in drafter.transformers:
                transformer.recomputed = recomputed
            held.append(gradients_and_bytes(drafter, lesson(drafter, length))[1])
        measured.append((held[1] - held[0]) / (2 * 64))
    promised = needs(drafter, CHOICE, 128)
    wide.transformer.requires_grad_(False)
    wide.transformer.recomputed = False
    assert 0.9 * measured[0] < promised.token < 4 * measured[0], (measured, promised)
    assert 0.9 * measured[1] < promised.recomputed, (measured, promised)
    saved = measured[0] - measured[1]  # what a layer holds while it is computed again is not counted here
    assert 0.5 * saved < promised.token - promised.recomputed < 3 * saved, (measured, promised)


@pytest.mark.slow
@each("kind, options, most", [("medusa", {}, 4), ("semi", {}, 3), ("semi", {"recent": "lstm"}, 2)])
def test_for_heads_no_layer_is_counted(
    wide: Target, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any], most: float
) -> None:
    """A token takes at most the promised memory, and not a small part of it; its logits are computed twice."""
    monkeypatch.setattr("localspec.nn.losses.HELD", 0)
    drafter = make_drafter(kind, wide, options).train()
    short, long = (gradients_and_bytes(drafter, lesson(drafter, length))[1] for length in (128, 256))
    measured = (long - short) / (2 * 128)
    read = 4 * (8 * 256 + 3 * 688 + 2 * 3 * 256 + 256)  # by the target, for a moment
    promised = needs(drafter, CHOICE, 256).token - read
    assert measured < promised < most * measured, (measured, promised)


@pytest.fixture(scope="module")
def wide() -> Target:
    """Return a target of eight layers in the proportions of large models, so that its layers take most of the memory."""
    config = LlamaConfig(
        vocab_size=320, hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=512, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    target = invented_target(ModelConfig.of(config.to_dict()), "cpu", "fp32", "none")
    for name, parameter in list(
        target.transformer.named_parameters()
    ):  # they were made to infer, and a gradient passes
        module, _, own = name.rpartition(".")
        setattr(target.transformer.get_submodule(module), own, nn.Parameter(parameter.clone(), requires_grad=False))
    return target


def test_texts_that_a_gradient_reads_again_change_no_prefix() -> None:
    prefix = TextPrefix()
    keys = torch.ones(1, 1, 3, 2)
    prefix.extended(0, keys, keys)
    closed = prefix.closed()
    prefix.extended(0, 2 * keys, 2 * keys)
    assert closed.length == 3
    assert torch.equal(closed.extended(0, 5 * keys, keys)[0][0, 0, :, 0], torch.tensor([1.0, 1, 1, 5, 5, 5]))
    assert isinstance(prefix, TextPrefix) and not isinstance(prefix, nn.Module)
