"""DFlash: a few layers draft a block of mask tokens at once, with features made from some of the target's states.

text   a    b    c         root  mask  mask       Each row of the block sees the whole text and the whole block. The
keys   f_a  f_b  f_c       root  mask  mask       text has only keys and values, made from the target's states.
                                 t     t'         A mask's state predicts the token in its own place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from localspec.choosing.fit import CHUNK
from localspec.decoding.compute import Array, Compute, DraftableModel, LinearLayer, Rows
from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.eagle3 import are_places
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import QUIET, Features, ParallelDrafter, bytes_of, check_options
from localspec.errors import UsageMistake
from localspec.families.architecture import TransformerConfig
from localspec.families.rope import Rope
from localspec.models.small_model import described

MOST_BLOCK = 64  # tokens
CAUSAL = ("windows", "all", "none")


@dataclass(frozen=True)
class DFlashOptions:
    """The options of a published DFlash drafter. `config` is the config.json of its layers.

    `states` are the target's states that the drafter reads, by their indices in Hugging Face's hidden_states. `mask` is
    the mask token's id, and `block` the number of tokens of a block, including the root. `causal` says in which layers
    a row of the block sees no later row: the layers with a window, all layers, or none. Embeddings are multiplied by
    `scale`, and logits by `multiplier`. With a `cap`, logits x become cap · tanh(x / cap); 0 is no cap. Raises
    UsageMistake for impossible values.
    """

    config: str = ""
    states: str = ""
    mask: int = 0
    block: int = 16
    causal: str = "windows"
    scale: float = 1.0
    multiplier: float = 1.0
    cap: float = 0.0

    KIND: ClassVar[str] = "dflash"

    def __post_init__(self) -> None:
        checks = (
            ("states", are_places(self.states), "numbers with commas between them, such as 2,14,25"),
            ("mask", 0 <= self.mask < 2**31, "the id of a token"),
            ("block", 2 <= self.block <= MOST_BLOCK, f"2 to {MOST_BLOCK}"),
            ("causal", self.causal in CAUSAL, f"one of {', '.join(CAUSAL)}"),
            ("scale", 0 < self.scale < 1e6, "a number above 0"),
            ("multiplier", 0 < self.multiplier < 1e6, "a number above 0"),
            ("cap", 0 <= self.cap < 1e6, "a number, or 0 for none"),
        )
        check_options(self.KIND, self, checks)

    @property
    def places(self) -> tuple[int, ...]:
        """The indices of the target's states that the drafter reads."""
        return tuple(map(int, self.states.split(",")))


def layers_of(options: DFlashOptions, target: TransformerConfig, context: int) -> tuple[TransformerConfig, Rope]:
    """Return the sizes and the rotation of the drafter's layers, for texts of `context` tokens.

    Raises UsageMistake for layers of another family than Qwen3, or made for another target.
    """
    sizes, rope, _ = described(options.config, context, "drafter's layers")
    if sizes.family != "qwen3":
        raise UsageMistake(
            f"The drafter's layers are of the family {sizes.family}, but those of {options.KIND} must be Qwen3's; "
            "use another drafter."
        )
    if (sizes.hidden_size, sizes.vocab_size) != (target.hidden_size, target.vocab_size):
        raise UsageMistake(
            f"The drafter is made for a model of {sizes.hidden_size} channels and {sizes.vocab_size} tokens, but this "
            f"one has {target.hidden_size} and {target.vocab_size}; name the model that it was made for."
        )
    if max(options.places) > target.num_layers or options.mask >= target.vocab_size:
        raise UsageMistake(
            f"The drafter reads the states {options.states} and the mask token {options.mask}, but this model has "
            f"{target.num_layers} layers and {target.vocab_size} tokens; name the model that it was made for."
        )
    return sizes, rope


class Layer:
    """A decoder layer of the drafter. It makes the text's keys and values from features (the target's states)."""

    def __init__(
        self, compute: Compute, sizes: TransformerConfig, rope: Rope, tensors: Mapping[str, Array], name: str
    ) -> None:
        self._compute, self._eps = compute, sizes.rms_norm_eps

        def linear(part: str, silu: bool = False) -> LinearLayer:
            return compute.linear(tensors[f"{name}{part}_proj.weight"], tensors.get(f"{name}{part}_proj.bias"), silu)

        self._q, self._k, self._v, self._o = (linear(f"self_attn.{part}") for part in "qkvo")
        self._gate, self._up, self._down = linear("mlp.gate", silu=True), linear("mlp.up"), linear("mlp.down")
        self._norms = {
            part: compute.rows(np.asarray(tensors[f"{name}{part}.weight"])[None])
            for part in ("input_layernorm", "post_attention_layernorm")
        }
        norms = {part: tensors[f"{name}self_attn.{part}.weight"] for part in ("q_norm", "k_norm")}
        self.attention = compute.attention(sizes, rope, norms)

    @property
    def nbytes(self) -> int:
        """Bytes of weights, keys and values."""
        linears = self._q, self._k, self._v, self._o, self._gate, self._up, self._down
        return bytes_of(*linears, self.attention, *self._norms.values())

    def read_text(self, features: Rows, positions: Sequence[int]) -> None:
        """Store keys and values of the text, made from features [rows, hidden_size]."""
        self.attention.keep(self._compute.concat([self._k(features), self._v(features)], 1), positions)

    def __call__(self, x: Rows, *places: Any) -> Rows:
        """Return the states [rows, hidden_size] of a block of embeddings of the same shape. `places` is the result of
        `attention.reserve_rows` for the block."""
        h = self._norm(x, "input_layernorm")
        qkv = self._compute.concat([self._q(h), self._k(h), self._v(h)], 1)
        x = x + self._o(self.attention(qkv, *places))
        h = self._norm(x, "post_attention_layernorm")
        return x + self._down(self._gate(h) * self._up(h))

    def _norm(self, x: Rows, name: str) -> Rows:
        return self._compute.rms_norm(x, self._eps) * self._norms[name]


class NormedFeatures(Features):
    """A store of features, one row [hidden_size] per token: some of the target's states, joined by `fc` and normed."""

    def __init__(self, compute: Compute, options: DFlashOptions, eps: float, tensors: Mapping[str, Array]) -> None:
        self.layers, self._eps = options.places, eps
        self._fc = compute.linear(tensors["fc.weight"])
        self._norm = compute.rows(np.asarray(tensors["hidden_norm.weight"])[None])
        super().__init__(compute)

    @property
    def nbytes(self) -> int:
        """Bytes of matrix, norm and stored rows."""
        return bytes_of(self._fc, self._norm) + super().nbytes

    @QUIET
    def of(self, step: Step) -> Rows:
        """Return the features of a step, [rows, hidden_size]."""
        assert step.inner is not None
        return self._compute.rms_norm(self._fc(step.inner.rows), self._eps) * self._norm


class Drafter(ParallelDrafter):
    """DFlash (Z Lab 2026): a block diffusion drafter that computes a block of tokens in one forward of a few layers.

    Its input is the target's embedding of the root and of block − 1 masks. The target's head turns its output into
    logits [block − 1, vocab_size] of the tokens after the root. The candidates of a depth do not depend on each other.
    """

    kind = "dflash"
    Options = DFlashOptions
    FIRST: ClassVar[int] = 1  # row of the block that predicts the token after the root
    options: DFlashOptions
    _features: Features

    def __init__(self, target: DraftableModel[Any], options: DFlashOptions, tensors: Mapping[str, Array]) -> None:
        super().__init__(target, options, tensors)
        compute, target_sizes = self.compute, self.compute.target.sizes
        self._sizes, rope = layers_of(options, target_sizes, target.context)
        self._layers = [
            Layer(compute, self._sizes, rope, tensors, f"layers.{index}.") for index in range(self._sizes.num_layers)
        ]
        self._features = NormedFeatures(compute, options, self._sizes.rms_norm_eps, tensors)
        self._norm = compute.rows(np.asarray(tensors["norm.weight"])[None])
        # The target's other factors of embeddings and logits do not belong to this drafter.
        self._scale = options.scale / target_sizes.embed_scale
        self._multiplier = options.multiplier / target_sizes.logit_scale
        self._cap = 0.0 if target_sizes.logit_cap == options.cap else options.cap
        self._of_block = compute.recorded(self._block_logits, *(layer.attention for layer in self._layers))

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: DFlashOptions) -> dict[str, TensorSpec]:
        """List the drafter's tensors by their published names."""
        target_sizes = target.compute.target.sizes
        sizes, _ = layers_of(options, target_sizes, target.context)
        width, inner = sizes.hidden_size, sizes.intermediate_size
        queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        specs = {name: TensorSpec((width,)) for name in ("norm.weight", "hidden_norm.weight")}
        specs["fc.weight"] = TensorSpec((width, len(options.places) * target_sizes.hidden_size))
        linears = {
            "self_attn.q": (queries, width), "self_attn.k": (keys, width), "self_attn.v": (keys, width),
            "self_attn.o": (width, queries), "mlp.gate": (inner, width), "mlp.up": (inner, width),
            "mlp.down": (width, inner),
        }  # fmt: skip
        for layer in (f"layers.{index}." for index in range(sizes.num_layers)):
            for name, shape in linears.items():
                specs[f"{layer}{name}_proj.weight"] = TensorSpec(shape)
                if sizes.qkv_bias and name.startswith("self_attn"):
                    specs[f"{layer}{name}_proj.bias"] = TensorSpec(shape[:1])
            for name in ("input_layernorm", "post_attention_layernorm"):
                specs[f"{layer}{name}.weight"] = TensorSpec((width,))
            specs |= {f"{layer}self_attn.{name}.weight": TensorSpec((sizes.head_dim,)) for name in ("q_norm", "k_norm")}
        return specs

    @property
    def depth(self) -> int:
        """The number of tokens in a draft."""
        return self.options.block - self.FIRST

    @property
    def nbytes(self) -> int:
        """Bytes of weights, keys, values and features."""
        return bytes_of(*self._layers, self._features, self._norm)

    # -- drafting -----------------------------------------------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """Discard everything after the first `length` tokens. Earlier keys, values and features stay valid."""
        self._forget_rows(length)
        super().rewind(length)

    @QUIET
    def draft(self, context: Context) -> DraftTree:
        """Return the tree of one forward over the root and the masks, after reading the new part of the text."""
        text = len(context.committed) - 1  # tokens before the root
        self.rewind(text)
        if not context.nodes or not text or len(self._features) != text:
            return DraftTree((context.root,), (-1,))
        self._read_text(text)
        try:
            return self._tree(context, *self._predict(context.root, text))
        finally:
            self._forget_rows(text)

    def _tree(self, context: Context, logits: Rows, states: Rows) -> DraftTree:
        """Return the tree for logits [depth, vocab_size] and states [depth, hidden_size] of a block."""
        return self.build_tree(context, self.compute.logits(logits))

    def _read_text(self, text: int) -> None:
        """Store keys and values of tokens that have none yet."""
        while (start := min(layer.attention.length for layer in self._layers)) < text:
            count = min(CHUNK, text - start)
            features = self._features.of_tokens(start + 1, count)  # `of_tokens` counts from one position earlier
            for layer in self._layers:
                layer.attention.truncate(start)  # if memory ran out, other layers have read more
                layer.read_text(features, range(start, start + count))

    def _predict(self, root: int, text: int) -> tuple[Rows, Rows]:
        """Return logits [depth, vocab_size] and states [depth, hidden_size] after a root that follows `text` tokens."""
        block = self.options.block
        places: list[Any] = []
        for layer, window in zip(self._layers, self._sizes.sliding_windows, strict=True):
            places += layer.attention.reserve_rows(range(text, text + block), self._visible(text, window), window)
        ids = self.compute.integers([[token] for token in (root, *[self.options.mask] * (block - 1))])
        logits, states = self._of_block(ids, *places)
        return logits[: self.depth], states[: self.depth]

    def _block_logits(self, ids: Rows, *places: Any) -> tuple[Rows, ...]:
        """Return logits and states of the rows of a block that predict tokens. ids [rows, 1] are the block's tokens.
        `places` has the results of `attention.reserve_rows` for all layers, one after the other."""
        target, each = self.compute.target, len(places) // len(self._layers)
        x = target.embed(ids[:, 0]) * self._scale
        for index, layer in enumerate(self._layers):
            x = layer(x, *places[index * each : (index + 1) * each])
        states = self.compute.rms_norm(x[self.FIRST :], self._sizes.rms_norm_eps) * self._norm
        logits = target.head(states) * self._multiplier
        return self.compute.tanh(logits / self._cap) * self._cap if self._cap else logits, states

    def _visible(self, text: int, window: int | None) -> list[list[int]]:
        """Return for each row of the block a list for `reserve_rows`, such as [9, 9, 10]: the row sees the `text` of 9
        rows, and the rows 9 and 10, which are the first two of the block."""
        end, causal = text + self.options.block, self.options.causal
        is_causal = causal == "all" or (causal == "windows" and window is not None)
        ends = (row + 1 if is_causal else min(end, row + (window or end)) for row in range(text, end))
        return [[text, *range(text, last)] for last in ends]

    def _forget_rows(self, length: int) -> None:
        for layer in self._layers:
            layer.attention.truncate(length)
