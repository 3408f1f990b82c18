"""Targets that training changes by adapters: also on weights in few bits, and the model that is written at the end."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from drafting import add_changes, after_training, session_of
from each import each
from quantized_layers import packed_target
from safetensors import safe_open
from tiny_models import Tiny, prompt_ids, read, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.events import Done
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn import packing as packings
from localspec.nn.adapters import Adapters
from localspec.nn.linear import Linear
from localspec.nn.linear_bitsandbytes import NF4Linear
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer
from localspec.training import result
from localspec.training.trainable import Batch, TrainableDrafter, make_drafter

Make = Callable[[str], Tiny]
LLAMA, PHI = "llama-grouped-dynamic", "phi3-one-key-head-tied"  # the latter's head is its embedding
FORMS: dict[str, dict[str, Any]] = {
    "medusa": {"joint": True, "rank": 4, "heads": 2, "balance": 0.3, "warmup": 0.1},
    "semi": {"joint": True, "rank": 4, "depth": 3},
    "s3d": {"full": True, "rank": 4, "kept": "0,2"},
}
NF4 = [pytest.mark.slow, pytest.mark.skipif(not find_spec("bitsandbytes"), reason="no bitsandbytes")]


@pytest.fixture
def packed(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Target]:
    """Return `make` for targets in few bits that can be trained: our packings, and NF4 in its reference form for CPUs."""

    def make(name: str, packing: str) -> Target:
        if packing != "nf4":
            return packed_target(tiny(name).path, packing)
        monkeypatch.setitem(packings._CLASSES, ("nf4", "cpu"), NF4Linear)
        return Target.load(tiny(name).path, quantize="nf4")

    return make


def densely(target: Target) -> Target:
    """Return the same numbers as weights of dense layers."""
    ours = target.transformer
    weights = {name: one.detach() for name, one in ours.named_parameters()}
    for name, layer in ours.named_modules():
        if name.rpartition(".")[2] in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"):
            weights[f"{name}.weight"] = layer.weight.detach()
            if layer.bias is not None:
                weights[f"{name}.bias"] = layer.bias
    dense = Transformer(replace(ours.config, tied=False), ours.rotary, weights, Linear)
    return Target(dense, target.config, target.tokenizer, target.context, target.generation)


def made(kind: str, target: Target, **more: Any) -> TrainableDrafter:
    torch.manual_seed(3)
    return make_drafter(kind, target, {**FORMS[kind], **({"dropout": 0.0} if kind == "medusa" else {}), **more})


def lesson(target: Target, texts: Sequence[Sequence[int]], distill: bool = False, start: int = 3) -> Batch:
    tokens = torch.tensor([list(text) for text in texts])
    n = tokens.shape[1]
    with torch.no_grad():
        hidden = target.transformer(tokens, torch.arange(n), torch.ones(n, n).tril().bool())
    counts = torch.zeros_like(tokens, dtype=torch.bool)
    counts[:, start:] = True
    return Batch(tokens, counts, hidden, distill)


def stir(what: torch.nn.Module, by: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in what.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def learn(drafter: TrainableDrafter, of: Batch, steps: int, rate: float) -> list[float]:
    """Return the curve of the loss."""
    groups = [{"params": group["params"], "lr": rate * group["lr_scale"]} for group in drafter.parameter_groups()]
    optimizer, curve = torch.optim.Adam(groups), []
    for step in range(steps):
        drafter.train().progress = step / steps
        of.generator.manual_seed(step)
        loss = drafter.loss(of).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    drafter.progress = 1.0
    return curve


def said(session: Session, prompt: Sequence[int], count: int = 24) -> tuple[list[int], float]:
    *_, done = session.generate(prompt, Sampling(), Limits(max_tokens=count))
    assert isinstance(done, Done)
    return list(done.statistics.token_ids), done.statistics.acceptance_length


@pytest.mark.parametrize(
    ("kind", "packing", "distill"),
    [
        ("medusa", "int8", False),
        ("semi", "int4", True),
        pytest.param("medusa", "nf4", True, marks=NF4),
        pytest.param("semi", "nf4", False, marks=NF4),
    ],
)
def test_what_learns_on_few_bits_learns_as_on_the_same_weights_in_a_dense_model(
    packed: Callable[[str, str], Target], kind: str, packing: str, distill: bool
) -> None:
    target = packed(LLAMA, packing)
    assert target.transformer.packed
    found = []
    for one in (target, densely(target)):
        drafter = made(kind, one)
        stir(drafter)
        output = drafter.loss(lesson(target, [prompt_ids(20), prompt_ids(20, seed=1)], distill))
        output.loss.backward()
        found.append((output.loss.item(), {name: part.grad for name, part in drafter.named_parameters()}))
    (ours, gradients), (theirs, right) = found
    assert ours == pytest.approx(theirs, rel=1e-5)
    for name, gradient in right.items():
        assert gradient is not None and gradient.abs().sum() > 0, name
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_full_form_on_few_bits_is_that_of_weights_with_the_adapters_added(
    packed: Callable[[str, str], Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts, the text before them and the target's own loss all come from the changed target."""
    target = packed(LLAMA, "int8")
    drafter = made("s3d", target)
    assert drafter.adapters is not None and drafter.changes_target
    stir(drafter.adapters)
    changed = densely(target)
    add_changes(drafter.adapters, changed.transformer)
    twin = made("s3d", changed)
    assert twin.adapters is None, "in fp32 the layers learn themselves"
    with torch.no_grad():
        twin.mask.copy_(drafter.mask)
    text = [prompt_ids(24, seed=2)]
    of, same = lesson(target, text), lesson(changed, text)
    ours, right = drafter.loss(of).loss, twin.loss(same).loss
    assert ours.item() == pytest.approx(right.item(), rel=1e-4)
    of.generator.manual_seed(0)
    ours.backward()
    right.backward()
    for index, layer in drafter.adapters.items():
        for name, adapter in layer.items():
            gradient = getattr(changed.transformer.layers[index], name).weight.grad
            assert gradient is not None and adapter.lora_B.grad is not None
            wanted = adapter.block_mask * (gradient @ adapter.lora_A.T) * adapter.alpha / adapter.rank
            torch.testing.assert_close(
                adapter.lora_B.grad, wanted, rtol=1e-3, atol=1e-4 * float(wanted.detach().abs().max())
            )
    of.generator.manual_seed(0)
    assert drafter.loss(of).loss.item() != pytest.approx(made("s3d", densely(target)).loss(same).loss.item(), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "packing"),
    [("medusa", "int4"), ("semi", "int8"), ("s3d", "int4"), pytest.param("s3d", "nf4", marks=NF4)],
)
def test_what_was_learnt_in_few_bits_is_another_target_for_which_it_is_lossless(
    packed: Callable[[str, str], Target], tiny: Make, tmp_path: Path, kind: str, packing: str
) -> None:
    """Compared with the written files read by transformers, and packed, on the CPU engine."""
    model, prompt = tiny(LLAMA), prompt_ids(15, seed=6)
    text = [*prompt, *stock_reply(model.stock, prompt_ids(15, seed=7), 24)]
    target = packed(LLAMA, packing)
    before = made(kind, target).loss(lesson(target, [text], start=6)).loss.item()
    drafter = made(kind, target)
    curve = learn(drafter, lesson(target, [text], start=6), 60, 0.02)
    assert min(curve[-5:]) < 0.5 * before
    changed, dense = after_training(drafter, model.path, tmp_path / "target")
    assert changed.options.joint is False if kind != "s3d" else changed.options.full
    learnt = read(tmp_path / "target")
    wanted = stock_reply(learnt.stock, prompt, 24)
    assert wanted != stock_reply(model.stock, prompt, 24)
    ids, length = said(session_of(dense, changed, Budget(8)), prompt)
    assert ids == wanted and length > 1.5
    native = NativeTarget.open(tmp_path / "target", threads=Threads(1))
    ids, _ = said(session_of(native, changed, Budget(8)), prompt)
    assert ids == said(Session(native, Autoregressive(), Budget(0)), prompt)[0]


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            found.update({name: opened.get_tensor(name) for name in list(opened.keys())})
    return found


@pytest.mark.slow
@each(
    "name, shard",
    [(LLAMA, 2**30), (LLAMA, 40_000), (PHI, 2**30), ("qwen3-grouped-mixed-window-wide-heads", 40_000)],
)
def test_what_is_written_are_the_models_own_weights_and_what_was_learnt(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shard: int
) -> None:
    """Whatever it was trained on, and in as many files as it takes to hold little in memory."""
    monkeypatch.setattr("localspec.nn.weights.SHARD", shard)
    model, target = tiny(name), packed_target(tiny(name).path)
    torch.manual_seed(1)
    adapters = Adapters(target.transformer, [0, 2], 3, 6.0, head=True)
    stir(adapters)
    result.write_merged(model.path, target, adapters, tmp_path / "new")
    right = Target.load(model.path)
    right.transformer.lm_head = Linear(right.transformer.lm_head.weight.detach().clone())
    right.transformer.config = replace(right.transformer.config, tied=False)
    add_changes(adapters, right.transformer)
    changed = read(tmp_path / "new")
    text = torch.tensor([prompt_ids(14)])
    said = right.head(right.transformer(text, torch.arange(14), torch.ones(14, 14).tril().bool()))
    with torch.no_grad():
        torch.testing.assert_close(changed.stock(text).logits, said, rtol=1e-3, atol=1e-3)
        assert (model.stock(text).logits - said).abs().max() > 0.1
    before, after = tensors_of(model.path), tensors_of(tmp_path / "new")
    assert after.keys() == before.keys() | {"lm_head.weight"}
    same = {part for part in before if torch.equal(before[part], after[part])}
    layers = {part for part in before if ".layers.0." in part or ".layers.2." in part}
    assert same == {part for part in before if "norm" in part or part.endswith("bias")} | (
        before.keys() - layers - {"lm_head.weight"}
    )
    files = sorted(file.name for file in (tmp_path / "new").glob("model*"))
    assert (files == ["model.safetensors"]) == (shard == 2**30)
    if shard < 2**30:
        index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
        assert index["weight_map"].keys() == after.keys()
        assert all(file.stat().st_size < 2 * shard + 20_000 for file in (tmp_path / "new").glob("*.safetensors"))


@each("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_keep_their_precision(tiny: Make, tmp_path: Path, dtype: torch.dtype) -> None:
    Target.load(tiny(LLAMA).path, dtype=dtype).save(tmp_path / "own")
    target = Target.load(tmp_path / "own")
    adapters = Adapters(target.transformer, range(3), 3, 6.0)
    stir(adapters)
    result.write_merged(tmp_path / "own", target, adapters, tmp_path / "new")
    before, after = tensors_of(tmp_path / "own"), tensors_of(tmp_path / "new")
    assert {tensor.dtype for tensor in after.values()} == {dtype}
    part = "model.layers.1.mlp.down_proj.weight"
    change = adapters.change_of("layers.1.down_proj.weight")
    assert change is not None
    assert torch.equal(after[part], (before[part].float() + change).to(dtype))
    assert "lm_head.weight" not in after or torch.equal(after["lm_head.weight"], before["lm_head.weight"])
