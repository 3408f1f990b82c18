"""Semi-autoregressive drafting: a head reads the target's last state, and a tiny model's state of the drafted tokens.

q(d_j) = q_0(d_j | h_p, h_q(root, d_1, …)) (Semi-Autoregressive Decoding for Efficient LLM Inference, eq. 5). h_p is the
target's state that predicted the root. It is known already and the same for the whole tree. h_q is updated from node to
node, so a tree costs one small batch per depth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from localspec.decoding.compute import Array, Compute, DraftableModel, LinearLayer, Rows
from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.paths import PathDrafter
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import DraftVocabulary, bytes_of, check_options, draft_vocabulary, refuse_without_joint
from localspec.errors import UsageMistake
from localspec.families.architecture import TransformerConfig
from localspec.models.stored_names import MOST_RANK

JOINT = ("balance",)  # options that only joint training has
CHANGING = ("rank", "lm_head")  # options of training that changes the target, at the same time or before
MOST_DRAFT_RANK = 4096  # r_q of the paper (§4.2)
PAPER_WIDTH = 1024  # of W_p h_p and of W_q h_q (appendix A)
RECENT_MODELS = ("transformer", "lstm", "none")


@dataclass(frozen=True)
class SemiOptions:
    """The options of semi-autoregressive drafting. `recent` names the tiny model: "transformer" (eq. 6), "lstm" (eq. 7)
    or "none", only the embedding of the last token (the zero-layer ablation of figure 4). `depth` is the number of
    levels of a tree, and the largest number of tokens that h_q sees.

    With `shared` the drafter's head ends in the target's head; otherwise it ends in its own vocabulary matrix. Either
    covers the `vocabulary` most frequent tokens of the training text (0: all; -1: 8,192 if the model has more than
    32,768). `layers` is the head's number of hidden layers: two as in §4.2, or one that only adds h_p and h_q, as in
    appendix A. With `paper_widths` it has 1024 + 1024 channels for every hidden_size of the target.

    One batch learns from the share `share` of a text's positions. With `joint` the target is trained too (r_p, §4.2),
    through adapters of this `rank` on its layers and, with `lm_head`, on its head. `balance` is λ of eq. 8, the weight
    of the drafter's loss. During the share `first` of the training only the target learns (λ = 0), and afterwards only
    the drafter (λ = 1). `draft_rank` is the rank of the changes by which the drafter's own matrices learn (r_q; 0:
    whole matrices). Raises UsageMistake for impossible values.
    """

    recent: str = "transformer"
    depth: int = 4
    shared: bool = True
    vocabulary: int = -1
    layers: int = 2
    paper_widths: bool = False
    share: float = 1.0
    joint: bool = False
    rank: int = 16
    balance: float = 0.25
    lm_head: bool = True
    first: float = 0.0
    draft_rank: int = 0

    def __post_init__(self) -> None:
        if self.recent not in RECENT_MODELS:
            raise UsageMistake(f"recent = {self.recent!r} is not possible; use one of {', '.join(RECENT_MODELS)}.")
        checks = (
            ("depth", 1 <= self.depth <= 16, "1 to 16"),
            ("layers", self.layers in (1, 2), "1 or 2"),
            ("vocabulary", self.vocabulary >= -1, "0 for all tokens, -1 for automatic, or a number"),
            ("share", 0 < self.share <= 1, "above 0 and at most 1"),
            ("rank", 1 <= self.rank <= MOST_RANK, f"1 to {MOST_RANK}"),
            ("balance", 0 < self.balance < 1, "a number between 0 and 1"),
            ("first", 0 <= self.first < 1, "0 or more and below 1"),
            ("draft_rank", 0 <= self.draft_rank <= MOST_DRAFT_RANK, f"0 for all tokens, or up to {MOST_DRAFT_RANK}"),
        )
        check_options("semi", self, checks)
        if self.joint and self.first:
            raise UsageMistake(
                f"semi cannot have both first = {self.first}, which trains target and drafter in turn, and joint, "
                "which trains both at once; give one of them."
            )
        refuse_without_joint("semi", self, JOINT if self.first else (*JOINT, *CHANGING))

    def settled(self, vocab_size: int) -> Self:
        """Return these options, with a number in place of `vocabulary` -1. Raises the errors of `draft_vocabulary`."""
        return replace(self, vocabulary=draft_vocabulary(self.vocabulary, vocab_size))


@dataclass(frozen=True)
class Widths:
    """The widths of a drafter's matrices: h_q (`recent`), W_p and W_q (`wide`), and the last matrix (`outputs`)."""

    recent: int
    wide: int
    outputs: int

    @classmethod
    def of(cls, sizes: TransformerConfig, options: SemiOptions) -> "Widths":
        """Return the widths of a drafter with these options, for a target of these sizes."""
        width = sizes.hidden_size
        return cls(
            recent=width if options.recent == "none" else width // 2,
            wide=PAPER_WIDTH if options.paper_widths else width // (2 if options.shared else 4),
            outputs=width if options.shared else options.vocabulary or sizes.vocab_size,
        )


class RecentModel(Protocol):
    """A tiny model of the tokens just drafted. Its state is empty or zero before the root."""

    state_size: int

    def read(self, x: Rows, state: Rows, depth: int) -> tuple[Rows, Rows]:
        """Return the states after one more token, and h_q: what the drafter's head reads of the tokens just drafted.

        x [rows, hidden_size] are embeddings of the tokens `depth` positions after the root; `state` [rows,
        self.state_size] are the states before these tokens.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""


class Averaged:
    """The simplified transformer, eq. 6: h_q = Σ α_l MLP(e_l) / Σ α_l over the recent tokens, α learned in (0, 1).

    The state of a node, [rows, hidden_size / 2], is the numerator.
    """

    def __init__(self, compute: Compute, tensors: Mapping[str, Array]) -> None:
        self._inner, self._outer = (_linear(compute, tensors, f"recent.{name}", True) for name in ("inner", "outer"))
        self._alpha = 1 / (1 + np.exp(-tensors["recent.free"].astype(np.float64)))
        self.state_size = len(tensors["recent.outer.bias"])

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + self._outer.nbytes + 4 * len(self._alpha)

    def read(self, x: Rows, state: Rows, depth: int) -> tuple[Rows, Rows]:
        """Return the weighted sums after one more token, and h_q, the weighted means."""
        state = state + self._outer(self._inner(x)) * float(self._alpha[depth])
        return state, state / float(self._alpha[: depth + 1].sum())


class Recurrent:
    """The LSTM of two layers, eq. 7. The state of a node, [rows, 2 hidden_size], is hidden state and cell of both."""

    def __init__(self, compute: Compute, tensors: Mapping[str, Array]) -> None:
        self._compute = compute
        self._cells = [_cell(compute, tensors, f"recent.{name}") for name in ("first", "second")]
        self._width = len(tensors["recent.first.bias_ih"]) // 4
        self.state_size = 4 * self._width

    @property
    def nbytes(self) -> int:
        return sum(cell.nbytes for cell in self._cells)

    def read(self, x: Rows, state: Rows, depth: int) -> tuple[Rows, Rows]:
        """Return both layers' states after one more token, and h_q, the second layer's hidden state."""
        width, parts = self._width, []
        for layer, cell in enumerate(self._cells):
            hidden, memory = (state[:, (2 * layer + part) * width : (2 * layer + part + 1) * width] for part in (0, 1))
            gates = cell(self._compute.concat([x, hidden], 1))
            enters, keeps, value, leaves = (gates[:, part * width : (part + 1) * width] for part in range(4))
            sigmoid, tanh = self._compute.sigmoid, self._compute.tanh
            memory = sigmoid(keeps) * memory + sigmoid(enters) * tanh(value)
            x = sigmoid(leaves) * tanh(memory)
            parts += [x, memory]
        return self._compute.concat(parts, 1), x


class Last:
    """The tiny model "none": only the embedding of the last token (§6.1, zero layers). Nodes have no state."""

    state_size = nbytes = 0

    def __init__(self, compute: Compute, tensors: Mapping[str, Array]) -> None: ...

    def read(self, x: Rows, state: Rows, depth: int) -> tuple[Rows, Rows]:
        """Return the empty state and the embeddings themselves."""
        return state, x


_RECENT: dict[str, Callable[[Compute, Mapping[str, Array]], RecentModel]] = {
    "transformer": Averaged, "lstm": Recurrent, "none": Last,
}  # fmt: skip


def _linear(compute: Compute, tensors: Mapping[str, Array], name: str, silu: bool = False) -> LinearLayer:
    return compute.linear(tensors[f"{name}.weight"], tensors[f"{name}.bias"], silu)


def _cell(compute: Compute, tensors: Mapping[str, Array], name: str) -> LinearLayer:
    """Return the gates of one layer of the LSTM, for its input and hidden state side by side."""
    weight = np.concatenate([tensors[f"{name}.weight_ih"], tensors[f"{name}.weight_hh"]], 1)
    return compute.linear(weight, tensors[f"{name}.bias_ih"] + tensors[f"{name}.bias_hh"])


class Drafter(PathDrafter):
    """Semi-autoregressive drafting (Semi-Autoregressive Decoding for Efficient LLM Inference, §4, eqs. 5 to 8, app. A).

    The logits of depth j are W_3 σ([W_p h_p, W_q h_q] + b), [nodes, vocab_size]. h_p [1, hidden_size] is the target's
    state that predicted the root. h_q [nodes, hidden_size / 2] is the tiny model's state after the tokens root … d_j-1.
    W_p and W_q each have a quarter of the target's width as in the paper, and a second hidden layer precedes W_3
    (§4.2).

    W_3 over a whole vocabulary would be nearly all of the drafter's memory. By default W_3 has only hidden_size
    outputs, the target's own head follows, and W_p and W_q have half of the target's width. In a rough measurement
    (demo model, 240 steps, one seed) this predicted as well as a W_3 over the vocabulary, with a fifth of the weights.
    Each depth then costs one pass of the target's head. A draft vocabulary makes that pass cheaper, but needs a copy of
    the head's rows for it.
    """

    kind = "semi"
    Options = SemiOptions
    BEFORE: ClassVar[Mapping[str, Any]] = {"vocabulary": 0}
    options: SemiOptions

    def __init__(self, target: DraftableModel[Any], options: SemiOptions, tensors: Mapping[str, Array]) -> None:
        """Build the drafter. Raises LocalspecError for a draft vocabulary that the model does not have."""
        super().__init__(target, options, tensors)
        self._recent = _RECENT[options.recent](self.compute, tensors)
        self._far, self._near = _linear(self.compute, tensors, "far"), _linear(self.compute, tensors, "near")
        self._mixed = _linear(self.compute, tensors, "mixed", True) if options.layers == 2 else None
        self._out = self.compute.linear(tensors["out.weight"])
        self._vocabulary = DraftVocabulary(target, tensors, options.shared)
        self._state: Rows = None  # the target's state that predicted the root
        # The tiny model's [1, state_size] before any token.
        self._initial = self.compute.rows(np.zeros((1, self._recent.state_size), np.float32))
        read = [partial(self._read, depth) for depth in range(options.depth)]
        self._levels = [self.compute.recorded(function) for function in read]

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: SemiOptions) -> dict[str, TensorSpec]:
        """List the tiny model's tensors, the layers after it, and the ids of a draft vocabulary."""
        sizes = target.compute.target.sizes
        options = options.settled(sizes.vocab_size)
        widths, hidden = Widths.of(sizes, options), sizes.hidden_size
        recent, wide = widths.recent, widths.wide
        shapes: dict[str, tuple[int, ...]] = {}
        linears = {"far": (wide, hidden), "near": (wide, recent)}
        if options.recent == "transformer":
            linears |= {"recent.inner": (recent, hidden), "recent.outer": (recent, recent)}
            shapes["recent.free"] = (options.depth,)
        elif options.recent == "lstm":
            for cell, inputs in (("first", hidden), ("second", recent)):
                shapes[f"recent.{cell}.weight_ih"], shapes[f"recent.{cell}.weight_hh"] = (
                    (4 * recent, inputs),
                    (4 * recent, recent),
                )
                shapes[f"recent.{cell}.bias_ih"] = shapes[f"recent.{cell}.bias_hh"] = (4 * recent,)
        if options.layers == 2:
            linears["mixed"] = (2 * wide, 2 * wide)
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        shapes["out.weight"] = (widths.outputs, 2 * wide)
        vocabulary = {"kept": TensorSpec((options.vocabulary,), "int64")} if options.vocabulary else {}
        return {**{name: TensorSpec(shape) for name, shape in shapes.items()}, **vocabulary}

    @property
    def nbytes(self) -> int:
        return bytes_of(self._recent, self._far, self._near, self._mixed, self._out, self._vocabulary)

    # -- the model ----------------------------------------------------------------------------------------------------

    def _read(self, depth: int, nodes: Rows, far: Rows, above: Rows) -> tuple[Rows, ...]:
        """Read the tokens of nodes `depth` positions after the root. Return states and draft logits.

        nodes [rows, 2] has each node's token, and its parent's row in the states `above`. far [1, wide] is what the
        target's state contributes to the hidden layer.
        """
        # Normalised, because with embeddings as small as in many targets the tiny model would learn very slowly.
        x = self.compute.rms_norm(self.compute.target.embed(nodes[:, 0]))
        state, recent = self._recent.read(x, above[nodes[:, 1]], depth)
        both = self.compute.concat([self.compute.repeated(far, len(nodes)), self._near(recent)], 1)
        return state, self._head(self.compute.silu(both))

    def _head(self, x: Rows) -> Rows:
        """Return logits [rows, draft vocabulary] of the first hidden layer's output x [rows, 2 wide]."""
        if self._mixed is not None:
            x = x + self._mixed(x)
        x = self._out(x)
        return self._vocabulary.head(x) if self.options.shared else x

    # -- drafting -----------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Store the state that predicted the new root, and calibrate the drafter's confidence."""
        super().observe(step)
        self._state = step.hidden.take([len(step.hidden) - 1]).rows  # a copy: a view would keep a whole chunk in memory

    def rewind(self, length: int) -> None:
        """Discard the state that predicted the root; the next step brings a new one."""
        self._state = None
        super().rewind(length)

    def draft(self, context: Context) -> DraftTree:
        """Return the best tree by the tiny model, or for the rule `rejection` a tree of chains sampled from it."""
        self.forget_draft()
        if self._state is None or not context.nodes:
            return DraftTree((context.root,), (-1,))
        far, state = self._far(self._state), self._initial
        sampled = context.sampling.rule == "rejection"

        def logits_of(parents: Sequence[int], tokens: Sequence[int], depth: int) -> Rows:
            nonlocal state
            nodes = self.compute.integers(list(zip(tokens, parents, strict=True)))
            state, logits = self._levels[depth](nodes, far, state)
            return self._vocabulary.whole(logits) if sampled else logits

        return self._trees.grow(context, logits_of, self.depth, self._vocabulary.ids)
