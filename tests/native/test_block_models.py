"""Models whose matrices stay in GGUF's blocks: their numbers, and that a row is the same whatever is computed with it."""

from itertools import cycle
from typing import Any

import numpy as np
import pytest
import tiny_models
from each import each
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES
from native.engine import Model, Pool, Text, adapters, isas, stock_logits, using
from native.stock_models import stock_of
from native.test_blocks import FORMS, SMALL, random_rows
from tiny_models import CONFIGS, RECURRENT
from transformers import LlamaConfig

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig, weight_map
from localspec.families.model_config import ModelConfig
from localspec.native.compute import NativeCompute
from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix

POOLS = [Pool(1), Pool(2), Pool(5)]
SHAPE = {**tiny_models._SHAPE, "hidden_size": 64, "intermediate_size": 96}
# all K types, whose blocks need widths of a multiple of 256; with heads of 20 channels, whose rows end within a panel
WIDE: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 5, "num_attention_heads": 8, "head_dim": 20,
    "num_key_value_heads": 1, "vocab_size": 331, "max_position_embeddings": 512, "attention_bias": True, "mlp_bias": True,
}  # fmt: skip
NARROW = {**WIDE, "hidden_size": 576, "intermediate_size": 896, "num_hidden_layers": 3, "tie_word_embeddings": True}


def stored_of(name: str, rows: int, inputs: int) -> np.ndarray:
    """Return rows of random blocks of a type, with weights that leave states about as large as they were."""
    stored = random_rows(name, rows, inputs)
    blocks = stored.reshape(-1, GGML_QUANT_SIZES[GGMLQuantizationType[name]][1])
    if name == "MXFP4":
        blocks[:, 0] = np.random.default_rng(2).integers(120, 124, len(blocks)) - (inputs > 400)
    for at in FORMS[name].halves:
        scales = blocks[:, at : at + 2].copy().view(np.float16)
        factor = 0.8 / inputs**0.5 / dequantize(stored, GGMLQuantizationType[name]).std()
        blocks[:, at : at + 2] = (scales.astype(np.float32) * factor).astype(np.float16).view(np.uint8)
    return stored


def blocks_of(name: str, rows: int, inputs: int) -> tuple[BlockMatrix, np.ndarray]:
    """Return blocks as `stored_of` makes them, and their weights."""
    stored = stored_of(name, rows, inputs)
    return BlockMatrix.pack(stored, inputs, name), dequantize(stored, GGMLQuantizationType[name])


class Blocks(Model):
    """A model in blocks, each part of the next type, as far as widths are whole numbers of blocks; else in fp32."""

    def __init__(self, config: Any, cache: str = "fp32") -> None:
        stock, types = stock_of(config, 0), cycle(FORMS)
        sizes, ours = TransformerConfig.of(ModelConfig.of(stock.config.to_dict())), {}
        theirs = stock.state_dict()
        for name, parts in weight_map(sizes).items():
            shape = theirs[parts[0][0]].shape
            if len(shape) != 2 or shape[1] % 32:
                continue
            if "gate_up_proj" in name and len(parts) == 1:  # one tensor in the file
                parts = [(parts[0][0], parts[0][1] // 2)] * 2
            made, at = [], 0
            for part, rows in parts:
                type_ = next(one for one in types if shape[1] % 256 == 0 or one in SMALL)
                packed, weights = blocks_of(type_, rows, shape[1])
                at = at if made and part == parts[0][0] else 0
                theirs[part][at : at + rows] = theirs[part].new_tensor(weights)
                made, at = [*made, packed], at + rows
            ours[name] = BlockStack(tuple(made))
        if sizes.tied:
            ours["lm_head.weight"] = ours["embed_tokens"]
        self.stock, self.context = stock, config.max_position_embeddings
        super().__init__(stock, "fp32", cache, self.context, ours)


@pytest.fixture(scope="module")
def wide():
    return Blocks(LlamaConfig(**WIDE), cache="fp16")


@pytest.fixture(scope="module")
def narrow():
    return Blocks(LlamaConfig(**NARROW), cache="fp16")


def distance(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def assert_near(model: Model, tokens: list[int]) -> None:
    """Compare with the same weights as numbers: about as near as in int8, where weights are rounded, too."""
    want, rounded = stock_logits(model.stock, tokens), Model(model.stock, "int8", context=model.context)
    got, other = (distance(Text(one).forward(tokens), want) for one in (model, rounded))
    assert got < min(1.5 * other, 0.1)


# longrope has factors for other widths
@pytest.mark.slow
@each("name", [name for name in (*CONFIGS, *RECURRENT) if not name.endswith("longrope")])
def test_logits_are_those_of_the_weights_as_numbers(name, monkeypatch):
    monkeypatch.setattr(tiny_models, "_SHAPE", SHAPE)
    config = {**CONFIGS, **RECURRENT}[name]()
    if getattr(config, "hidden_size_per_layer_input", 0):
        config.hidden_size_per_layer_input = 32
    model, tokens = Blocks(config), np.random.default_rng(0).integers(0, 320, 23).tolist()
    stacks = [name for name, weight in model.native.weights.items() if isinstance(weight, BlockStack)]
    assert len(stacks) >= 8
    assert_near(model, tokens)


@pytest.mark.slow
def test_logits_of_every_type_are_those_of_the_weights_as_numbers(wide, narrow):
    for model in (wide, narrow):
        stacks = [weight for weight in model.native.weights.values() if isinstance(weight, BlockStack)]
        types = {part.type for stack in stacks for part in stack.parts}
        assert types == set(FORMS if model is wide else SMALL)
        tokens = np.random.default_rng(0).integers(0, 331, 40).tolist()
        assert_near(model, tokens)


@pytest.mark.slow
def test_rows_are_the_same_in_trees_and_chains_among_any_threads_and_instructions(wide, narrow):
    rng = np.random.default_rng(1)
    for model in (wide, narrow):
        prompt, path = rng.integers(0, 331, 21).tolist(), rng.integers(0, 331, 4).tolist()
        first = None
        for isa in isas():
            with using(isa):
                text = Text(model)
                text.read(prompt, 21 if isa else 5)
                alone = [text.read([token], 1)[0] for token in path]
                first = alone if first is None else first
                assert np.array_equal(first, alone), isa
                text.truncate(len(prompt))
                for size in range(4, 10) if isa else (7,):
                    text.pool = POOLS[size % 3]
                    decoys = rng.integers(0, 331, size - 4).tolist()
                    # wrong tokens between the rows of the path, and after them
                    tree = text.forward(
                        [path[0], *decoys, *path[1:]], [-1, *[0] * len(decoys), 0, *range(size - 3, size - 1)]
                    )
                    assert np.array_equal(first, tree[[0, *range(size - 3, size)]]), (isa, size)


@pytest.mark.slow
def test_a_long_prompt_is_the_same_in_one_chunk_and_in_many(wide, narrow):
    for model in (wide, narrow):
        tokens, first = np.random.default_rng(2).integers(0, 331, 330).tolist(), None
        for pool, chunk in zip(POOLS, (330, 300, 37), strict=True):
            got = Text(model, pool).read(tokens, chunk)[-20:]
            first = got if first is None else first
            assert np.array_equal(first, got)


def test_adapters_are_added_to_stacks(wide):
    rng = np.random.default_rng(3)
    layer, given = wide.native.weights, {}
    for which, name in enumerate(("qkv_proj", "o_proj", "gate_up_proj", "down_proj")):
        matrix = layer[f"layers.1.{name}.weight"]
        a, b = rng.standard_normal((3, matrix.inputs)), rng.standard_normal((matrix.out, 3))
        given[1, which] = a * 0.1, b * 0.1, 0.7
    tokens, struct = rng.integers(0, 331, 9).tolist(), adapters(wide, given)
    plain, got = Text(wide).forward(tokens), Text(wide).forward(tokens, adapters=struct)
    state = wide.stock.model.layers[1]
    names, before = [("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)], {}
    for which, parts in enumerate(names):
        (a, b, scale), at = given[1, which], 0
        for part in parts:
            module = getattr(state.mlp if which > 1 else state.self_attn, part)
            before[module], rows = module.weight.data.clone(), module.weight.shape[0]
            module.weight.data += module.weight.new_tensor(scale * b[at : at + rows] @ a)
            at += rows
    try:
        want = stock_logits(wide.stock, tokens)
    finally:
        for module, weight in before.items():
            module.weight.data = weight
    assert distance(got, want) < 0.03 < 0.1 < distance(plain, want)


def test_a_tied_embedding_is_stored_once_and_read_from_the_head(narrow):
    weights = narrow.native.weights
    head = weights["lm_head.weight"]
    assert head is weights["embed_tokens"]
    once = sum(weight.nbytes for name, weight in weights.items() if name != "embed_tokens")
    assert narrow.native.nbytes == once
    ids = [0, 330, 17, 17, 16]
    rows = narrow.stock.model.embed_tokens.weight.detach()[ids].numpy()
    for isa in isas():
        with using(isa):
            assert np.array_equal(narrow.native.embed(ids), rows) and np.array_equal(head.rows(ids), rows)
    compute = NativeCompute(narrow.native, "int8")
    states = np.random.default_rng(4).standard_normal((3, 576)).astype(np.float32)
    whole, part = compute.target.head(states), compute.target.head_rows(ids)(states)
    assert distance(part, whole[:, ids]) < 0.02


@each("form", ["fp32", "bf16", "int8"])
@each("name", ["llama-one-key-head-tied-linear", "gemma3-grouped-mixed-window-linear"])
def test_a_packed_head_is_the_embedding_too(form, name):
    stock = stock_of(CONFIGS[name](), 0)
    vocabulary = stock.lm_head.weight.detach().numpy()
    head = PackedMatrix.pack(vocabulary, form, 0 if form in ("fp32", "bf16") else 32)
    apart = head.unpack()
    stored = apart if form == "fp32" else (apart.view(np.uint32) >> 16).astype(np.uint16)
    tied = Model(stock, form, given={"lm_head.weight": head, "embed_tokens": head})
    ids, tokens = [319, 0, 33, 5], np.random.default_rng(5).integers(0, 320, 12).tolist()
    scale = tied.config.embed_scale
    assert np.array_equal(head.rows(ids), apart[ids])
    assert np.array_equal(tied.native.embed(ids), apart[ids] * np.float32(scale) if scale != 1 else apart[ids])
    if form in ("fp32", "bf16"):  # as such numbers are stored without a head
        other = Model(stock, form, given={"lm_head.weight": head, "embed_tokens": stored})
        assert np.array_equal(Text(tied).forward(tokens), Text(other).forward(tokens))
        assert tied.native.nbytes == other.native.nbytes - stored.nbytes


def test_parts_that_do_not_fit_are_refused():
    config = LlamaConfig(**{**NARROW, "num_hidden_layers": 1})
    stock = stock_of(config, 0)
    one = BlockStack((blocks_of("Q4_0", 2 * 896, 576)[0],))
    uneven = BlockStack((blocks_of("Q4_0", 880, 576)[0], blocks_of("Q4_0", 912, 576)[0]))
    for stack in (one, uneven):
        with pytest.raises(LocalspecError, match="gate_up_proj of layer 0 are not gate and up"):
            Model(stock, given={"layers.0.gate_up_proj.weight": stack})
    with pytest.raises(LocalspecError, match=r"embed_tokens has the shape \[16, 576\]"):
        Model(stock, given={"embed_tokens": BlockStack((blocks_of("Q4_0", 16, 576)[0],))})
