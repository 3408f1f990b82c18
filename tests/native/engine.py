"""Models of the compiled library made of Hugging Face ones, with nothing between a test and the C functions but arrays."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from localspec.models.architecture import TransformerConfig, weight_map
from localspec.models.model_config import ModelConfig
from localspec.models.rope import Rope
from localspec.native.library import (
    ACTIVATIONS,
    FORMATS,
    Adapter,
    Delta,
    Layer,
    LayerInputs,
    Matrix,
    Request,
    address,
    check,
    int32,
    library,
    made,
)
from localspec.native.library import (
    ModelConfig as NativeConfig,
)
from localspec.native.matrix import PackedMatrix
from localspec.native.model import delta_sizes

ISAS = ("c", "neon", "avx2", "avx_vnni", "avx512_vnni")


def isas() -> list[int]:
    """What this machine has, the plain one first."""
    return [isa for isa in range(len(ISAS)) if library().ls_isa_supported(isa)]


@contextmanager
def using(isa: int) -> Iterator[None]:
    before = library().ls_isa_in_use()
    check(library().ls_isa_use(isa))
    try:
        yield
    finally:
        check(library().ls_isa_use(before))


class Pool:
    def __init__(self, threads: int) -> None:
        self.handle = made(library().ls_pool_new(threads))

    def __del__(self) -> None:
        library().ls_pool_free(self.handle)


POOL = Pool(1)


def linear(
    weight: PackedMatrix, x: np.ndarray, bias: np.ndarray | None = None, activation: str = "", pool: Pool = POOL
) -> np.ndarray:
    x = np.ascontiguousarray(x, np.float32)
    y = np.full((len(x), weight.out), np.nan, np.float32)
    check(
        library().ls_linear(
            pool.handle, weight.struct(bias), len(x), address(x), address(y), ACTIVATIONS.get(activation, 0)
        )
    )
    return y


class Model:
    """A model in `form` ("fp32", "bf16", "int8", "int4"), made of a stock one; quantised ones in groups of 32."""

    def __init__(self, stock: Any, form: str = "fp32", cache: str = "fp32", context: int = 512) -> None:
        config = ModelConfig.of(stock.config.to_dict())
        sizes = self.sizes = TransformerConfig.of(config)
        rope = Rope.of(config, context)
        state = {name: tensor.detach().float().numpy() for name, tensor in stock.state_dict().items()}
        weights = {
            ours: np.concatenate([state[part] for part, _ in parts]) for ours, parts in weight_map(sizes).items()
        }
        self.kept: list[Any] = [rope, weights]

        def matrix(name: str, interleave: bool = False) -> Matrix:
            packed = PackedMatrix.pack(
                weights[name + ".weight"], form, 0 if form in ("fp32", "bf16") else 32, interleave
            )
            self.kept.append(packed)
            return packed.struct(weights.get(name + ".bias"))

        weights.setdefault("lm_head.weight", weights["embed_tokens"])
        layers = (Layer * sizes.num_layers)()
        for index in range(sizes.num_layers):
            at = f"layers.{index}."
            recurrent = sizes.is_recurrent(index)
            mixers = ("delta.in_proj", "delta.out_proj") if recurrent else ("qkv_proj", "o_proj")
            linears = [matrix(at + name, name == "gate_up_proj") for name in (*mixers, "gate_up_proj", "down_proj")]
            delta = Delta(
                *(address(weights[f"{at}delta.{name}"]) for name in ("conv", "dt_bias", "A_log", "value_norm"))
                if recurrent
                else ()
            )
            self.kept.append(delta)
            norms = [
                address(weights.get(at + name))
                for name in ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "o_norm", "down_norm")
            ]
            window = sizes.sliding_windows[index]
            said = ctypes.addressof(delta) if recurrent else None
            layers[index] = Layer(*linears, *norms, window or 0, sizes.is_local(index), said)
            layers[index].scalar = address(weights.get(at + "layer_scalar"))
            if sizes.layer_sizes:
                own = sizes.layer_sizes[index]
                layers[index].num_kv_heads, layers[index].head_dim = own.num_kv_heads, own.head_dim
                layers[index].intermediate_size = own.intermediate_size
                layers[index].keys_from = 0 if own.keys_of is None else index - own.keys_of
                layers[index].keys_are_values = own.keys_are_values
            if sizes.per_layer_inputs[0]:
                layers[index].input_gate = matrix(at + "per_layer_input_gate")
                layers[index].input_projection = matrix(at + "per_layer_projection")
                layers[index].input_norm = address(weights[at + "per_layer_norm"])
        inputs, (width, tokens) = LayerInputs(), sizes.per_layer_inputs
        if width:
            inputs = LayerInputs(
                width, tokens, FORMATS["fp32"], width**0.5, sizes.hidden_size**-0.5,
                address(weights["embed_tokens_per_layer"]), matrix("per_layer_model_projection"),
                address(weights["per_layer_projection_norm"]),
            )  # fmt: skip
        self.config = NativeConfig(
            sizes.num_layers, sizes.hidden_size, sizes.intermediate_size, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim,
            rope.rotary_dim, sizes.vocab_size, FORMATS[cache], FORMATS["fp32"], sizes.rms_norm_eps, rope.attention_scaling,
            1.0, sizes.query_scalar or sizes.head_dim, sizes.embed_scale, sizes.norm_offset, sizes.residual_scale,
            sizes.logit_scale, ACTIVATIONS[sizes.activation],
            address(weights["embed_tokens"]), matrix("lm_head"), address(weights["norm"]), address(rope.inv_freq),
            address(rope.local.inv_freq if rope.local else None), address(rope.query_factors),
            0 if rope.query_factors is None else len(rope.query_factors), rope.query_period, ctypes.cast(layers, ctypes.c_void_p),
            sizes.gated, delta_sizes(sizes), 0 if rope.local is None else rope.local.rotary_dim, sizes.value_norm,
            sizes.logit_cap, inputs,
        )  # fmt: skip
        self.kept.append(layers)
        self.handle = made(library().ls_model_new(self.config))

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            library().ls_model_free(self.handle)


class Text:
    """A model's cache, and forwards after what it holds."""

    def __init__(self, model: Model, pool: Pool = POOL, slots: int = 512) -> None:
        self.model, self.pool = model, pool
        self.cache = made(library().ls_cache_new(model.handle, slots))
        self.hidden = np.empty(0, np.float32)

    def __del__(self) -> None:
        library().ls_cache_free(self.cache)

    @property
    def length(self) -> int:
        return library().ls_cache_length(self.cache)

    def forward(
        self,
        tokens: Sequence[int] | None,
        parents: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        inputs: np.ndarray | None = None,
        layers: Sequence[int] | None = None,
        adapters: Any = None,
        logits_from: int = 0,
    ) -> np.ndarray:
        """Logits [rows - logits_from, vocab_size]; `hidden` and `argmax` hold the rest."""
        rows, sizes = len(inputs if tokens is None else tokens), self.model.sizes
        self.hidden = np.full((rows, sizes.hidden_size), np.nan, np.float32)
        logits = np.full((rows - logits_from, sizes.vocab_size), np.nan, np.float32)
        self.argmax = np.full(rows - logits_from, -7, np.int32)
        given = [None if values is None else int32(values) for values in (tokens, parents, positions, layers)]
        inputs = None if inputs is None else np.ascontiguousarray(inputs, np.float32)
        request = Request(
            rows, address(given[0]), address(inputs), address(given[1]), address(given[2]), address(given[3]), len(layers or ()),
            None if adapters is None else ctypes.cast(adapters, ctypes.c_void_p), address(self.hidden), address(logits),
            address(self.argmax), logits_from,
        )  # fmt: skip
        check(library().ls_forward(self.model.handle, self.cache, self.pool.handle, request))
        return logits

    def keep(self, path: Sequence[int]) -> None:
        numbers = int32(path)
        check(library().ls_cache_keep(self.cache, address(numbers), len(numbers)))

    def truncate(self, length: int) -> None:
        check(library().ls_cache_truncate(self.cache, length))

    def read(self, tokens: Sequence[int], chunk: int) -> np.ndarray:
        """All tokens, `chunk` at a time, committed; their logits."""
        parts = []
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            parts.append(self.forward(part))
            self.keep(range(len(part)))
        return np.concatenate(parts)


def adapters(model: Model, given: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, float]]) -> Any:
    """(layer, 0 to 3) -> A [rank, in], B [out, rank], scale, as the library takes them."""
    made_of = (Adapter * (4 * model.sizes.num_layers))()
    for (layer, which), (a, b, scale) in given.items():
        a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b.T, np.float32)
        model.kept += [a, b]
        made_of[4 * layer + which] = Adapter(address(a), address(b), len(a), scale)
    return made_of


@torch.no_grad()
def stock_logits(stock: Any, tokens: Sequence[int]) -> np.ndarray:
    return stock(torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()
