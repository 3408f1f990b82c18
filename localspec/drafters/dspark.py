"""DSpark: DFlash with two more heads. One corrects each row by the token before it, the other estimates a confidence.

text   a    b    c      root  mask  mask       Unlike in DFlash, each row predicts the token after it. The root's row
rows                    t     t'    t''        does too, so d rows propose d tokens.

The logits after a token x are those of its row plus W₂ W₁[x], a Markov head of low rank: W₁ is the tensor `embedding`,
W₂ is `markov.weight`. The confidence is σ(w · [s, W₁[x]] + b), where s is the row's state. It was trained to predict
one minus the total variation distance between the drafter's distribution and the target's (DSpark, arXiv 2607.05147;
DeepSpec, `modeling/dspark`). The published code ends a chain at the first confidence below a threshold. Here the
confidence multiplies the chances of a row's candidates, and a tree ends where another level would not pay. localspec
does not compute drafters with a gated or recurrent head, or with Gemma's layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from localspec.decoding.compute import Array, DraftableModel, Rows
from localspec.decoding.drafter import Context
from localspec.decoding.tree import DraftTree
from localspec.drafters import dflash
from localspec.drafters.paths import PathDrafter
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import bytes_of, check_options
from localspec.errors import UsageMistake

MOST_RANK = 4096


@dataclass(frozen=True)
class DSparkOptions(dflash.DFlashOptions):
    """The options of DFlash and of the two additional heads.

    `rank` is the rank of the Markov head; with 0 there is none, and no row depends on the token before it. `confidence`
    names the inputs of the confidence: "state", "both" for the state and W₁[x], or "none" for no confidence. Raises
    UsageMistake for impossible values.
    """

    rank: int = 256
    confidence: str = "both"

    KIND: ClassVar[str] = "dspark"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.KIND, self, [("rank", 0 <= self.rank <= MOST_RANK, f"0 to {MOST_RANK}")])
        possible = ("none", "state", "both") if self.rank else ("none", "state")
        if self.confidence not in possible:
            raise UsageMistake(
                f"confidence = {self.confidence!r} of dspark is not possible with rank = {self.rank}; give one of "
                f"{', '.join(possible)}."
            )


class Drafter(PathDrafter, dflash.Drafter):
    """A DSpark drafter (DeepSeek 2026): one forward of a few layers for a block, then a small product per level."""

    kind = "dspark"
    Options = DSparkOptions
    FIRST = 0
    options: DSparkOptions

    def __init__(self, target: DraftableModel[Any], options: DSparkOptions, tensors: Mapping[str, Array]) -> None:
        super().__init__(target, options, tensors)
        compute, rank = self.compute, options.rank
        self._embedding: Rows = compute.rows(np.asarray(tensors["embedding"])) if rank else None
        self._markov = compute.linear(tensors["markov.weight"]) if rank else None
        self._of_state = self._of_token = None
        if options.confidence != "none":
            weight, width = np.asarray(tensors["confidence.weight"]), self._sizes.hidden_size
            self._of_state = compute.linear(
                np.ascontiguousarray(weight[:, :width]), np.asarray(tensors["confidence.bias"])
            )
            if options.confidence == "both":
                self._of_token = compute.linear(np.ascontiguousarray(weight[:, width:]))

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: dflash.DFlashOptions) -> dict[str, TensorSpec]:
        """Return the layers' tensors by their published names, and the two heads' tensors by localspec's names."""
        assert isinstance(options, DSparkOptions)
        specs, sizes = super().tensor_specs(target, options), target.compute.target.sizes
        if options.rank:
            specs |= {name: TensorSpec((sizes.vocab_size, options.rank)) for name in ("embedding", "markov.weight")}
        if options.confidence != "none":
            inputs = sizes.hidden_size + (options.rank if options.confidence == "both" else 0)
            specs |= {"confidence.weight": TensorSpec((1, inputs)), "confidence.bias": TensorSpec((1,))}
        return specs

    @property
    def nbytes(self) -> int:
        """Bytes of weights, keys, values and features."""
        return super().nbytes + bytes_of(self._embedding, self._markov, self._of_state, self._of_token)

    def _tree(self, context: Context, logits: Rows, states: Rows) -> DraftTree:
        compute, of_token = self.compute, self._of_token
        # The confidence before σ: the part that depends on the state only, [rows, 1].
        by_state = (
            np.zeros((len(states), 1)) if self._of_state is None else compute.logits(self._of_state(states)).numpy()
        )

        def embedded(tokens: Sequence[int]) -> Rows:
            return self._embedding[compute.integers([[token] for token in tokens])[:, 0]]

        def logits_of(parents: Sequence[int], tokens: Sequence[int], depth: int) -> Rows:
            row = logits[depth : depth + 1]
            return compute.repeated(row, len(tokens)) if self._markov is None else row + self._markov(embedded(tokens))

        def overlaps(tokens: Sequence[int], depth: int) -> Sequence[float]:
            scores = np.repeat(by_state[depth], len(tokens))
            if of_token is not None:
                scores = scores + compute.logits(of_token(embedded(tokens))).numpy()[:, 0]
            confidences: list[float] = np.nan_to_num(1 / (1 + np.exp(-scores.astype(np.float64)))).tolist()
            return confidences

        depths = min(self.depth, context.nodes)
        return self._trees.grow(context, logits_of, depths, overlaps=None if self._of_state is None else overlaps)
