"""Drafters compute on the CPU engine what they compute in torch, and the shipped ones draft with it."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from command import environment
from drafting import torch_form
from each import each
from session_replies import reply
from slow_cases import covering
from tiny_models import DRAFTING, FAMILIES, prompt_ids

from localspec.decoding.budget import Budget
from localspec.decoding.compute import HeadWeights, LowRank
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.s3d import S3DOptions, stacked_adapters
from localspec.drafters.trained import load_drafter
from localspec.families.architecture import in_features, weight_map
from localspec.models.drafter_cards import read_drafter
from localspec.models.stored_names import WHICH, adapted_parts
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads

DEMO = Path(__file__).parents[2] / "localspec" / "demo"
SHIPPED = sorted(path.name for path in (DEMO / "drafters").iterdir())
LLAMA = FAMILIES[0]
OWN_LAYERS = [name for name in FAMILIES if name in DRAFTING]
HOT = Sampling(0.8, top_p=0.95, seed=1)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def near(ours: np.ndarray, theirs: torch.Tensor, by: float = 1e-5) -> None:
    expected = theirs.detach().float().numpy()
    assert ours.dtype == np.float32 and ours.shape == expected.shape
    assert np.abs(ours - expected).max() <= by * max(1.0, np.abs(expected).max())


@each("packing", ["fp32", "bf16", "int8", "int4"])
def test_layers_are_those_of_torch_as_far_as_they_are_rounded(tiny, packing):
    """Sizes that fill neither a panel nor a group; drafters of a model in 4 bits have 8."""
    ours, by = tiny(LLAMA, packing).target.compute, {"fp32": 1e-5, "bf16": 1e-2}.get(packing, 3e-2)
    theirs = torch_form(tiny(LLAMA, packing).target).compute
    weight, bias, x = numbers(37, 45), numbers(37, seed=1), numbers(5, 45, seed=2)
    for given in ((weight,), (weight, bias)):
        for silu in (False, True):
            near(ours.linear(*given, silu=silu)(x), theirs.linear(*given, silu=silu)(torch.from_numpy(x)), by)
    assert ours.linear(weight, bias).nbytes >= {"fp32": 4, "bf16": 2}.get(packing, 1) * weight.size + bias.nbytes


@pytest.mark.slow
@each("name", [LLAMA, "granite-grouped-multipliers-tied", "gemma4-many-heads-untied-keys-as-values-capped"])
@each("packing", ["fp32", "int8"])
@each("form", ["shared", "few tokens", "path", "two blocks", "private"])
def test_draft_heads_are_those_of_torch(tiny, name, packing, form):
    target, root, heads, ids = tiny(name, packing).target, 7, 3, [3, 40, 319, 7, 11]
    size, tokens = target.compute.target.sizes.hidden_size, target.vocab_size
    path, private, few = form in ("path", "two blocks"), form == "private", form != "shared"
    layers = 2 if form == "two blocks" else 1
    columns = len(ids) if few else tokens
    blocks = [
        (
            numbers(heads, size, 2 * size if path and not layer else size, seed=layer) / 8,
            numbers(heads, size, seed=layer + 5),
        )
        for layer in range(layers)
    ]
    weights = HeadWeights(
        blocks=blocks,
        path=(numbers(heads, size, 2 * size, seed=11) / 8, numbers(heads, size, seed=12)) if path else None,
        vocabulary=numbers(heads, columns, size, seed=13) if private else None,
        down=None if private else numbers(heads, 5, size, seed=14) / 8,
        up=None if private else numbers(heads, columns, 5, seed=15),
    )
    state = numbers(1, size, seed=16) * 3
    computes = target.compute, torch_form(target).compute
    ours, theirs = (
        one.draft_heads(weights, one.target.head_rows(ids) if few and not private else None) for one in computes
    )
    assert ours.nbytes > 0 and theirs.nbytes > 0
    all_logits = ours(state, root, heads)
    for count in (1, 2, heads):
        logits = ours(state, root, count)
        near(logits, theirs(computes[1].rows(state), root, count), 1e-4 if packing == "fp32" else 6e-2)
        assert np.array_equal(logits, all_logits[:count]), "a head's logits do not depend on the number of heads"
    if path:
        assert np.abs(all_logits - ours(state, root + 1, heads)).max() > 0.01, "the root is read"


def test_functions_are_those_of_torch(tiny):
    ours = tiny(LLAMA).target.compute
    theirs, x = torch_form(tiny(LLAMA).target).compute, numbers(3, 20) * 30
    rows = torch.from_numpy(x)
    for name in ("silu", "sigmoid", "tanh", "rms_norm"):
        near(getattr(ours, name)(x), getattr(theirs, name)(rows))
    for axis in (0, 1):
        near(ours.concat([x, x * 2], axis), theirs.concat([rows, rows * 2], axis), 0)
    ids = np.array([1, 5, *range(7, 25)])
    assert np.array_equal(ours.at_columns(x, ids, 30), theirs.at_columns(rows, ids, 30).numpy())
    assert ours.logits(x).argmax() == theirs.logits(rows).argmax()
    sampling = Sampling(0.9, seed=3)
    for found, expected in zip(
        ours.logits(x).candidates(range(3), 4, sampling, ids),
        theirs.logits(rows).candidates(range(3), 4, sampling, ids),
        strict=True,
    ):
        assert [token for token, _ in found] == [token for token, _ in expected]
        assert [chance for _, chance in found] == pytest.approx([chance for _, chance in expected], rel=1e-4)


@pytest.mark.slow
@each("name, which", covering(OWN_LAYERS, WHICH))
def test_rows_through_some_layers_and_adapters_are_those_of_torch(tiny, name, which):
    target, text = tiny(name).target, prompt_ids(20, seed=2)
    sizes, kept, states = target.compute.target.sizes, (0, 2), []
    tensors = {}
    for part in adapted_parts(sizes, kept, which):
        tensors[part.lora_a], tensors[part.lora_b] = numbers(3, part.inputs), numbers(part.size, 3, seed=1) * 0.1
    adapters = stacked_adapters(sizes, kept, S3DOptions(rank=3, kept="0,2", adapters=which), tensors)
    for one in (target, torch_form(target)):
        cache, model = one.cache(8), one.compute.target
        one.forward(DraftTree.chain(text[:-1]), cache)
        cache.keep(range(len(text) - 1))
        inputs = one.compute.concat([model.embed(text[-1:]), one.compute.rows(numbers(4, sizes.hidden_size))])
        for given in (None, model.adapters(adapters)):
            states.append(model.read_rows(inputs, cache, kept, given))
        states.append(model.head(states[-1]))
        states.append(model.head_rows([3, 40, 319, 7])(states[-2]))
        assert cache.length == len(text) - 1
    for ours, theirs in zip(states[:4], states[4:], strict=True):
        near(ours, theirs, 1e-4)
    assert np.abs(states[0] - states[1]).max() > 0.01, "the adapters do something"
    assert np.allclose(states[3], states[2][:, [3, 40, 319, 7]], atol=1e-5)


@each("tokens", [0, 77])
def test_a_small_transformer_is_that_of_torch(tiny, tokens):
    target = tiny(LLAMA).target
    sizes = replace(target.compute.target.sizes, vocab_size=tokens, tied=True, sliding_windows=(None, 6))
    weights = {}
    for name, made_of in weight_map(sizes).items():
        rows, columns = sum(count for _, count in made_of), in_features(name, sizes)
        weights[name] = numbers(rows, columns) * 0.2 if columns else numbers(rows) * 0.1 + 1
    found = []
    for one in (target, torch_form(target)):
        model = one.compute.model(sizes, None, weights)
        cache = model.cache(0)
        for part in (numbers(9, sizes.hidden_size), numbers(3, sizes.hidden_size, seed=1)):
            found.append(model.read_rows(one.compute.rows(part), cache))
            cache.keep(range(len(part)))
        if tokens:
            found += [model.embed([0, 76]), model.head(found[-1])]
    half = len(found) // 2
    for ours, theirs in zip(found[:half], found[half:], strict=True):
        near(ours, theirs, 1e-4)


def test_an_adapter_that_is_stacked_is_each_of_its_parts(tiny):
    sizes = tiny(LLAMA).target.compute.target.sizes
    tensors = {}
    for part in adapted_parts(sizes, (1,), "vko"):
        tensors[part.lora_a], tensors[part.lora_b] = numbers(2, part.inputs), numbers(part.size, 2, seed=part.start)
    found = stacked_adapters(sizes, (1,), S3DOptions(rank=2, alpha=6.0, adapters="vko"), tensors)
    one: LowRank = found[1]["qkv_proj"]
    product, prefix = one.scale * one.b @ one.a, "base_model.model.model.layers.1.self_attn."
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    assert not product[:queries].any(), "queries are not adapted"
    for first, name in ((queries, "k_proj"), (queries + keys, "v_proj")):
        a, b = tensors[f"{prefix}{name}.lora_A.weight"], tensors[f"{prefix}{name}.lora_B.weight"]
        assert np.allclose(product[first : first + keys], 3.0 * b @ a, atol=1e-5)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], NativeTarget]:
    home = tmp_path_factory.mktemp("home")

    def give(packing: str) -> NativeTarget:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCALSPEC_HOME", str(home))
            return NativeTarget.open(DEMO, packing=packing, threads=Threads(1))

    return give


@pytest.fixture(scope="module")
def plain(demo: Callable[[str], NativeTarget]) -> Callable[[str, str, Sampling], list[int]]:
    @cache
    def said(packing: str, question: str, sampling: Sampling) -> list[int]:
        target = demo(packing)
        prompt = target.encode([{"role": "user", "content": question}])
        return reply(Session(target, Autoregressive(), Budget(0)), prompt, 48, sampling)[0]

    return said


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "packing"), covering(SHIPPED, ["int4", "int8", "bf16", "fp32"], fast=1))
def test_a_shipped_drafter_helps_and_changes_no_text(demo, plain, kind, packing):
    target, tokens, steps = demo(packing), 0, 0
    drafter = load_drafter(read_drafter(DEMO / "drafters" / kind), target)
    assert 0 < drafter.nbytes < target.nbytes
    for question in ("Tell me a short story about a fox.", "Give me three reasons to learn a foreign language."):
        prompt = target.encode([{"role": "user", "content": question}])
        for sampling in (Sampling(), HOT):
            ids, statistics = reply(Session(target, drafter, Budget(12)), prompt, 48, sampling)
            assert ids == plain(packing, question, sampling)
            tokens, steps = tokens + len(ids), steps + statistics.steps
    assert tokens / steps > 1.3


@pytest.mark.slow
def test_no_drafter_imports_torch(tmp_path):
    code = f"""
import json, sys
from pathlib import Path
from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.limits import Limits
from localspec.decoding.session import Session
from localspec.drafters.trained import load_drafter
from localspec.models.drafter_cards import read_drafter
from localspec.native.target import NativeTarget
demo, found = Path({str(DEMO)!r}), {{}}
target = NativeTarget.open(demo)
prompt = target.encode([{{"role": "user", "content": "Tell me a story."}}])
for kind in {SHIPPED}:
    session = Session(target, load_drafter(read_drafter(demo / "drafters" / kind), target), Budget(6))
    *_, done = session.generate(prompt, Sampling(), Limits(max_tokens=12))
    found[kind] = done.statistics.drafted
unwanted = [name for name in ("torch", "transformers", "localspec.training", "localspec.nn") if name in sys.modules]
print(json.dumps([found, unwanted]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found, unwanted = json.loads(ran.stdout)
    assert list(found) == SHIPPED and all(found.values())
    assert unwanted == []
