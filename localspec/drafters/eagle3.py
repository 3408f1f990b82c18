"""EAGLE-3: one decoder layer drafts one token after another, from states of three of the target's layers.

A row joins a token's embedding and the feature of the token before it (EAGLE-3, §3.1). In the text, features are made
of the target's states. The target has not read the nodes below the root, so their features are the drafter layer's own
states:

    tokens      a    b    root  t     t'       t' is a child of t: its row sees all rows to its left
    features    -    f_a  f_b   s_b   s_t      f: of the target's states, s: the layer's own states
    predicts         root t …   t' …  …
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from localspec.choosing.fit import CHUNK
from localspec.decoding.compute import Array, Compute, DraftableModel, LinearLayer, Rows
from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.paths import PathDrafter
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import QUIET, DraftVocabulary, Features, bytes_of, check_options, draft_vocabulary
from localspec.errors import UsageMistake
from localspec.families.architecture import TransformerConfig
from localspec.families.rope import Rope
from localspec.models.small_model import described

NORMS = ("none", "each", "joined")
PLACES, MOST_PLACES = 3, 8  # states that a feature is made of, and as many as a published drafter may read


@dataclass(frozen=True)
class Eagle3Options:
    """The options of an EAGLE-3 drafter. `depth` is the number of levels of a tree, in training too, where the loss of
    level d is weighted by `decay`ᵈ. The drafter proposes the `vocabulary` most frequent tokens of the training
    text (0: all; -1: 8,192 if the model has more than 32,768). A feature is made of the target's `states`, given by
    their indices in Hugging Face's hidden_states (empty: a low, a middle and a high one).

    The other options exist only for published drafters. `config` is the config.json of the drafter's layer (empty: a
    layer as wide as the target's, without biases). With `embedding` the drafter has its own embedding. `norms` says
    which states are normed before they are joined: each of them, or all together. With `residual` the layer adds its
    attention's output to the normed feature, not to the feature itself. With `output` states are normed before they are
    fed back (EAGLE-3.1). Raises UsageMistake for impossible values.
    """

    depth: int = 5
    vocabulary: int = -1
    decay: float = 0.8
    states: str = ""
    config: str = ""
    embedding: bool = False
    norms: str = "none"
    residual: bool = False
    output: bool = False

    def __post_init__(self) -> None:
        checks = (
            ("depth", 1 <= self.depth <= 16, "1 to 16"),
            ("vocabulary", self.vocabulary >= -1, "0 for all tokens, -1 for automatic, or a number"),
            ("decay", 0 < self.decay <= 1, "above 0 and at most 1"),
            (
                "states",
                not self.states or are_places(self.states),
                f"up to {MOST_PLACES} numbers with commas between them, such as 2,14,25",
            ),
            ("norms", self.norms in NORMS, f"one of {', '.join(NORMS)}"),
        )
        check_options("eagle3", self, checks)

    def settled(self, sizes: TransformerConfig) -> Self:
        """Return these options with the defaults of `states` and `vocabulary` replaced by values for this target.

        Raises UsageMistake for states and tokens that the target does not have.
        """
        vocabulary = draft_vocabulary(self.vocabulary, sizes.vocab_size)
        states = self.states or ",".join(map(str, usual_places(sizes.num_layers)))
        options = replace(self, vocabulary=vocabulary, states=states)
        if max(options.places) >= sizes.num_layers:
            raise UsageMistake(
                f"states = {self.states!r} of eagle3 is not possible for a model of {sizes.num_layers} layers; "
                f"give indices from 0 to {sizes.num_layers - 1}."
            )
        return options

    @property
    def places(self) -> tuple[int, ...]:
        """The indices of the states, after `settled` has chosen them."""
        return tuple(map(int, self.states.split(",")))


def are_places(text: str) -> bool:
    """Return whether a text lists at most `MOST_PLACES` indices of states, such as 2,14,25."""
    parts = text.split(",")
    return len(parts) <= MOST_PLACES and all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts)


def usual_places(num_layers: int) -> tuple[int, int, int]:
    """Return the states that EAGLE-3 reads of a target with this many layers: the inputs of a low, a middle and a
    high layer."""
    if num_layers < 2 * PLACES:  # in so few layers the paper's indices would not ascend
        return num_layers // 4, num_layers // 2, num_layers - 1
    return 2, num_layers // 2, num_layers - 3


def layer_of(target: TransformerConfig, options: Eagle3Options, context: int) -> tuple[TransformerConfig, Rope | None]:
    """Return the sizes and the rotation (None: the target's) of the drafter's layer, for texts of `context` tokens.

    Raises UsageMistake for a config of another kind of layer, LocalspecError if localspec cannot compute the layer.
    """
    if not options.config:
        return _plain_layer(target), None
    sizes, rope, _ = described(options.config, context, "drafter's layer")
    if sizes.sliding_windows != (None,):
        layers = (
            "a layer that sees only a window of the text" if sizes.num_layers == 1 else f"{sizes.num_layers} layers"
        )
        raise UsageMistake(
            f"The drafter has {layers}, but EAGLE-3 has one layer that sees the whole text; use another drafter."
        )
    return sizes, rope


def _plain_layer(target: TransformerConfig) -> TransformerConfig:
    """Return the sizes of a Llama layer as wide as the target's, whatever the target's family."""
    return TransformerConfig(
        family="llama",
        vocab_size=0,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        sliding_windows=(None,),
        tied=True,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )


class Layer:
    """The drafter's decoder layer. Its attention reads an embedding and a feature, normed separately and then
    joined."""

    def __init__(
        self, compute: Compute, sizes: TransformerConfig, rope: Rope | None, tensors: Mapping[str, Array], normed: bool
    ) -> None:
        """Build the layer. If `normed`, the residual connection around attention starts from the normed feature."""
        self._compute, self._eps, self._adds_to_normed = compute, sizes.rms_norm_eps, normed
        self._norms = {
            name: compute.rows(tensors[name][None]) for name in ("embedding_norm", "feature_norm", "mlp_norm")
        }

        def linear(name: str, silu: bool = False) -> LinearLayer:
            return compute.linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"), silu)

        self._qkv, self._o = linear("qkv"), linear("o")
        self._gate, self._up, self._down = linear("gate", silu=True), linear("up"), linear("down")
        self.attention = compute.attention(sizes, rope, {n: tensors[n] for n in ("q_norm", "k_norm") if n in tensors})

    @property
    def nbytes(self) -> int:
        """Bytes of weights, keys and values."""
        linears = self._qkv, self._o, self._gate, self._up, self._down
        return bytes_of(*linears, self.attention, *self._norms.values())

    def __call__(self, embeddings: Rows, features: Rows, *places: Any) -> Rows:
        """Return the states [rows, hidden_size] of embeddings and features of the same shape. `places` is the result of
        `attention.reserve_rows` for these rows."""
        features_normed = self._norm(features, "feature_norm")
        both = self._compute.concat([self._norm(embeddings, "embedding_norm"), features_normed], 1)
        x = (features_normed if self._adds_to_normed else features) + self._o(self.attention(self._qkv(both), *places))
        h = self._norm(x, "mlp_norm")
        return x + self._down(self._gate(h) * self._up(h))

    def _norm(self, x: Rows, name: str) -> Rows:
        return self._compute.rms_norm(x, self._eps) * self._norms[name]


class JoinedFeatures(Features):
    """Some of the target's states, joined to one feature by the matrix `fc`; one row per token is stored."""

    def __init__(
        self, compute: Compute, options: Eagle3Options, eps: float, tensors: Mapping[str, Array], hidden_size: int
    ) -> None:
        self.layers = options.places
        self._fc, self._norms, self._eps = compute.linear(tensors["fc.weight"]), options.norms, eps
        self._scale = None if options.norms == "none" else compute.rows(tensors["states_norm"][None])
        self._width = hidden_size  # of the target
        super().__init__(compute)

    @property
    def nbytes(self) -> int:
        """Bytes of matrix, norms and stored rows."""
        return bytes_of(self._fc, self._scale) + super().nbytes

    @QUIET
    def of(self, step: Step) -> Rows:
        """Return the features of a step, [rows, channels]."""
        assert step.inner is not None
        states = step.inner.rows
        if self._scale is not None:
            width = self._width if self._norms == "each" else self._width * len(self.layers)
            parts = [states[:, start : start + width] for start in range(0, states.shape[1], width)]
            normed = [self._compute.rms_norm(part, self._eps) for part in parts]
            states = self._compute.concat(normed, 1) * self._scale
        return self._fc(states)


class Drafter(PathDrafter):
    """EAGLE-3 (Li et al. 2025, §3.1): one layer that drafts a tree level by level, each level in one small batch.

    A level's logits are W RMSNorm(s) over the draft vocabulary, where s [nodes, hidden_size] are the layer's states.
    Only rows of the text keep keys and values; the keys and values of a draft are discarded with it.
    """

    kind = "eagle3"
    Options = Eagle3Options
    options: Eagle3Options
    _features: Features

    def __init__(self, target: DraftableModel[Any], options: Eagle3Options, tensors: Mapping[str, Array]) -> None:
        """Build the drafter. Raises the errors of `DraftVocabulary`."""
        super().__init__(target, options, tensors)
        target_sizes = self.compute.target.sizes
        sizes, rope = layer_of(target_sizes, options, target.context)
        self._layer, self._eps = Layer(self.compute, sizes, rope, tensors, options.residual), sizes.rms_norm_eps
        self._features = JoinedFeatures(self.compute, options, self._eps, tensors, target_sizes.hidden_size)
        self._norm, self._head = self.compute.rows(tensors["norm"][None]), self.compute.linear(tensors["head.weight"])
        self._embedding: Rows = self.compute.rows(np.asarray(tensors["embedding"])) if options.embedding else None
        self._vocabulary = DraftVocabulary(target, tensors, shared=False)
        attention, recorded = self._layer.attention, self.compute.recorded
        self._of_text, self._of_nodes = recorded(self._text_states, attention), recorded(self._node_states, attention)
        self._of_root = recorded(self._root_logits)

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: Eagle3Options) -> dict[str, TensorSpec]:
        """List the tensors: the matrix that joins states, the layer, its norms and head, and the ids of a draft
        vocabulary."""
        target_sizes = target.compute.target.sizes
        options = options.settled(target_sizes)
        sizes, _ = layer_of(target_sizes, options, target.context)
        if sizes.hidden_size != target_sizes.hidden_size and not options.embedding:
            raise UsageMistake(
                f"The drafter is {sizes.hidden_size} channels wide and the model {target_sizes.hidden_size}, so it "
                "would need its own embedding; name the model that it was made for."
            )
        width, channels = sizes.hidden_size, len(options.places) * target_sizes.hidden_size
        queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        inner = sizes.intermediate_size
        linears = {
            "qkv": (queries + 2 * keys, 2 * width, sizes.qkv_bias), "o": (width, queries, sizes.o_bias),
            "gate": (inner, width, sizes.mlp_bias), "up": (inner, width, sizes.mlp_bias),
            "down": (width, inner, sizes.mlp_bias), "fc": (width, channels, False),
            "head": (options.vocabulary or target_sizes.vocab_size, width, False),
        }  # fmt: skip
        specs = {name: TensorSpec((width,)) for name in ("embedding_norm", "feature_norm", "mlp_norm", "norm")}
        for name, (rows, columns, bias) in linears.items():
            specs[f"{name}.weight"] = TensorSpec((rows, columns))
            if bias:
                specs[f"{name}.bias"] = TensorSpec((rows,))
        if sizes.qk_norm:
            specs |= {name: TensorSpec((sizes.head_dim,)) for name in ("q_norm", "k_norm")}
        if options.norms != "none":
            specs["states_norm"] = TensorSpec((channels,))
        if options.embedding:
            specs["embedding"] = TensorSpec((target_sizes.vocab_size, width))
        if options.vocabulary:
            specs["kept"] = TensorSpec((options.vocabulary,), "int64")
        return specs

    @property
    def nbytes(self) -> int:
        """Bytes of weights, keys, values and features."""
        return bytes_of(self._layer, self._features, self._norm, self._head, self._embedding)

    # -- drafting -----------------------------------------------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """Discard everything after the first `length` tokens. Earlier keys, values and features stay valid."""
        self._layer.attention.truncate(max(length - 1, 0))  # the first token has no row
        super().rewind(length)

    @QUIET
    def draft(self, context: Context) -> DraftTree:
        """Read the new part of the text. Return the best tree, or for the rule `rejection` a tree of sampled chains."""
        position = len(context.committed)
        self.rewind(position - 1)  # the root's row is always computed again
        if not context.nodes or position < 2 or len(self._features) != position - 1:
            return DraftTree((context.root,), (-1,))
        attention, sampled = self._layer.attention, context.sampling.rule == "rejection"
        text, paths = attention.length, list[list[int]]([[]])  # rows below the root that a node sees, its own included
        states: Rows = None

        def logits_of(parents: Sequence[int], tokens: Sequence[int], depth: int) -> Rows:
            nonlocal states, paths, text
            if not depth:
                states = self._read_text(context.committed)
                (logits,), text = self._of_root(states), attention.length
            else:
                visible = [[text, *paths[parent]] for parent in parents]
                first = attention.length
                places = attention.reserve_rows([position - 2 + depth] * len(tokens), visible)
                nodes = self.compute.integers(list(zip(tokens, parents, strict=True)))
                states, logits = self._of_nodes(nodes, states, *places)
                paths = [[*above, first + row] for row, (_, *above) in enumerate(visible)]
            return self._vocabulary.whole(logits) if sampled else logits

        depths = min(self.depth, context.nodes)
        try:
            return self._trees.grow(context, logits_of, depths, self._vocabulary.ids)
        finally:
            attention.truncate(text)  # also after a failed read

    def _read_text(self, committed: Sequence[int]) -> Rows:
        """Read tokens that have no row yet, including the root; return the root's state [1, hidden_size]."""
        attention = self._layer.attention
        while True:
            start = attention.length + 1
            tokens = committed[start : start + CHUNK]
            features = self._features.of_tokens(start, len(tokens))
            ids = self.compute.integers([[token] for token in tokens])
            (states,) = self._of_text(ids, features, *attention.reserve_rows(range(start - 1, start - 1 + len(tokens))))
            if start + len(tokens) == len(committed):
                last: Rows = states[len(states) - 1 :]
                return last

    def _text_states(self, ids: Rows, features: Rows, *places: Any) -> tuple[Rows, ...]:
        """Return the layer's states [rows, hidden_size] for tokens of the text, whose ids are `ids` [rows, 1]."""
        return (self._layer(self._embed(ids[:, 0]), features, *places),)

    def _node_states(self, nodes: Rows, above: Rows, *places: Any) -> tuple[Rows, ...]:
        """Return states and logits of nodes [rows, 2], which are pairs of a token and its parent's row in `above`."""
        features = self._normed(above) if self.options.output else above
        states = self._layer(self._embed(nodes[:, 0]), features[nodes[:, 1]], *places)
        return states, *self._root_logits(states)

    def _root_logits(self, states: Rows) -> tuple[Rows, ...]:
        return (self._head(self._normed(states)),)

    def _embed(self, ids: Rows) -> Rows:
        return self.compute.target.embed(ids) if self._embedding is None else self._embedding[ids]

    def _normed(self, states: Rows) -> Rows:
        return self.compute.rms_norm(states, self._eps) * self._norm
