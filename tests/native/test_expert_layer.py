"""A layer of experts in few bits is compared with torch, which computes with the same weights unpacked.

Attention adds nothing here, and norm and router are in fp32, so that both choose the same experts for each row. In a
whole model, rounding may change the choice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from each import each
from gguf import GGMLQuantizationType, dequantize
from native.engine import Model, Pool, Text, isas, stock_logits, using
from native.stock_models import stock_of
from native.test_block_models import stored_of
from tiny_models import VOCABULARY
from transformers import GptOssConfig, Qwen3MoeConfig

from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix

HIDDEN, SIZE, COUNT, USED = 512, 256, 6, 2
POOLS = [Pool(1), Pool(2), Pool(5)]
TYPES = ["Q8_0", "Q4_K", "Q6_K", "MXFP4"]  # Q6_K reads sums of 16 inputs
_SHAPE = {
    "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": VOCABULARY, "max_position_embeddings": 512, "num_experts_per_tok": USED,
}  # fmt: skip
CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen3_moe": lambda: Qwen3MoeConfig(**_SHAPE, num_experts=COUNT, moe_intermediate_size=SIZE, norm_topk_prob=False),
    "gpt_oss": lambda: GptOssConfig(**_SHAPE, num_local_experts=COUNT, intermediate_size=SIZE, swiglu_limit=0.6),
}
Rows = np.ndarray
Change = Callable[[Rows], Rows]


class Experts(NamedTuple):
    """The numbers of all experts: matrices [experts, out, in], and biases [experts, out]."""

    gates: Rows
    ups: Rows
    downs: Rows
    biases: tuple[Rows, Rows, Rows]


def in_steps(of: int) -> Change:
    """Return the rounding of a product's inputs: to integers from -127 to 127 times a scale for each `of` inputs."""

    def change(x: Rows) -> Rows:
        x = x.astype(np.float32).reshape(-1, of)
        scale = np.abs(x).max(-1, keepdims=True) / 127
        return (np.rint(x / scale) * scale.astype(float)).reshape(-1)

    return change


def gate_of(name: str, gate: Rows, up: Rows) -> Rows:
    if name == "qwen3_moe":
        return gate / (1 + np.exp(-gate)) * up
    gate, up = gate.clip(max=0.6), up.clip(-0.6, 0.6)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


class Layer:
    """A model of one layer in transformers, with experts of a type of blocks, and the same model in the library."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.stock = name, stock_of(CONFIGS[name](), 0)
        layer = self.stock.model.layers[0]
        with torch.no_grad():
            for parameter in layer.self_attn.o_proj.parameters():
                parameter.zero_()
        shapes = (2, 2 * COUNT * SIZE, HIDDEN), (1, COUNT * HIDDEN, SIZE)
        numbers, packed = zip(*(self._packed(kind, *shape) for shape in shapes), strict=True)
        gates, ups = numbers[0].reshape(2, COUNT, SIZE, HIDDEN)
        self._fill(layer.mlp.experts, gates, ups, numbers[1].reshape(COUNT, HIDDEN, SIZE))
        given = {f"layers.0.experts.{of}_proj.weight": one for of, one in zip(("gate_up", "down"), packed, strict=True)}
        self.given = given
        self.model = Model(self.stock, context=512, given=given)

    def _packed(self, kind: str, parts: int, rows: int, inputs: int) -> tuple[Rows, Any]:
        if kind == "int8":
            weights = np.random.default_rng(rows).normal(0, inputs**-0.5, (rows, inputs)).astype(np.float32)
            matrix = PackedMatrix.pack(weights, kind, 32, interleave=parts == 2)
            return matrix.unpack(interleave=parts == 2), matrix
        stored = stored_of(kind, rows, inputs)
        stack = BlockStack(tuple(BlockMatrix.pack(part, inputs, kind) for part in np.split(stored, parts)))
        return dequantize(stored, GGMLQuantizationType[kind]), stack

    @torch.no_grad()
    def _fill(self, experts: Any, gates: Rows, ups: Rows, downs: Rows) -> None:
        """Give the stock model these matrices. In gpt-oss they are transposed, with gates and ups in turns."""
        biases = tuple(np.zeros((COUNT, size)) for size in (SIZE, SIZE, HIDDEN))
        both, down = torch.from_numpy(np.concatenate([gates, ups], 1)), torch.from_numpy(downs)
        if self.name == "gpt_oss":
            both = torch.from_numpy(np.stack([gates, ups], 2)).reshape(COUNT, 2 * SIZE, HIDDEN).swapaxes(1, 2)
            down = down.swapaxes(1, 2)
            gate_up = experts.gate_up_proj_bias.double().numpy()
            biases = gate_up[:, ::2], gate_up[:, 1::2], experts.down_proj_bias.double().numpy()
        experts.gate_up_proj.copy_(both)
        experts.down_proj.copy_(down)
        self.experts = Experts(gates, ups, downs, biases)

    def routed(self, x: Rows) -> list[tuple[int, float]]:
        """Return the chosen experts of a row, and their weights. Rounding cannot change the choice: that is asserted."""
        router = self.stock.model.layers[0].mlp
        router = router.router if self.name == "gpt_oss" else router.gate
        logits = router.weight.detach().double().numpy() @ x
        if self.name == "gpt_oss":
            logits = logits + router.bias.detach().double().numpy()
        order = np.argsort(-logits)
        assert logits[order[USED - 1]] - logits[order[USED]] > 1e-3
        chances = np.exp(logits - logits.max())
        total = chances[order[:USED]].sum() if self.name == "gpt_oss" else chances.sum()
        return [(int(expert), chances[expert] / total) for expert in order[:USED]]

    def mixed(self, x: Rows, change: Change) -> Rows:
        """Return the experts' output for a row `x`. `change` rounds the inputs of each product, or leaves them."""
        (gates, ups, downs, biases), total = self.experts, np.zeros(HIDDEN)
        given = change(x)
        for expert, weight in self.routed(x):
            gate, up = gates[expert] @ given + biases[0][expert], ups[expert] @ given + biases[1][expert]
            total += weight * (downs[expert] @ change(gate_of(self.name, gate, up)) + biases[2][expert])
        return total

    def norm(self, x: Rows, of: Any) -> Rows:
        eps = self.stock.config.rms_norm_eps
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * of.weight.detach().double().numpy()

    def states(self, x: Rows, change: Change) -> Rows:
        """Return the states after the last norm."""
        read = self.norm(x, self.stock.model.layers[0].post_attention_layernorm)
        return self.norm(x + [self.mixed(row, change) for row in read], self.stock.model.norm)


def unchanged(x: Rows) -> Rows:
    return x


def inputs(rows: int) -> Rows:
    """Return small states, so that the experts' output is most of the result."""
    return np.random.default_rng(3).normal(0, 0.02, (rows, HIDDEN)).astype(np.float32)


def distances(got: Rows, want: Rows) -> Rows:
    """Return the relative distance of each row."""
    found: Rows = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
    return found


@pytest.mark.slow
@each("kind", TYPES)
@each("name", CONFIGS)
def test_each_row_gets_the_sum_of_its_experts(name: str, kind: str) -> None:
    assert_sums_of_experts(Layer(name, kind), in_steps(32))


@pytest.mark.slow
@each("name", CONFIGS)
def test_each_row_gets_the_sum_of_its_experts_in_int8(name: str) -> None:
    assert_sums_of_experts(Layer(name, "int8"), in_steps(128))


def assert_sums_of_experts(layer: Layer, steps: Change) -> None:
    x = inputs(16)
    read = layer.norm(x.astype(float), layer.stock.model.layers[0].post_attention_layernorm)
    with torch.no_grad():  # `mixed`, the reference of this test, computes what transformers does
        stock = layer.stock.model.layers[0].mlp(torch.from_numpy(read[None]).float())
    stock = stock[0] if isinstance(stock, tuple) else stock
    plain = np.array([layer.mixed(row, unchanged) for row in read])
    assert distances(stock.reshape(plain.shape).double().numpy(), plain).max() < 1e-5
    assert {expert for row in read for expert, _ in layer.routed(row)} == {*range(COUNT)}
    want, exact = layer.states(x.astype(float), steps), layer.states(x.astype(float), unchanged)
    first = None
    for isa in isas():
        with using(isa):
            for pool in POOLS:
                text = Text(layer.model, pool)
                text.forward(None, inputs=x)
                first = text.hidden if first is None else first
                assert np.array_equal(first, text.hidden), isa
                single = Text(layer.model, pool)
                for row in range(4):
                    single.forward(None, inputs=x[row : row + 1])
                    assert np.array_equal(single.hidden[0], first[row]), (isa, row)
    assert distances(first, want).max() < 1e-4 < 1e-3 < distances(first, exact).max() < 0.05


def of_one_channel_each() -> Any:
    """Return a stock model whose experts each add one to the channel of their number. Expert 4 is the likeliest."""
    stock = stock_of(CONFIGS["gpt_oss"](), 0)
    mlp, attention = stock.model.layers[0].mlp, stock.model.layers[0].self_attn
    with torch.no_grad():
        for one in (mlp.router.weight, mlp.router.bias, mlp.experts.down_proj, *attention.o_proj.parameters()):
            one.zero_()
        mlp.router.bias[4] = 1.0
        mlp.experts.down_proj_bias.copy_(torch.eye(COUNT, HIDDEN))
        stock.model.norm.weight.fill_(1.0)
    return stock


def test_of_equally_likely_experts_the_first_are_chosen() -> None:
    text = Text(Model(of_one_channel_each(), context=512))
    text.forward(None, inputs=inputs(3))
    for row in text.hidden:
        assert np.argsort(-np.abs(row))[:USED].tolist() == [4, 0]
        assert row[4] / row[0] == pytest.approx(np.e, rel=0.2)


def test_the_scale_of_an_expert_is_its_own() -> None:
    scale = np.array([2, 3, 5, 7, 11, 13], np.float32)
    text = Text(Model(of_one_channel_each(), context=512, given={"layers.0.expert_scale": scale}))
    text.forward(None, inputs=inputs(3))
    for row in text.hidden:
        assert row[4] / row[0] == pytest.approx(np.e * 11 / 2, rel=0.2)


@each("normalised", [False, True])
def test_all_experts_may_be_used(normalised: bool) -> None:
    shape = {**_SHAPE, "num_experts_per_tok": COUNT}
    stock = stock_of(
        Qwen3MoeConfig(**shape, num_experts=COUNT, moe_intermediate_size=SIZE, norm_topk_prob=normalised), 0
    )
    got = Text(Model(stock, context=512)).forward([5, 6, 7])
    assert np.allclose(got, stock_logits(stock, [5, 6, 7]), atol=1e-4)
