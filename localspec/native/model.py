"""A transformer of the compiled library, made of packed weights: tokens or embeddings in, states and logits out."""

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.models.architecture import TransformerConfig
from localspec.models.rope import Rope
from localspec.native.cache import NativeCache
from localspec.native.library import (
    EMBED_NONE,
    FORMATS,
    Adapter,
    Layer,
    Matrix,
    ModelConfig,
    Request,
    address,
    check,
    int32,
    library,
    made,
)
from localspec.native.logits import NativeLogits
from localspec.native.matrix import PackedMatrix
from localspec.native.threads import Threads

Floats = npt.NDArray[np.float32]
Weights = Mapping[str, Any]  # a PackedMatrix for each linear layer, arrays for norms, biases and the embedding
LINEARS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@dataclass(frozen=True)
class Rows:
    """What a forward reads: token ids, or `inputs` [rows, hidden_size] where there is none (an id below 0).

    Each row sees the committed tokens and its ancestors by `parents`, -1 being the last committed token; without them
    rows are a chain. `positions` are where they stand in the text, by default the committed length plus the depth.
    """

    tokens: Sequence[int]
    inputs: Floats | None = None
    parents: Sequence[int] | None = None
    positions: Sequence[int] | None = None


@dataclass(frozen=True)
class LowRank:
    """What adapts a linear layer for one forward: y += scale * B (A x); a [rank, in], b [rank, out]: B transposed."""

    a: Floats
    b: Floats
    scale: float


class NativeModel:
    """Layers, final norm, and embedding and head where it has them."""

    def __init__(
        self, sizes: TransformerConfig, rope: Rope, weights: Weights, threads: Threads, cache_format: str
    ) -> None:
        """`weights` have the names of `weight_map`. A tied model has its head packed all the same, or none.

        Raises LocalspecError for weights that do not fit the sizes.
        """
        self.sizes, self.threads = sizes, threads
        self._weights = weights  # which the library reads
        self._layers = (Layer * sizes.num_layers)(*(self._layer(index) for index in range(sizes.num_layers)))
        self._inv_freq = np.ascontiguousarray(rope.inv_freq, np.float32)
        embed, head = weights.get("embed_tokens"), weights.get("lm_head.weight")
        embed_format = EMBED_NONE if embed is None else FORMATS["bf16" if embed.dtype == np.uint16 else "fp32"]
        config = ModelConfig(
            sizes.num_layers, sizes.hidden_size, sizes.intermediate_size, sizes.num_heads, sizes.num_kv_heads,
            sizes.head_dim, rope.rotary_dim, sizes.vocab_size, FORMATS[cache_format], embed_format, sizes.rms_norm_eps,
            rope.attention_scaling, address(embed), head.struct() if head else Matrix(), address(weights.get("norm")),
            address(self._inv_freq), ctypes.addressof(self._layers),
        )  # fmt: skip
        self._library = library()
        self.handle = made(self._library.ls_model_new(config))
        weakref.finalize(self, self._library.ls_model_free, self.handle)

    def _layer(self, index: int) -> Layer:
        prefix = f"layers.{index}."
        linears = [
            self._weights[f"{prefix}{name}.weight"].struct(self._weights.get(f"{prefix}{name}.bias"))
            for name in LINEARS
        ]
        names = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")
        norms = [address(self._weights.get(prefix + name)) for name in names]
        return Layer(*linears, *norms, self.sizes.sliding_windows[index] or 0)

    @property
    def nbytes(self) -> int:
        """Bytes of its weights, mapped ones too: a forward reads them all."""
        return sum(
            (weight.data if isinstance(weight, PackedMatrix) else weight).nbytes for weight in self._weights.values()
        )

    @property
    def embedding_bytes(self) -> int:
        """Those of the weights that are looked up by token."""
        embedding = self._weights.get("embed_tokens")
        return 0 if embedding is None else int(embedding.nbytes)

    def cache(self, slots: int) -> NativeCache:
        """Returns an empty cache with room for `slots` tokens."""
        return NativeCache(self.handle, slots)

    # -- forwards -----------------------------------------------------------------------------------------------------

    def forward(self, rows: Rows, cache: NativeCache, logits_from: int = 0) -> tuple[NativeLogits, Floats]:
        """Reads rows after the committed tokens. Returns the logits of those from `logits_from` on, and all states.

        Raises LocalspecError for ids, parents or positions that are not possible, and where the cache has no room.
        """
        count = len(rows.tokens)
        hidden = np.empty((count, self.sizes.hidden_size), np.float32)
        logits = np.empty((count - logits_from, self.sizes.vocab_size), np.float32)
        argmax = np.empty(count - logits_from, np.int32)
        request = Request(logits=logits.ctypes.data, argmax=argmax.ctypes.data, logits_from=logits_from)
        self._run(rows, cache, request, hidden)
        return NativeLogits(logits, argmax.tolist()), hidden

    def states(
        self,
        rows: Rows,
        cache: NativeCache,
        layers: Sequence[int] | None = None,
        adapters: Mapping[int, Mapping[str, LowRank]] | None = None,
    ) -> Floats:
        """Returns states after the final norm [rows, hidden_size], through all layers or some, in ascending order.

        `adapters` act in this forward only, by layer and by the name of the linear layer. Raises what `forward` does.
        """
        hidden, request = np.empty((len(rows.tokens), self.sizes.hidden_size), np.float32), Request()
        if layers is not None:
            kept = int32(layers)
            request.layers, request.num_layers = address(kept), len(kept)
        if adapters:
            given = _adapters(adapters, self.sizes.num_layers)
            request.adapters = ctypes.addressof(given)
        self._run(rows, cache, request, hidden)
        return hidden

    def _run(self, rows: Rows, cache: NativeCache, request: Request, hidden: Floats) -> None:
        tokens = int32(rows.tokens)
        request.rows, request.tokens, request.hidden = len(tokens), tokens.ctypes.data, hidden.ctypes.data
        if rows.inputs is not None:
            inputs = np.ascontiguousarray(rows.inputs, np.float32)
            self._refuse_shape(inputs, len(tokens))
            request.inputs = inputs.ctypes.data
        if rows.parents is not None:
            parents = int32(rows.parents)
            request.parents = parents.ctypes.data
        if rows.positions is not None:
            positions = int32(rows.positions)
            request.positions = positions.ctypes.data
        check(self._library.ls_forward(self.handle, cache.handle, self.threads.handle, request))

    def _refuse_shape(self, inputs: Floats, count: int) -> None:
        assert inputs.shape == (count, self.sizes.hidden_size), inputs.shape

    def embed(self, tokens: Sequence[int]) -> Floats:
        """Returns the input embeddings of token ids, [tokens, hidden_size]. Raises LocalspecError for unknown ids."""
        ids, rows = int32(tokens), np.empty((len(tokens), self.sizes.hidden_size), np.float32)
        check(self._library.ls_embed(self.handle, len(ids), address(ids), address(rows)))
        return rows

    def head(self, hidden: Floats) -> NativeLogits:
        """Returns the logits of states after the final norm."""
        hidden = np.ascontiguousarray(hidden, np.float32)
        self._refuse_shape(hidden, len(hidden))
        logits = np.empty((len(hidden), self.sizes.vocab_size), np.float32)
        argmax = np.empty(len(hidden), np.int32)
        results = address(logits), address(argmax)
        check(self._library.ls_head(self.handle, self.threads.handle, len(hidden), address(hidden), *results))
        return NativeLogits(logits, argmax.tolist())


def _adapters(given: Mapping[int, Mapping[str, LowRank]], layers: int) -> Any:
    """[layers][4] of what the library takes; layers without one have rank 0."""
    every = ((Adapter * len(LINEARS)) * layers)()
    for layer, by_name in given.items():
        for name, one in by_name.items():
            every[layer][LINEARS.index(name)] = Adapter(address(one.a), address(one.b), len(one.a), one.scale)
    return every
