"""The kinds of drafters, as a table. Every list of kinds and every property of a kind comes from this table.

A new kind needs one row here and one file, `localspec/drafters/<name>.py`. The file of a kind with weights defines the
class `Drafter`, a `TrainedDrafter`. If localspec can train it, `localspec/training/drafters/<name>.py` has the class
`Trainable`, a `TrainableDrafter`. That file is loaded only for training. The file of any other kind has a function
`build`. For a kind that takes a draft model, `build` returns a `DraftModel`, perhaps wrapped in `WithPhrases`. The kind
`layers` has no `build`. It needs a probe: a measurement of the target's layers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from localspec.config import nearest
from localspec.errors import UsageMistake
from localspec.models.s3d_prediction import Constants, acceptance_at, propose, share
from localspec.models.shape import Shape

WITH_PHRASES = "+phrases"  # after the name of a kind: its drafts are lengthened by phrases
MERGED = 3  # most drafters whose drafts are merged into one tree, not counting phrases
DRAFT_TOKENS = 5  # of a draft, if no figure says how many
DRAFT_BLOCK = 16  # tokens of a block that is drafted at once
MARKOV_RANK = 256  # of the head that corrects such a block, in published drafters
DRAFT_VOCABULARY = 32_768  # tokens of a draft vocabulary, if no figure says how many

Takes = Literal["nothing", "probe", "weights", "published", "draft model"]
WEIGHTS: tuple[Takes, ...] = ("weights", "published")  # kinds of `TrainedDrafter`; the second are not trained here


@dataclass(frozen=True)
class DrafterSize:
    """The inputs for calculating the size of a trained drafter in bytes. `shape` has the sizes of the target.

    `others` is the number of parameters outside of matrices. A weight of a matrix takes `matrix_bytes`, including its
    scale; any other number takes `other_bytes`. `cache_bytes` is the size of the target's keys and values for `tokens`
    tokens. `options` are the training options, if known.
    """

    parameters: int
    others: int
    shape: Shape
    matrix_bytes: float
    other_bytes: int
    cache_bytes: int
    tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> int:
        """Bytes of all parameters."""
        return round((self.parameters - self.others) * self.matrix_bytes) + self.others * self.other_bytes

    @property
    def states(self) -> int:
        """Bytes of the hidden states of all tokens in the cache, one state per token."""
        return self.tokens * self.shape.hidden_size * self.other_bytes

    @property
    def layer_rows(self) -> int:
        """Bytes of the cached keys and values of one drafter layer that has the target's number of key heads."""
        return 2 * self.tokens * self.shape.num_kv_heads * self.shape.head_dim * self.other_bytes

    @property
    def head_rows(self) -> int:
        """Bytes of the rows that a drafter copies from the target's head for its own, smaller vocabulary, if any."""
        separate = self.options.get("private") or self.options.get("shared") is False
        tokens = draft_tokens(self.options, self.shape)
        if separate or tokens == self.shape.vocab_size:
            return 0
        return round(tokens * self.shape.hidden_size * self.matrix_bytes)


@dataclass(frozen=True)
class DraftCost:
    """The inputs for predicting the seconds that a draft takes on a device. A draft has `depth` tokens.

    `shape` has the sizes of the target. `product(weights, rows)` is the seconds of a product with matrices of this many
    weights. `layer_seconds` is a layer's time beyond its products. `forward(rows)` is the seconds of a forward of the
    draft model, or of the target without a draft model. `tokens` is the number of tokens that may be drafted.
    """

    parameters: int
    depth: int
    shape: Shape
    product: Callable[[int, int], float]
    layer_seconds: float
    forward: Callable[[int], float]
    tokens: int

    @property
    def head(self) -> int:
        """The number of weights in those rows of the target's head that belong to the draft vocabulary."""
        return self.tokens * self.shape.hidden_size


def draft_tokens(options: Mapping[str, Any], shape: Shape) -> int:
    """Return how many tokens a drafter may propose: `vocabulary` in its `options`, or all if missing or invalid.

    The options are read from a file. Impossible options are refused when the drafter is loaded.
    """
    vocabulary = options.get("vocabulary")
    return vocabulary if isinstance(vocabulary, int) and 0 < vocabulary < shape.vocab_size else shape.vocab_size


@dataclass(frozen=True)
class DrafterKind:
    """A kind of drafters: what it needs, and formulas for the predicted time and size of its drafters.

    `seconds(cost, nodes)` is the time of a draft with this many nodes (drafted tokens). For a kind with weights, `size`
    is the bytes of a drafter, and `parameters` its parameters if the publisher does not state them. `predicted` is for
    a drafter without measurements: the chance of each token to be accepted if the token before it was, and the source.

    `takes` says what a kind needs. The setting `auto` chooses `lookahead`, merged drafters and a probe of the target's
    layers only after replies showed that they pay, because their gain cannot be predicted. `has_phrases`: drafts have
    phrases even without `+phrases` in the name. `parts`: the setting that lists the parts of the method that are
    switched on. `searched(parts)` are the names of hyperparameters to tune for a target and its draft model.

    `mask_key`: a small language model whose config.json has this key is a drafter of this kind. `by_shapes`: published
    files become a drafter without any weight of the target, so the target may be in a GGUF file. `states_in`: the
    matrix that reads states of the target's inner layers, with one column per channel. `on_chains`: the kind also
    supports targets with recurrent layers, for which it drafts chains. `with_experts`: the kind also supports targets
    with a mixture of experts.
    """

    name: str
    label: str
    takes: Takes
    seconds: Callable[[DraftCost, int], float]
    size: Callable[[DrafterSize], int] = lambda size: size.weights
    parameters: Callable[[Shape], int] = lambda shape: shape.matrices // 20
    predicted: Callable[[Shape], tuple[Sequence[float], str] | None] = lambda shape: None
    has_phrases: bool = False
    parts: str = ""
    searched: Callable[[Collection[str]], Sequence[str]] = lambda parts: ("draft",)
    mask_key: str = ""
    by_shapes: bool = False
    states_in: str = ""
    on_chains: bool = False
    with_experts: bool = True
    module: str = ""
    training_module: str = ""

    def drafts_for(self, shape: Shape) -> bool:
        """Return whether this kind drafts for targets of this shape. Some exclude recurrent layers or experts."""
        return (self.on_chains or not shape.recurrent) and (self.with_experts or shape.experts is None)

    @property
    def file(self) -> str:
        """The name of the module with this kind's drafter."""
        return self.module or f"localspec.drafters.{self.name}"

    @property
    def training_file(self) -> str:
        """The name of the module that trains this kind, if it has weights. It needs torch."""
        return self.training_module or f"localspec.training.drafters.{self.name}"


def _size_with_head(size: DrafterSize) -> int:
    return size.weights + size.head_rows


def _free(cost: DraftCost, nodes: int) -> float:
    """Return 0 seconds: plain decoding drafts nothing, and looking up phrases takes a hundredth of a decoding step."""
    return 0.0


def _medusa_seconds(cost: DraftCost, nodes: int) -> float:
    """Return the seconds of a draft by Medusa heads. They share the target's vocabulary matrix, or have one each."""
    shared = 0.0 if cost.parameters > cost.shape.embedding else cost.product(cost.head, cost.depth)
    return cost.product(cost.parameters, 1) + shared + cost.layer_seconds


def _parallelspec_seconds(cost: DraftCost, nodes: int) -> float:
    """Return the seconds of a ParallelSpec draft: by a small model, or by one layer and the target's head."""
    model = cost.parameters > cost.shape.layer
    head, layers = (0, cost.shape.num_layers) if model else (cost.head, 1)
    return cost.product(cost.parameters + head, 2 * DRAFT_TOKENS) + layers * cost.layer_seconds


def _parallelspec_size(size: DrafterSize) -> int:
    """Return the bytes of a ParallelSpec drafter: a small model with a cache of the target's size, or one layer.

    One layer needs a cache for one layer. Its low-rank correction grows when it is multiplied with the target's head.
    """
    if size.parameters > 2 * size.shape.layer:
        return size.weights + size.cache_bytes
    rank = size.options.get("correction", 0)  # from its file; an invalid value is refused when it is loaded
    grown = (draft_tokens(size.options, size.shape) - size.shape.hidden_size) * (rank if isinstance(rank, int) else 0)
    return (
        size.weights + size.head_rows + round(grown * size.matrix_bytes) + size.shape.cached_in_last(size.cache_bytes)
    )


@lru_cache
def _s3d_proposal(shape: Shape) -> tuple[float, int]:
    """Return the drafting layers' share of the model's weights (β) and the tokens per draft (γ).

    Both are proposed by S3D's predictor (§5.3) from the shape of the model.
    """
    head = shape.embedding / shape.layer
    proposal = propose(shape.num_layers, head, Constants())
    return share(shape.num_layers, len(proposal.layers), head), proposal.gamma


def _s3d_predicted(shape: Shape) -> tuple[Sequence[float], str]:
    """Return S3D's predicted chance of acceptance of each token, for the layers that it proposes (eqs. 10 and 14), and
    the source of this figure."""
    beta, gamma = _s3d_proposal(shape)
    chances = [acceptance_at(position, beta, Constants()) for position in range(1, gamma + 1)]
    return chances, "computed with the S3D paper's formula"


def _eagle3_parameters(shape: Shape) -> int:
    """Return the number of parameters: a layer that reads two vectors per token, a matrix from three inner states of
    the target to one state, and a head for a draft vocabulary."""
    head = min(shape.vocab_size, DRAFT_VOCABULARY) * shape.hidden_size
    wider = shape.hidden_size * shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads)
    return shape.layer + wider + 3 * shape.hidden_size**2 + head


def _eagle3_seconds(cost: DraftCost, nodes: int) -> float:
    """Return the seconds of drafting level by level with a layer and a head. A tree has no more levels than nodes."""
    levels = min(cost.depth, max(nodes, 1))
    return levels * (cost.product(cost.parameters, 2) + 2 * cost.layer_seconds)


def _layer_bytes(size: DrafterSize) -> int:
    """Return the bytes of a drafter with one layer: weights, cached keys and values, and a cached state per token."""
    return size.weights + size.layer_rows + size.states


def _mtp_size(size: DrafterSize) -> int:
    """Return the bytes of an MTP layer: weights, keys and values as in the target's last layer, a state per token."""
    return size.weights + size.shape.cached_in_last(size.cache_bytes) + size.states


def _mtp_seconds(cost: DraftCost, nodes: int) -> float:
    """Return the seconds of an MTP draft: per token, a part of a target's forward in proportion to the weights read."""
    steps, shape = min(cost.depth, max(nodes, 1)), cost.shape
    read = cost.parameters
    if shape.experts is not None:  # it reads as many experts as a layer of the target
        read = (shape.read(1) - shape.embedding) // shape.num_layers + 2 * shape.hidden_size**2
    return steps * (read + shape.embedding) / shape.read(1) * cost.forward(1)


def _dflash_seconds(cost: DraftCost, nodes: int) -> float:
    """Return the seconds of a DFlash draft: one forward of its layers and the target's head over DRAFT_BLOCK tokens."""
    layers = max(round(cost.parameters / cost.shape.layer), 1)
    return cost.product(cost.parameters + cost.shape.embedding, DRAFT_BLOCK) + layers * cost.layer_seconds


def _cache_bytes(size: DrafterSize, parameters: int) -> int:
    """Return the bytes of a drafter's cache: one state per token, and the keys and values of its layers.

    The number of layers follows from `parameters`, their weights.
    """
    layers = max(round(parameters / size.shape.layer), 1)
    return layers * size.layer_rows + size.states


def _without_markov(parameters: int, shape: Shape, rank: int = MARKOV_RANK) -> int:
    """Return the number of parameters in the layers of a DSpark drafter, without the Markov head."""
    return max(parameters - 2 * rank * shape.vocab_size, 0)


def _dspark_seconds(cost: DraftCost, nodes: int) -> float:
    """Return the seconds of a DSpark draft: a DFlash draft, and per level a product with half of the Markov head."""
    block = replace(cost, parameters=_without_markov(cost.parameters, cost.shape))
    levels = min(cost.depth, max(nodes, 1))
    return _dflash_seconds(block, nodes) + levels * cost.product(cost.shape.vocab_size * MARKOV_RANK, 2)


def _dspark_size(size: DrafterSize) -> int:
    rank = size.options.get("rank", MARKOV_RANK)  # from its file; an invalid value is refused when it is loaded
    return size.weights + _cache_bytes(
        size, _without_markov(size.parameters, size.shape, rank if isinstance(rank, int) else 0)
    )


def _assistant_seconds(cost: DraftCost, nodes: int) -> float:
    """Return the seconds of a draft by an assistant, level by level.

    Each level uses all weights. Published assistants have four layers.
    """
    levels = min(cost.depth, max(nodes, 1))
    return levels * (cost.product(cost.parameters, 2) + 4 * cost.layer_seconds)


def _ouroboros_searched(parts: Collection[str]) -> Sequence[str]:
    """Return the names of the hyperparameters that are searched if `parts` of Ouroboros are switched on."""
    names = ["draft"]
    names += ["window"] if "accelerating" in parts else []
    names += ["phrase", "phrases"] if {"accelerating", "lengthening"} & {*parts} else []
    return names


TABLE = [
    DrafterKind(
        "none", "plain decoding", "nothing", _free, on_chains=True, module="localspec.drafters.autoregressive"
    ),
    DrafterKind(
        "phrases", "phrases of this text and of earlier replies", "nothing", _free, has_phrases=True, on_chains=True
    ),
    DrafterKind("lookahead", "guesses that the model itself improves in each pass (lookahead)", "nothing", _free),
    DrafterKind(
        "layers", "some of the target's own layers: S3D without training", "probe",
        # a few forwards through about half of the layers; a probe measures them better
        lambda cost, nodes: min(nodes, DRAFT_TOKENS) / 2 * cost.forward(1), with_experts=False,
    ),
    DrafterKind(
        "eagle3", "a layer that reads states of three of the target's layers, token after token", "weights",
        _eagle3_seconds, size=_layer_bytes, parameters=_eagle3_parameters, states_in="fc.weight",
        on_chains=True,
    ),
    DrafterKind(
        "medusa", "heads that read the target's last state, one per depth", "weights", _medusa_seconds,
        size=_size_with_head, on_chains=True,
    ),
    DrafterKind(
        "parallelspec", "a layer or a small model that drafts all depths in one forward, from mask tokens", "weights",
        _parallelspec_seconds, size=_parallelspec_size, parameters=lambda shape: shape.layer, mask_key="pard_token",
        on_chains=True, with_experts=False,
    ),
    DrafterKind(
        "s3d", "the target's outer layers, which draft all depths in one forward, from mask tokens", "weights",
        lambda cost, nodes: _s3d_proposal(cost.shape)[0] * cost.forward(DRAFT_TOKENS),  # the share β of the target
        size=lambda size: size.parameters * size.other_bytes + size.head_rows, predicted=_s3d_predicted,
        with_experts=False,
    ),
    DrafterKind(
        "semi", "a head that reads the target's last state and the tokens drafted so far", "weights",
        # depth by depth, each time with the target's head
        lambda cost, nodes: cost.depth * (cost.product(cost.parameters + cost.head, 1) + 2 * cost.layer_seconds),
        size=_size_with_head, on_chains=True, with_experts=False,
    ),
    DrafterKind(
        "dflash", "a few layers that draft a block of mask tokens at once", "published",
        _dflash_seconds, size=lambda size: size.weights + _cache_bytes(size, size.parameters), by_shapes=True,
        states_in="fc.weight", on_chains=True,
    ),
    DrafterKind(
        "dspark", "a few layers that draft a block at once, each token corrected by the one before", "published",
        _dspark_seconds, size=_dspark_size, by_shapes=True, states_in="fc.weight", on_chains=True,
    ),
    DrafterKind(
        "assistant", "a tiny model that reads the target's own keys and values, token after token", "published",
        _assistant_seconds, by_shapes=True,
    ),
    DrafterKind(
        "mtp", "the MTP layer in the target's own files, token after token", "published",
        # a layer like the target's, and the matrix that joins embedding and state
        _mtp_seconds, size=_mtp_size, parameters=lambda shape: shape.layer + 2 * shape.hidden_size**2,
        on_chains=True,
    ),
    DrafterKind(
        "draft_model", "a small model with the same tokenizer", "draft model",
        lambda cost, nodes: nodes * cost.forward(1), searched=lambda parts: (), on_chains=True,
    ),
    DrafterKind(
        "ouroboros", "a small model that drafts phrase by phrase", "draft model",
        lambda cost, nodes: nodes * cost.forward(4),  # each forward also reads a few rows of phrases
        has_phrases=True, parts="ouroboros", searched=_ouroboros_searched, on_chains=True,
    ),
]  # fmt: skip


def kinds(*takes: Takes) -> tuple[str, ...]:
    """Return the names of all kinds. With arguments, such as "weights", return only the kinds that take one of them."""
    return tuple(kind.name for kind in TABLE if not takes or kind.takes in takes)


def kind_of(drafter: str) -> DrafterKind:
    """Return the first kind in a drafter's name, such as `medusa+phrases` or `draft_model:MODEL`.

    Raises UsageMistake for an unknown kind.
    """
    name = drafter.partition(":")[0].partition("+")[0]
    for kind in TABLE:
        if kind.name == name:
            return kind
    raise UsageMistake(f"There is no drafter '{name}'{nearest(name, kinds())}; use one of {', '.join(kinds())}.")


def drafting_kinds(drafter: str) -> tuple[DrafterKind, ...]:
    """Return the kinds in a drafter's name, except phrases that only lengthen drafts: two for `medusa+s3d+phrases`.

    Raises UsageMistake for an unknown kind.
    """
    return tuple(map(kind_of, drafter.partition(":")[0].removesuffix(WITH_PHRASES).split("+")))


def can_be_merged(kind: DrafterKind) -> bool:
    """Return whether drafts of this kind can be merged with others: true for kinds with weights and for `layers`."""
    return kind.takes in (*WEIGHTS, "probe")
