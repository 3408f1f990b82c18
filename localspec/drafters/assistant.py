"""Gemma 4's assistants: a tiny model that drafts level by level and attends to the target's own keys and values.

    tokens   a    b    root  t     t'       A row joins the target's embedding of its token and a state: for the root
    states             s_b   m_r   m_t      the target's state that predicted it, else the output of its parent.
    position           2     2     2        All rows have the root's position. They see the text, but no drafts.

The layers have queries only. A layer with a window reads the keys and values of the target's last layer with a window.
Any other layer reads those of the target's last layer without a window. Target layers that read another layer's keys
are not used. Since no row sees another, each node of a tree costs one row. Small assistants score only the tokens of
the clusters nearest to the state.

This is the arithmetic of transformers' `gemma4_assistant` and of its candidate generator, with two differences: a row
never sees the slot of a refused token, and windows count positions as the target's do. Results were not compared on a
published file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from localspec.decoding.compute import Array, DraftableModel, Rows
from localspec.decoding.drafter import Context, DrafterState, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.paths import PathDrafter
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import QUIET, bytes_of, check_options
from localspec.errors import LocalspecError, UsageMistake
from localspec.families.architecture import TransformerConfig, in_features, parameter_rows
from localspec.families.rope import Rope
from localspec.models.small_model import described

MOST_CLUSTERS = 2**16


@dataclass(frozen=True)
class AssistantOptions:
    """The options of an assistant. A draft has at most `depth` levels, and fewer if others would not save time.

    `config` is the text of the config.json of the assistant's layers. The vocabulary is divided into `clusters` of
    equal size, and only the tokens of the `nearest` clusters are scored. With 0 clusters all tokens are scored. Raises
    UsageMistake for impossible values.
    """

    depth: int = 5
    config: str = ""
    clusters: int = 0
    nearest: int = 0

    def __post_init__(self) -> None:
        some = min(self.clusters, 1) <= self.nearest <= self.clusters
        checks = (
            ("depth", 1 <= self.depth <= 16, "1 to 16"),
            ("clusters", 0 <= self.clusters <= MOST_CLUSTERS, f"0 to {MOST_CLUSTERS}"),
            ("nearest", some, "1 to the number of clusters, or 0 without clusters"),
        )
        check_options("assistant", self, checks)


def layers_of(options: AssistantOptions, target: TransformerConfig, context: int) -> tuple[TransformerConfig, Rope]:
    """Return the sizes and the rotation of the assistant's layers, each with the target's layer whose keys it reads.

    Raises UsageMistake for layers that are not an assistant's, or were made for another target.
    """
    sizes, rope, _ = described(options.config, context, "assistant's layers")
    if sizes.family not in ("gemma4_text", "gemma4_unified_text") or sizes.per_layer_inputs[0]:
        raise UsageMistake(
            f"The assistant's layers are of the family {sizes.family}, but must be Gemma 4's; use another."
        )
    if not target.layer_sizes or target.delta is not None or sizes.vocab_size != target.vocab_size:
        raise UsageMistake(
            f"The assistant is made for a Gemma 4 of {sizes.vocab_size} tokens, but this model is of the family "
            f"{target.family} and has {target.vocab_size}; name the model that it was made for."
        )
    lenders = {  # the last layer with its own keys and values, for each: without a window, with one
        target.sliding_windows[layer] is not None: layer
        for layer, lender in enumerate(target.layer_sizes)
        if lender.keys_of is None
    }
    layers = []
    for reader, window in zip(sizes.layer_sizes, sizes.sliding_windows, strict=True):
        layer = lenders.get(window is not None)
        lent = None if layer is None else target.sizes_of(layer)
        if lent is None or (reader.num_kv_heads, reader.head_dim) != (lent.num_kv_heads, lent.head_dim):
            others = "none" if lent is None else f"{lent.num_kv_heads} of {lent.head_dim}"
            raise UsageMistake(
                f"The assistant reads {reader.num_kv_heads} key heads of {reader.head_dim} channels in a layer, but "
                f"this model has {others} there; name the model that it was made for."
            )
        layers.append(replace(reader, keys_of=layer, keys_are_values=False))
    return replace(sizes, layer_sizes=tuple(layers), borrows=True, vocab_size=0, tied=True, logit_cap=0.0), rope


class Drafter(PathDrafter):
    """An assistant of Gemma 4 (Google 2026). It stores nothing of the text except the target's last state."""

    kind = "assistant"
    Options = AssistantOptions
    options: AssistantOptions

    def __init__(self, target: DraftableModel[Any], options: AssistantOptions, tensors: Mapping[str, Array]) -> None:
        """Build the assistant. Raises LocalspecError if the clusters do not hold each token of the model once."""
        super().__init__(target, options, tensors)
        compute = self.compute
        sizes, rope = layers_of(options, compute.target.sizes, target.context)
        self._layers = compute.model(sizes, rope, tensors)
        self._before, self._after = compute.linear(tensors["before.weight"]), compute.linear(tensors["after.weight"])
        self._head = compute.linear(tensors["head.weight"])
        self._centroids = compute.linear(tensors["centroids.weight"]) if options.clusters else None
        self._members: Array = np.zeros((0, 0), np.int64)
        if options.clusters:
            self._members = np.asarray(tensors["members"]).reshape(options.clusters, -1)
            if sorted(self._members.reshape(-1).tolist()) != [*range(target.vocab_size)]:
                raise LocalspecError(
                    "The clusters ('members') do not list each token of the model once; fetch the assistant again."
                )
        self._state: Rows = None  # the target's state that predicted the last token
        self._length = 0  # tokens read up to that state

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: AssistantOptions) -> dict[str, TensorSpec]:
        """Return the tensors by localspec's names: layers, projections before and after them, head, clusters.

        Raises UsageMistake for a vocabulary that the clusters do not divide evenly, and the errors of `layers_of`.
        """
        target_sizes, vocabulary = target.compute.target.sizes, target.compute.target.sizes.vocab_size
        sizes, _ = layers_of(options, target_sizes, target.context)
        specs = {}
        for name, rows in parameter_rows(sizes).items():
            columns = in_features(name, sizes)
            if name != "embed_tokens":
                specs[name] = TensorSpec((sum(rows),) if columns is None else (sum(rows), columns))
        width = sizes.hidden_size
        specs |= {
            "before.weight": TensorSpec((width, 2 * target_sizes.hidden_size)),
            "after.weight": TensorSpec((target_sizes.hidden_size, width)),
        }
        specs["head.weight"] = TensorSpec((vocabulary, width))
        if options.clusters:
            if vocabulary % options.clusters:
                raise UsageMistake(
                    f"{vocabulary} tokens cannot form {options.clusters} clusters of equal size; fetch the assistant "
                    "again."
                )
            specs |= {
                "centroids.weight": TensorSpec((options.clusters, width)),
                "members": TensorSpec((vocabulary,), "int64"),
            }
        return specs

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and of a state; keys and values are the target's."""
        parts = self._layers, self._before, self._after, self._head, self._centroids, self._members, self._state
        return bytes_of(*parts)

    # -- drafting -----------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Calibrate the drafter's confidence, and store the target's state of the last row that the target has read."""
        super().observe(step)
        rows = step.hidden.rows
        if len(rows):
            self._state = self.compute.concat([rows[len(rows) - 1 :]])
            self._length += len(rows)

    def rewind(self, length: int) -> None:
        """Go back to the first `length` tokens. If the stored state is later, draft nothing until the next step."""
        if length < self._length:
            self._state, self._length = None, length
        super().rewind(length)

    def resume(self, state: DrafterState, tokens: Sequence[int]) -> None:
        """Continue a text of which the target has a cache. Nothing is drafted until the target reads another token."""
        self._length = len(tokens)

    @QUIET
    def draft(self, context: Context) -> DraftTree:
        """Return the best tree, or sampled chains for the rule `rejection`; only the root if the state is unknown."""
        text = len(context.committed) - 1
        self.rewind(text)
        depths = min(self.depth, context.nodes)
        if not depths or not text or self._state is None or self._length != text:
            return DraftTree((context.root,), (-1,))
        states = self._state  # of the level above: one row for each of its nodes

        def logits_of(parents: Sequence[int], tokens: Sequence[int], depth: int) -> Rows:
            nonlocal states
            above = states[self.compute.integers([[parent] for parent in parents])[:, 0]] if depth else states
            inputs = self.compute.concat([self.compute.target.embed(tokens), above], 1)
            outputs = self._layers.read_borrowed(self._before(inputs), context.cache, text)
            states = self._after(outputs)
            return self._logits(outputs)

        return self._trees.grow(context, logits_of, depths)

    def _logits(self, states: Rows) -> Rows:
        """Return logits [rows, vocab_size] of outputs [rows, channels], with -inf outside the nearest clusters."""
        logits = self._head(states)
        if self._centroids is None:
            return logits
        near = np.argsort(-self.compute.logits(self._centroids(states)).numpy(), 1, kind="stable")
        rows = []
        for row, order in enumerate(near[:, : self.options.nearest]):
            ids = self._members[order].reshape(-1)
            some = logits[row : row + 1][:, self.compute.integers([ids.tolist()])[0]]
            rows.append(self.compute.at_columns(some, ids, self.target.vocab_size))
        return self.compute.concat(rows)
