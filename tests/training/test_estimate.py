import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tokenizers
import torch
from each import each
from golden import matching
from real.whole_matrix import WHOLE_MATRIX
from tiny_models import RECURRENT
from torch.profiler import ProfilerActivity
from training.minimal_drafter import Linears
from transformers import LlamaConfig, Phi3Config, Qwen2Config

import localspec
from localspec.choosing import fit
from localspec.choosing.choice import Choice
from localspec.choosing.cost import OVERHEAD
from localspec.errors import DoesNotFit
from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.registry import NOWHERE, TargetCard
from localspec.models.shape import Shape
from localspec.models.tokenizer import Tokenizer
from localspec.nn.linear import QuantizedLinear
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.small_model import fresh_weights
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer
from localspec.training import estimate
from localspec.training.estimate import (
    PRODUCT_ROWS,
    WIDTH,
    Fit,
    Needs,
    fitting,
    hours,
    in_a_recurrent_layer,
    needs,
    product_seconds,
)
from localspec.training.trainable import make_drafter, parse_options

CHOICE = Choice(
    target=TargetCard("tiny", NOWHERE, None, ""), device="cpu", dtype="fp32", quantize="none", engine="torch", loaded_bytes=1000, bytes=1000,
    drafter="none", nodes=0, fixed=False, reason="",
)  # fmt: skip


def test_a_forward_is_halved_until_it_fits_and_a_row_is_the_least(monkeypatch):
    monkeypatch.setattr("localspec.training.estimate.free_memory", lambda _: 1000)
    needed = Needs(fixed=400, token=2, files=0, trainable=0, recomputed=1)
    found = [fitting(needed, CHOICE, at_once, 100) for at_once in (300, 301, 1000, 100)]
    assert found == [Fit(300), Fit(150), Fit(250), Fit(100)]
    assert fitting(Needs(799, 2, 0, 0, 1), CHOICE, 4096, 100) == Fit(100)
    # Layers are computed twice only if not even one row fits otherwise; then as many rows as fit.
    assert fitting(Needs(801, 2, 0, 0, 1), CHOICE, 4096, 100) == Fit(128, recomputed=True)
    assert fitting(Needs(899, 2, 0, 0, 1), CHOICE, 4096, 100) == Fit(100, recomputed=True)
    with pytest.raises(DoesNotFit, match=matching("n100_tokens_at_once")):
        fitting(Needs(901, 2, 0, 0, 1), CHOICE, 4096, 100)


def test_hours_are_those_of_one_pass_of_the_target_and_three_of_what_is_trained(tiny):
    drafter = Linears(tiny("phi3-one-key-head-tied").target)
    target = drafter.target.transformer
    read = sum(parameter.numel() for parameter in target.parameters())
    drawn = 2 * 48 * 48 + 48 + drafter.depth * target.config.vocab_size * target.config.hidden_size
    assert hours(drafter, 1e-9, 1000) == pytest.approx(OVERHEAD * 1e-6 * (read + 3 * drawn) / 3600)
    assert hours(drafter, 1e-9, 1000, recomputed=True) == pytest.approx(OVERHEAD * 1e-6 * (read + 4 * drawn) / 3600)
    assert hours(drafter, 2e-9, 3000) == pytest.approx(6 * hours(drafter, 1e-9, 1000))


def test_of_eagle3_all_that_its_steps_pass_is_counted_as_often_as_they_do(tiny):
    """The layer that joins the states counts once; layer, norms, its head and the model's head count once a step."""
    for options in ({"depth": 3}, {"depth": 5, "vocabulary": 100}):
        drafter = make_drafter("eagle3", tiny("phi3-one-key-head-tied").target, options)
        target = drafter.target.transformer.config
        layer = 72 * 96 + 48 * 48 + 3 * 48 * 40
        head = options.get("vocabulary", target.vocab_size) * 48
        norms = 4 * 48
        each = layer + head + norms + target.vocab_size * 48
        assert drafter.weights_passed == 3 * 48 * 48 + drafter.depth * each
        read = sum(parameter.numel() for parameter in drafter.target.transformer.parameters())
        expected = OVERHEAD * 1e-6 * (read + 3 * drafter.weights_passed) / 3600
        assert hours(drafter, 1e-9, 1000) == pytest.approx(expected)


@pytest.mark.slow
def test_the_time_of_other_programs_is_not_that_of_a_product(monkeypatch):
    monkeypatch.setattr(estimate, "wait_for", lambda device: time.sleep(2))
    monkeypatch.setattr(estimate, "LEAST_PRODUCTS", 1)
    assert product_seconds("cpu", torch.float32) < 2 / (PRODUCT_ROWS * WIDTH * WIDTH)


def test_what_learns_is_counted(tiny):
    drafter = Linears(tiny("phi3-one-key-head-tied").target)
    found = needs(drafter, CHOICE, 64)
    assert found.trainable == 2 * 48 * 48 + 48
    drafter.bias.requires_grad_(False)
    assert needs(drafter, CHOICE, 64).trainable == 2 * 48 * 48


@each("kind", ["medusa", "semi"])
def test_a_target_that_learns_takes_memory_in_every_layer_and_is_written(tiny, kind):
    target = tiny("phi3-one-key-head-tied").target
    alone, joint = (make_drafter(kind, target, options) for options in ({}, {"joint": True}))
    found, changed = needs(alone, CHOICE, 64), needs(joint, CHOICE, 64, new_bytes=10_000)
    assert changed.token - found.token > 4 * 14 * 48 * 3  # torch saves 15, and a mask that the layers share
    assert changed.files - found.files > 10_000 and changed.trainable > found.trainable


def test_of_s3d_each_kept_layer_takes_memory(tiny):
    def token(kept: str) -> int:
        return needs(make_drafter("s3d", tiny("phi3-one-key-head-tied").target, {"kept": kept}), CHOICE, 64).token

    one, two, three = token("0"), token("0,1"), token("0,1,2")
    assert two > one
    assert three - two == pytest.approx(two - one, abs=1), "rounded down"


@pytest.mark.slow
@each("name", RECURRENT)
def test_what_a_recurrent_layer_holds_of_a_text_is_counted(tiny, name):
    """Compared with torch's own count of memory; with heads this small, most of it is products of a chunk's rows."""
    target, n = tiny(name).target, 256
    layer = next(one.delta for one in target.transformer.layers if one.delta is not None)
    rows, now, peak = torch.randn(1, n, target.config.hidden_size), 0, 0
    with torch.no_grad(), torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        layer(rows, None, 0)
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    assert 0.8 * peak < 4 * n * in_a_recurrent_layer(layer.sizes) < 1.5 * peak
    drafter = make_drafter("medusa", target, {})
    assert needs(drafter, CHOICE, n).token * n > peak


@WHOLE_MATRIX
@pytest.mark.slow
@each(
    "options",
    [
        ["medusa", "-O", "joint=true", "-O", "warmup=0.1"],
        ["s3d", "-O", "kept=0,7"],
    ],
)
def test_the_estimate_is_about_what_a_training_takes(tmp_path, training_cage, options):
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"{n} " + "The sun rises in the east and sets in the west. " * 60 for n in range(12)))
    kind, *rest = options
    # a quarter of the rows that a forward has by default, where even these are too many to be left out
    rows = "--batch 1024 --at-once 1024 --length 512"
    words = f"train {kind} -m demo --data {file} --steps 2 {rows} -o {tmp_path / 'a'}".split()
    ended = training_cage.run(tmp_path, *words, *rest)
    assert ended.code == 0, ended.errors
    said, peak = float(ended.errors.split(" GiB")[0].split()[-1]), ended.peak / 2**30
    assert 0.8 * peak < said < 2.5 * peak, (said, peak)
    assert Path(tmp_path / "a" / "drafter").is_dir()


LARGE = {
    "Llama 2 7B": (LlamaConfig(architectures=["LlamaForCausalLM"]), "llama"),
    "Qwen2.5 7B": (
        Qwen2Config(
            vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
            num_key_value_heads=4, architectures=["Qwen2ForCausalLM"],
        ), "qwen2",
    ),
    "Phi-3 mini": (Phi3Config(architectures=["Phi3ForCausalLM"]), "phi3"),
}  # fmt: skip


@cache
def without_weights(name: str, packed: bool) -> Target:
    """Return a large model on torch's meta device."""
    config = ModelConfig.of(LARGE[name][0].to_dict())
    sizes = TransformerConfig.of(config)
    assert sizes.num_layers >= 28
    weights = {part: weight.bfloat16() for part, weight in fresh_weights(sizes, "meta").items()}
    transformer = Transformer(sizes, RotaryEmbedding(Rope.of(config, 4096), "meta"), weights)
    if packed:
        transformer.linear_class = QuantizedLinear
    tokenizer = Tokenizer({"tokenizer.json": tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()}, Path())
    return Target(transformer, config, tokenizer, 4096, {})


def documented() -> list[tuple[str, list[str], str, float]]:
    lines = (Path(localspec.__file__).parents[1] / "docs" / "train.md").read_text().splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("| training |"))
    names = [cell.strip() for cell in lines[begin].strip("|").split("|")][1:]
    found = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        command, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for name, cell in zip(names, cells, strict=True):
            packing, card = cell.split(", ")
            found.append((name, command.strip("`").split(), packing, float(card.removesuffix(" GB"))))
    return found


@pytest.mark.slow
def test_each_documented_training_fits_the_card_that_is_named(monkeypatch):
    """Half of the card would be too small, so the page names no larger card than needed."""
    monkeypatch.setattr("localspec.training.estimate.has_small_moments", lambda _: True)
    rows = documented()
    assert len(rows) == 27
    for name, (kind, *words), packing, card in rows:
        options = parse_options(kind, [word for word in words if "=" in word])
        quantize = "none" if packing == "bf16" else packing
        target = without_weights(name, quantize != "none")
        sizes = target.transformer.config
        shape = Shape(
            sizes.num_layers, sizes.hidden_size, sizes.intermediate_size, sizes.num_heads, sizes.num_kv_heads,
            sizes.head_dim, sizes.vocab_size, 4096,
        )  # fmt: skip
        loaded = fit.weights(shape, "bf16", quantize, "cuda")
        choice = replace(CHOICE, device="cuda", dtype="bf16", quantize=quantize, loaded_bytes=loaded)
        gib = needs(make_drafter(kind, target, options), choice, 1024).memory(1024, recomputed=True) / 2**30
        assert card / 2 < gib < 0.95 * card, (name, kind, words, packing, gib)
