"""Models in each packing: near the stock model, trainable through, true to the byte, and never written back."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from each import each
from golden import matching
from session_replies import reply
from tiny_models import VOCABULARY, prompt_ids, stock_logits
from torch.multiprocessing.reductions import StorageWeakRef

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.errors import LocalspecError, UsageMistake
from localspec.families.architecture import weight_map
from localspec.nn import exactness, packing, target
from localspec.nn.linear import LayerClass, Linear, QuantizedLinear
from localspec.nn.linear_bitsandbytes import LLMInt8Linear, NF4Linear
from localspec.nn.linear_mps import Int4WeightOnlyLinear, Int8WeightOnlyLinear
from localspec.nn.packing import linear_class, lm_head_class
from localspec.nn.target import Target
from localspec.nn.weights import Weights

TIED, UNTIED = "qwen2-many-heads-mixed-window-tied", "qwen2-grouped-yarn"
ERRORS = {
    LLMInt8Linear: 0.08,
    NF4Linear: 0.5,
    Int8WeightOnlyLinear: 0.05,
    Int4WeightOnlyLinear: 0.4,
}  # of logits, at most
library = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(LLMInt8Linear, marks=library),
        pytest.param(NF4Linear, marks=library),
        Int8WeightOnlyLinear,
        Int4WeightOnlyLinear,
    ],
)
precisions = each("precision", [torch.float32, torch.bfloat16])


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Target]:
    """Load a model on this CPU with linear layers of a class that is another device's."""

    def made(path: Path, kind: LayerClass, head: LayerClass | None = None, **named: object) -> Target:
        monkeypatch.setitem(packing._CLASSES, ("int8", "cpu"), kind)
        if head is not None:
            monkeypatch.setattr(target, "lm_head_class", lambda quantize, device, exact=False: head)
        return Target.load(path, quantize="int8", **named)

    return made


def causal(count: int) -> torch.Tensor:
    return torch.ones(count, count, dtype=torch.bool).tril()


def error(ours: torch.Tensor, right: torch.Tensor) -> float:
    return float((ours.float() - right.float()).norm() / right.float().norm())


@each(
    "quantize, device, layers, head",
    [
        ("none", "cpu", Linear, Linear),
        ("none", "cuda:0", Linear, Linear),
        ("none", "mps", Linear, Linear),
        ("int8", "cuda:0", LLMInt8Linear, Linear),
        ("nf4", "cuda", NF4Linear, Linear),
        ("int8", "mps", Int8WeightOnlyLinear, Int8WeightOnlyLinear),
        ("int4", "mps", Int4WeightOnlyLinear, Int4WeightOnlyLinear),
    ],
)
def test_each_device_has_its_kinds_and_on_cuda_the_head_is_dense(quantize, device, layers, head):
    assert linear_class(quantize, device) is layers
    assert lm_head_class(quantize, device) is head


@each("quantize, device", [("int8", "cpu"), ("int4", "cpu"), ("nf4", "cpu"), ("int4", "cuda:0"), ("nf4", "mps")])
def test_a_pair_without_a_kind_is_refused_by_name(quantize, device):
    with pytest.raises(UsageMistake, match=f"{quantize} is not supported on {device}"):
        linear_class(quantize, device)


@pytest.mark.slow
@kinds
@precisions
@each("name", [TIED, UNTIED, "llama-many-heads-biases-llama3"])
def test_a_packed_model_is_the_stock_model_as_near_as_its_bits_come(tiny, load, kind, precision, name):
    model, tokens = tiny(name), prompt_ids(60)
    packed = load(model.path, kind, dtype=precision)
    assert packed.transformer.packed and not model.target.transformer.packed
    layers = [layer for layer in packed.transformer.modules() if isinstance(layer, Linear | QuantizedLinear)]
    assert {type(layer) for layer in layers} == {kind} and len(layers) == 4 * 3 + 1
    with torch.no_grad():
        ours = packed.forward_tensors(torch.tensor(tokens), torch.arange(60), causal(60)).logits
    assert ours.dtype == precision
    assert packed.transformer.norm.dtype == packed.transformer.computes_in == ours.dtype
    assert packed.dtype == precision
    assert 1e-4 < error(ours, stock_logits(model.stock, tokens)) < ERRORS[kind]


@pytest.mark.slow
@kinds
def test_it_answers_and_a_reply_is_the_same_however_it_is_read(tiny, load, kind):
    packed, prompt = load(tiny(UNTIED).path, kind), prompt_ids(30, seed=5)
    packed.stop_tokens = frozenset()
    assert packed.forward(DraftTree.chain(prompt), packed.cache(30), last=True).logits.finite()
    ids, statistics = reply(Session(packed, Autoregressive(), Budget(0)), prompt, 10)
    again, _ = reply(Session(packed, Autoregressive(), Budget(0)), [*prompt, *ids[:4]], 6)
    assert ids[4:] == again
    assert statistics.memory.target == packed.nbytes


@kinds
@each("dense_head", [False, True])
@each("name, tied", [(TIED, True), (UNTIED, False)])
def test_its_bytes_are_those_of_all_it_holds_and_a_step_reads_all_but_an_embedding_of_its_own(
    tiny, load, kind, name, tied, dense_head
):
    packed = load(tiny(name).path, kind, Linear if dense_head else kind, dtype=torch.bfloat16)
    transformer = packed.transformer
    linears = [layer for layer in transformer.modules() if isinstance(layer, Linear | QuantizedLinear)]
    vectors = sum(parameter.nbytes for parameter in transformer.parameters() if parameter.ndim == 1)
    biases = sum(layer.bias.nbytes for layer in linears if isinstance(layer, Linear) and layer.bias is not None)
    embedding = 2 * 320 * 48
    shared = tied and dense_head
    layers = sum(layer.nbytes for layer in linears)
    assert packed.nbytes == layers + vectors - biases + (0 if shared else embedding)
    assert packed.read_bytes == layers + vectors - biases
    assert (transformer.lm_head.weight is transformer.embed_tokens) == shared


@kinds
def test_it_cannot_be_written_back_and_says_so(tiny, load, kind, tmp_path):
    for head in (kind, Linear):
        with pytest.raises(LocalspecError, match=matching("int8_int4_nf4_cannot_written_back")):
            load(tiny(UNTIED).path, kind, head).save(tmp_path / "again")
    assert not (tmp_path / "again").exists()


@kinds
def test_gradients_flow_through_it_as_through_a_float_model_of_its_weights(tiny, load, kind):
    path = tiny("llama-many-heads-biases-llama3").path
    packed, dense = load(path, kind), Target.load(path)
    for name, module in packed.transformer.named_modules():
        if isinstance(module, QuantizedLinear):
            dense.transformer.get_submodule(name).weight.data = module.weight.float()
    tokens, direction = torch.tensor([prompt_ids(18, seed=seed) for seed in (7, 8)]), torch.randn(2, 18, VOCABULARY)
    for model in (packed, dense):
        model.transformer.requires_grad_(True)
        (model.forward_tensors(tokens, torch.arange(18), causal(18)).logits * direction).sum().backward()
    theirs = dict(dense.transformer.named_parameters())
    for name, parameter in packed.transformer.named_parameters():
        assert parameter.grad is not None, name
        assert F.cosine_similarity(parameter.grad.flatten(), theirs[name].grad.flatten(), dim=0) > 0.99, name


@pytest.mark.slow
@kinds
def test_its_exactness_is_measured_like_any_others(tiny, load, kind):
    packed = load(tiny(UNTIED).path, kind, exact=True)
    cache = packed.cache(8)
    with torch.inference_mode():
        looked_at = exactness.tree_rows(packed, cache, DraftTree.chain([5, 6]), [0, 1])
    assert len(looked_at) == 2 + 4 * 3 + 1, "logits, the cache, and what every linear layer was given"
    found = exactness.measure(packed, 4, exact=True)
    assert found.multiple >= 4, "a single row is rounded differently, though rarely"
    assert found.bitwise or 0 < found.largest < 1e-3


def test_a_threshold_is_that_of_the_layers_made_with_it_and_of_no_others():
    assert linear_class("int8", "cuda:0", 6.0).threshold == 6.0
    assert linear_class("int8", "cuda:0").threshold == LLMInt8Linear.threshold == 0.0
    assert linear_class("int8", "mps", 6.0) is Int8WeightOnlyLinear and linear_class("nf4", "cuda", 6.0) is NF4Linear


def test_a_packed_model_never_lies_in_memory_whole(tiny, load, monkeypatch):
    """The model is read in another dtype than that of its files, so that each live tensor owns its memory."""
    storages: list[tuple[StorageWeakRef, int]] = []
    names: list[str] = []
    peak = 0
    get = Weights.__getitem__

    def watched(weights: Weights, name: str) -> torch.Tensor:
        nonlocal peak
        made = get(weights, name)
        names.append(name)
        storages.append((StorageWeakRef(made.untyped_storage()), made.nbytes))
        peak = max(peak, sum(size for storage, size in storages if not storage.expired()))
        return made

    monkeypatch.setattr(Weights, "__getitem__", watched)
    path = tiny("llama-many-heads-biases-llama3").path
    target = load(path, Int8WeightOnlyLinear, dtype=torch.bfloat16)
    assert sorted(names) == sorted(weight_map(target.transformer.config)), "each is read once"
    sizes = dict(zip(names, (size for _, size in storages), strict=True))
    small = sum(size for name, size in sizes.items() if "norm" in name or "bias" in name)
    largest = max(size for name, size in sizes.items() if "weight" in name)
    assert peak <= sizes["embed_tokens"] + small + largest
    assert peak < 0.6 * sum(sizes.values())
    storages.clear()
    peak = 0
    dense = Target.load(path, dtype=torch.bfloat16)
    assert peak == dense.nbytes, "the control: a dense one is whole at the end"
