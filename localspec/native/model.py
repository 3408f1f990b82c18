"""A transformer of the compiled library, from packed weights: tokens or embeddings in, states and logits out."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from localspec.decoding.compute import Floats, LowRank, PackedAdapters
from localspec.decoding.forward import TokenCache
from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig
from localspec.families.rope import Rope
from localspec.machine.library import (
    ACTIVATIONS,
    FORMATS,
    Adapter,
    Delta,
    DeltaSizes,
    ExpertSizes,
    Layer,
    LayerInputs,
    Matrix,
    ModelConfig,
    Request,
    Table,
    address,
    check,
    free_with,
    int32,
    library,
    valid_handle,
)
from localspec.native.cache import NativeCache
from localspec.native.linear import NativeLinear
from localspec.native.logits import NativeLogits
from localspec.native.short_head import ShortHead
from localspec.native.threads import Threads
from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix
from localspec.weights.recipe import HEAD_BLOCKS

# A PackedMatrix or a BlockStack for each linear layer; arrays for norms and biases; either for tables.
Weights = Mapping[str, Any]
LINEARS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
INT8_GROUP = 32  # inputs of a drafter's matrix that share a scale
MOST_TEXTS = 32  # read at once
_NO_WINDOW, _MOST_POSITIONS = 0, 2**31  # a window longer than any text counts as none


class NativeAdapters:
    """Low-rank changes of linear layers, by layer and name: y += scale * B (A x)."""

    def __init__(self, layers: int, adapters: Mapping[int, Mapping[str, LowRank]]) -> None:
        self._arrays: list[Floats] = []  # kept alive for the library
        self.every = ((Adapter * len(LINEARS)) * layers)()  # missing ones have rank 0
        for layer, by_name in adapters.items():
            for name, adapter in by_name.items():
                a, b = (np.ascontiguousarray(part, np.float32) for part in (adapter.a, adapter.b.T))
                self._arrays += [a, b]
                self.every[layer][LINEARS.index(name)] = Adapter(address(a), address(b), len(a), adapter.scale)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)


class NativeModel:
    """A transformer: layers and final norm, perhaps embedding and head. It is the `RowModel` of this backend."""

    def __init__(
        self,
        sizes: TransformerConfig,
        rope: Rope,
        weights: Weights,
        threads: Threads,
        cache_format: str,
        short: ShortHead | None = None,
        on_disk: bool = False,
    ) -> None:
        """Build the model. `weights` have the names of `weight_map`; a model without tokens has neither embedding nor
        head.

        The head `short` replaces the head in `weights`. With `on_disk`, some experts are in a mapped file, and the
        experts that a forward chooses are read in advance. Raises LocalspecError for weights that do not fit the sizes.
        """
        weights = weights if short is None else {**weights, "lm_head.weight": short.stack}
        self.sizes, self.rope, self.threads, self.weights, self.short = sizes, rope, threads, weights, short
        self._parts: list[Delta] = []  # of recurrent layers, kept alive for the library
        self._arrays: list[Floats] = []  # likewise: biases in another order, and scaled norms
        layers = (Layer * sizes.num_layers)(*(self._layer(index) for index in range(sizes.num_layers)))
        inv_freq, local = np.ascontiguousarray(rope.inv_freq, np.float32), rope.local
        local_inv_freq = None if local is None else np.ascontiguousarray(local.inv_freq, np.float32)
        factors = None if rope.query_factors is None else np.ascontiguousarray(rope.query_factors, np.float32)
        embed, head = weights.get("embed_tokens"), weights.get("lm_head.weight")
        norm = self._vector("norm", sizes.hidden_size)
        embed_scale = sizes.embed_scale if embed is None else as_fine(sizes.embed_scale, embed)
        config = ModelConfig(
            sizes.num_layers, sizes.hidden_size, sizes.intermediate_size, sizes.num_heads, sizes.num_kv_heads,
            sizes.head_dim, rope.rotary_dim, sizes.vocab_size, FORMATS[cache_format], sizes.rms_norm_eps,
            rope.attention_scaling, 1.0 if local is None else local.attention_scaling,
            sizes.query_scalar or sizes.head_dim, embed_scale, sizes.norm_offset,
            sizes.residual_scale, sizes.logit_scale, ACTIVATIONS[sizes.activation],
            self._table("embed_tokens", sizes.vocab_size, sizes.hidden_size), head.struct() if head else Matrix(),
            address(norm), address(inv_freq), address(local_inv_freq), address(factors),
            0 if factors is None else len(factors), rope.query_period, ctypes.addressof(layers),
            sizes.gated, delta_sizes(sizes), 0 if local is None else local.rotary_dim, sizes.value_norm,
            sizes.logit_cap, self._layer_inputs(), sizes.interleaved, expert_sizes(sizes, on_disk),
            sizes.gate_limit,
        )  # fmt: skip
        self._library = library()
        self.handle = valid_handle(self._library.ls_model_new(config))
        free_with(self, "ls_model_free", self.handle)

    def _layer(self, index: int) -> Layer:
        prefix, sizes, layer_sizes = f"layers.{index}.", self.sizes, self.sizes.sizes_of(index)

        def linear(name: str) -> Matrix:
            matrix: PackedMatrix | BlockStack = self.weights[f"{prefix}{name}.weight"]
            return matrix.struct(self._vector(f"{prefix}{name}.bias", matrix.out))

        def vector(name: str, size: int = sizes.hidden_size) -> int | None:
            return address(self._vector(prefix + name, size))

        window, recurrent = sizes.sliding_windows[index] or _NO_WINDOW, sizes.is_recurrent(index)
        mixers = ("delta.in_proj", "delta.out_proj") if recurrent else LINEARS[:2]
        no_mlp = sizes.experts is not None and not sizes.experts.dense
        layer = Layer(
            *map(linear, mixers), *((Matrix(), Matrix()) if no_mlp else map(linear, LINEARS[2:])),
            vector("input_layernorm"), vector("post_attention_layernorm"),
            *(vector(name, layer_sizes.head_dim) for name in ("q_norm", "k_norm")),
            vector("o_norm"), vector("down_norm"),
            window if window < _MOST_POSITIONS else _NO_WINDOW, self.rope.local is not None and sizes.is_local(index),
            self._delta(prefix) if recurrent else None,
        )  # fmt: skip
        if sizes.layer_sizes:
            layer.num_kv_heads, layer.head_dim = layer_sizes.num_kv_heads, layer_sizes.head_dim
            layer.intermediate_size = layer_sizes.intermediate_size
            layer.keys_from = (
                0 if layer_sizes.keys_of is None else (-1 if sizes.borrows else index) - layer_sizes.keys_of
            )
            layer.keys_are_values = layer_sizes.keys_are_values
        layer.scalar = vector("layer_scalar", 1)
        if sizes.per_layer_inputs[0]:
            layer.input_gate, layer.input_projection = linear("per_layer_input_gate"), linear("per_layer_projection")
            layer.input_norm = vector("per_layer_norm")
        if sizes.experts:
            layer.router = linear("router")
            layer.expert_gate_up, layer.expert_down = linear("experts.gate_up_proj"), linear("experts.down_proj")
            if (bias := self.weights.get(f"{prefix}experts.gate_up_proj.bias")) is not None:
                # unlike the matrix, [gates of all, ups of all], the library wants biases as [gates, ups] of each expert
                by_expert = bias.reshape(2, sizes.experts.count, sizes.experts.size).swapaxes(0, 1).copy()
                self._arrays.append(by_expert)
                layer.expert_gate_up.bias = address(by_expert)
            layer.shared_gate = vector("shared_gate")
            layer.router_norm, layer.expert_norm = self._router_norm(prefix), vector("expert_norm")
            layer.mlp_out_norm, layer.expert_out_norm = vector("mlp_out_norm"), vector("expert_out_norm")
            layer.expert_scale = vector("expert_scale", sizes.experts.count)
        layer.sinks = vector("sinks", sizes.num_heads)
        return layer

    def _router_norm(self, prefix: str) -> int | None:
        """Return the address of the weights of a router's norm, divided by √hidden_size; None without a norm."""
        if (norm := self._vector(prefix + "router_norm", self.sizes.hidden_size)) is None:
            return None
        self._arrays.append(norm * np.float32(self.sizes.hidden_size**-0.5))
        return address(self._arrays[-1])

    def _delta(self, prefix: str) -> int:
        """Return the address of a C structure with the parts that only a recurrent layer has."""
        sizes = self.sizes.delta
        assert sizes is not None
        conv = self.weights[prefix + "delta.conv"].reshape(-1)  # [channels, (1,) taps]
        shapes = {"dt_bias": sizes.value_heads, "A_log": sizes.value_heads, "value_norm": sizes.value_dim}
        vectors = [self._vector(f"{prefix}delta.{name}", size) for name, size in shapes.items()]
        vectors.insert(0, self._checked(prefix + "delta.conv", conv, sizes.channels * sizes.taps))
        self._parts.append(Delta(*map(address, vectors)))
        return ctypes.addressof(self._parts[-1])

    def _layer_inputs(self) -> LayerInputs:
        sizes, (width, tokens) = self.sizes, self.sizes.per_layer_inputs
        if not width:
            return LayerInputs()
        name = "embed_tokens_per_layer"
        return LayerInputs(
            width, tokens, as_fine(width**0.5, self.weights[name]), sizes.hidden_size**-0.5,
            self._table(name, tokens, sizes.num_layers * width),
            self.weights["per_layer_model_projection.weight"].struct(),
            address(self._vector("per_layer_projection_norm", width)),
        )  # fmt: skip

    def _table(self, name: str, rows: int, columns: int) -> Table:
        """Return a table that is read by token id. It is empty if the model has no such table.

        Raises LocalspecError for an unexpected shape.
        """
        stored: Any = self.weights.get(name)
        if stored is None:
            return Table()
        matrix = stored if isinstance(stored, PackedMatrix | BlockStack) else None
        shape = (matrix.out, matrix.inputs) if matrix else stored.shape
        if shape != (rows, columns):
            raise LocalspecError(
                f"The tensor {name} has the shape {list(shape)} instead of [{rows}, {columns}]; fetch the model again."
            )
        return Table(matrix=matrix.struct()) if matrix else Table(address(stored), FORMATS[_table_format(stored)])

    def _vector(self, name: str, size: int) -> Floats | None:
        """Return the vector `name` in the weights, or None. Raises LocalspecError unless it is fp32 [size]."""
        stored = self.weights.get(name)
        return None if stored is None else self._checked(name, stored, size)

    def _checked(self, name: str, stored: Any, size: int) -> Floats:
        if (stored.dtype, stored.shape) != (np.float32, (size,)):
            raise LocalspecError(
                f"The tensor {name} is {stored.dtype} {list(stored.shape)} instead of float32 [{size}]; fetch the "
                "model again."
            )
        vector: Floats = stored
        return vector

    @property
    def nbytes(self) -> int:
        """Bytes of the weights.

        Mapped weights are included, because forwards read them. A tied embedding counts once.
        """
        return sum(weight.nbytes for weight in {id(weight): weight for weight in self.weights.values()}.values())

    def cache(self, slots: int) -> NativeCache:
        return NativeCache(self.handle, slots)

    # -- forwards -----------------------------------------------------------------------------------------------------

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None,
        cache: NativeCache,
        logits_from: int = 0,
        inner: Sequence[int] = (),
    ) -> tuple[NativeLogits, Floats, Floats | None]:
        """Read rows of tokens after the committed tokens. Return logits from row `logits_from` on, and all rows'
        states.

        Each row sees the committed tokens and its ancestors by `parents`, where -1 is the last committed token. Without
        `parents` rows are a chain. The cache grows if it has no room. With `inner` also return states [rows, len(inner)
        * hidden_size]: n in `inner` requests the states before layer n, or after the final norm if there are n layers.
        Raises LocalspecError for impossible ids, parents and layers, and MemoryError if memory runs out.
        """
        count, ids = len(tokens), int32(tokens)
        columns = self.sizes.vocab_size if self.short is None else self.short.matrix.out
        logits = np.empty((count - logits_from, columns), np.float32)
        argmax = np.empty(count - logits_from, np.int32)
        request = Request(
            tokens=ids.ctypes.data, logits=logits.ctypes.data, argmax=argmax.ctypes.data, logits_from=logits_from
        )
        if parents is not None:
            above = int32(parents)
            request.parents = above.ctypes.data
        states = None
        if inner:
            numbers, states = int32(inner), np.empty((count, len(inner) * self.sizes.hidden_size), np.float32)
            request.inner_at, request.num_inner, request.inner = numbers.ctypes.data, len(numbers), states.ctypes.data
        if self.short is not None:
            self.short.add(tokens)
        hidden = self._run(request, count, cache)
        if self.short is not None:
            return self.short.logits(logits, argmax.tolist()), hidden, states
        return NativeLogits(logits, argmax.tolist()), hidden, states

    def forward_each(self, tokens: Sequence[int], caches: Sequence[NativeCache]) -> tuple[NativeLogits, Floats]:
        """Read one token after each cache. Return a row of logits and a row of states for each.

        Each row is bit-identical to the row of a forward over its cache only. Raises LocalspecError for recurrent
        layers and more than `MOST_TEXTS` caches.
        """
        count, ids = len(tokens), int32(tokens)
        for cache in caches:
            cache.reserve(cache.length + 1)
        logits, argmax = np.empty((count, self.sizes.vocab_size), np.float32), np.empty(count, np.int32)
        hidden = np.empty((count, self.sizes.hidden_size), np.float32)
        request = Request(
            rows=count, tokens=ids.ctypes.data, logits=logits.ctypes.data, argmax=argmax.ctypes.data,
            hidden=hidden.ctypes.data,
        )  # fmt: skip
        handles = (ctypes.c_void_p * count)(*(cache.handle for cache in caches))
        check(self._library.ls_forward_each(self.handle, handles, self.threads.handle, request))
        return NativeLogits(logits, argmax.tolist()), hidden

    def adapters(self, adapters: Mapping[int, Mapping[str, LowRank]]) -> NativeAdapters:
        return NativeAdapters(self.sizes.num_layers, adapters)

    def read_rows(
        self,
        inputs: Floats,
        cache: TokenCache,
        layers: Sequence[int] | None = None,
        adapters: PackedAdapters | None = None,
    ) -> Floats:
        """Read inputs [rows, hidden_size] instead of embeddings, as a chain, through all layers, or through `layers` in
        ascending order.

        Return states after the final norm [rows, hidden_size]. Raises the errors of `forward`.
        """
        assert isinstance(cache, NativeCache) and isinstance(adapters, NativeAdapters | None)
        rows = self._rows(inputs)
        request = Request(inputs=rows.ctypes.data)
        if layers is not None:
            numbers = int32(layers)
            request.layers, request.num_layers = numbers.ctypes.data, len(numbers)
        if adapters is not None:
            request.adapters = ctypes.addressof(adapters.every)
        return self._run(request, len(rows), cache)

    def read_borrowed(self, inputs: Floats, cache: TokenCache, position: int) -> Floats:
        """Read inputs [rows, hidden_size] with keys and values in another model's cache. Rows do not see each other.

        Each row is the token at `position`, after the cached text. Return states after the final norm [rows,
        hidden_size]. Raises LocalspecError for a cache without the layers that this model reads.
        """
        assert isinstance(cache, NativeCache)
        rows = self._rows(inputs)
        positions, parents = int32([position] * len(rows)), int32([-1] * len(rows))
        request = Request(inputs=rows.ctypes.data, positions=positions.ctypes.data, parents=parents.ctypes.data)
        return self._run(request, len(rows), cache)

    def forget_rows(self, cache: TokenCache, rows: int, layers: Sequence[int]) -> None:
        """Do nothing: masked slots are never read, so NaN and inf in them do no harm."""

    def _run(self, request: Request, count: int, cache: NativeCache) -> Floats:
        if not self.sizes.borrows:
            cache.reserve(cache.length + count)
        hidden = np.empty((count, self.sizes.hidden_size), np.float32)
        request.rows, request.hidden = count, hidden.ctypes.data
        check(self._library.ls_forward(self.handle, cache.handle, self.threads.handle, request))
        return hidden

    def embed(self, tokens: Sequence[int]) -> Floats:
        """Return the input embeddings of token ids, [tokens, hidden_size]. Raises LocalspecError for unknown ids."""
        ids, rows = int32(tokens), np.empty((len(tokens), self.sizes.hidden_size), np.float32)
        check(self._library.ls_embed(self.handle, len(ids), address(ids), address(rows)))
        return rows

    def head(self, states: Floats) -> Floats:
        rows = self._rows(states)
        logits = np.empty((len(rows), self.sizes.vocab_size), np.float32)
        check(self._library.ls_head(self.handle, self.threads.handle, len(rows), address(rows), address(logits), None))
        return logits

    def head_rows(self, ids: Sequence[int]) -> NativeLinear:
        """Return the part of the head for the logits of these tokens, in the head's packing. From a head in blocks,
        make blocks of the type HEAD_BLOCKS, or int8 if the width does not allow blocks."""
        head: PackedMatrix | BlockStack = self.weights["lm_head.weight"]
        rows = head.rows(ids) * np.float32(self.sizes.logit_scale)
        part: PackedMatrix | BlockStack
        if isinstance(head, PackedMatrix):
            part = PackedMatrix.pack(rows, head.format, head.group)
        elif rows.shape[1] % INT8_GROUP:
            part = PackedMatrix.pack(rows, "int8", INT8_GROUP)
        else:
            blocks = BlockMatrix.empty(len(ids), rows.shape[1], HEAD_BLOCKS)
            blocks.fill_rounded(rows)
            part = BlockStack((blocks,))
        return NativeLinear(part, None, self.threads, cap=self.sizes.logit_cap)

    def _rows(self, values: Floats) -> Floats:
        rows = np.ascontiguousarray(values, np.float32)
        assert rows.ndim == 2 and rows.shape[1] == self.sizes.hidden_size, rows.shape
        return rows


def expert_sizes(sizes: TransformerConfig, on_disk: bool = False) -> ExpertSizes:
    """Return the sizes of experts for the library; zeros if there are none."""
    if (experts := sizes.experts) is None:
        return ExpertSizes()
    return ExpertSizes(experts.count, experts.used, experts.size, experts.normalised, on_disk)


def delta_sizes(sizes: TransformerConfig) -> DeltaSizes:
    """Return the sizes of recurrent layers for the library; zeros if there are none."""
    if (delta := sizes.delta) is None:
        return DeltaSizes()
    return DeltaSizes(delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.taps, delta.tiled)


def _table_format(table: Any) -> str:
    """Return "fp32" for a table in fp32, "bf16" for a table in a coarser format."""
    exact = table.format == "fp32" if isinstance(table, PackedMatrix) else getattr(table, "dtype", None) == np.float32
    return "fp32" if exact else "bf16"


def as_fine(scale: float, table: Any) -> float:
    """Return the factor `scale` of a table's rows, rounded to bf16 unless the table is in fp32."""
    if _table_format(table) == "fp32":
        return scale
    bits = int(np.array(scale, np.float32).view(np.uint32))
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000  # to bf16, ties to even
    return float(np.array(rounded, np.uint32).view(np.float32))
