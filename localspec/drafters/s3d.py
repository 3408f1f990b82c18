"""S3D: the target drafts with its own outer layers and mask tokens, several tokens in one pass (S3D, §4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, ClassVar

import numpy as np

from localspec.decoding.compute import Array, DraftableModel, LowRank, Rows
from localspec.decoding.drafter import Context
from localspec.decoding.tree import DraftTree
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import DraftVocabulary, ParallelDrafter, bytes_of, check_options, draft_vocabulary
from localspec.errors import UsageMistake
from localspec.families.architecture import TransformerConfig, weight_map
from localspec.models.s3d_prediction import symmetric
from localspec.models.stored_names import MOST_RANK, WHICH, adapted_parts

MAX_DEPTH = 64  # no tree has more nodes


@dataclass(frozen=True)
class S3DOptions:
    """The options of S3D. A draft has `depth` tokens (γ). Layers are counted from 0.

    `skip` names the first and the last skipped layer, as in "2-5"; `kept` lists the layers that are not skipped, as in
    "0,1,6,7". With neither, the middle half is skipped. `adapters` act only while drafting: on "all" linear layers, on
    "vko" (values, keys, output; appendix B) or "none". `full` trains the kept layers themselves instead, which makes
    another target. If these layers are packed in few bits, adapters are trained and then merged into them. The drafter
    proposes the `vocabulary` most frequent tokens of the training text (0: all; -1: 8,192 if the model has more than
    32,768). Raises UsageMistake for impossible values.
    """

    depth: int = 4
    skip: str = ""
    kept: str = ""
    adapters: str = ""  # "all", or "none" in the full form
    rank: int = 16
    alpha: float = 32.0
    full: bool = False
    vocabulary: int = -1

    def __post_init__(self) -> None:
        checks = (
            ("depth", 1 <= self.depth <= MAX_DEPTH, f"1 to {MAX_DEPTH}"),
            ("rank", 1 <= self.rank <= MOST_RANK, f"1 to {MOST_RANK}"),
            ("alpha", 0 < self.alpha < float("inf"), "a number above 0"),
            ("vocabulary", self.vocabulary >= -1, "0 for all tokens, -1 for automatic, or a number"),
            ("adapters", self.adapters in ("", "none", *WHICH), f"{', '.join(WHICH)} or none"),
            ("skip", not self.skip or len(_numbers(self.skip, "-")) == 2, "the first and the last layer, as in 2-5"),
            ("kept", not self.kept or _numbers(self.kept, ","), "layers in ascending order, as in 0,1,6,7"),
        )
        check_options("s3d", self, checks)
        if self.skip and self.kept:
            raise UsageMistake(
                f"skip = {self.skip!r} and kept = {self.kept!r} of s3d both choose the layers; give one of them."
            )
        if self.full and self.adapters in WHICH:
            raise UsageMistake(
                f"adapters = {self.adapters!r} of s3d has no effect with full, which trains the layers themselves; "
                "give one of them."
            )

    @property
    def which(self) -> str:
        """The adapted linear layers: "all", "vko" or "none"."""
        return self.adapters or ("none" if self.full else "all")

    def layers(self, count: int) -> tuple[int, ...]:
        """Return the layers that draft, out of `count`. Raises UsageMistake if a layer does not exist or none is
        left."""
        if not (self.skip or self.kept):
            return symmetric(count, max(1, count // 2))
        numbers = _numbers(self.skip, "-") or _numbers(self.kept, ",")
        layers = [layer for layer in range(count) if not numbers[0] <= layer <= numbers[1]] if self.skip else numbers
        if not layers or numbers[-1] >= count:
            setting = f"skip = {self.skip!r}" if self.skip else f"kept = {self.kept!r}"
            raise UsageMistake(
                f"{setting} of s3d does not fit this model, whose layers are 0 to {count - 1}; keep at least one."
            )
        return tuple(layers)


def _numbers(text: str, between: str) -> list[int]:
    """Return the ascending numbers of a text such as "0,1,6", with `between` between them; [] for any other text."""
    parts = [part.strip() for part in text.split(between)]
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 5]
    rising = all(low <= high if between == "-" else low < high for low, high in pairwise(numbers))
    return numbers if rising and len(numbers) == len(parts) else []


class Drafter(ParallelDrafter):
    """Skippy simultaneous speculative decoding (S3D, §4, eqs. 5 to 8): the target drafts with part of its layers.

    The root and `depth` - 1 mask tokens [depth, hidden_size] go through the kept layers in one pass. Row d gives draft
    logits of the token d + 1 positions after the root. The rows see the text through the target's own cache. The mask
    token is an embedding and has no id.
    """

    kind = "s3d"
    Options = S3DOptions
    BEFORE: ClassVar[Mapping[str, Any]] = {"vocabulary": 0}
    options: S3DOptions

    def __init__(self, target: DraftableModel[Any], options: S3DOptions, tensors: Mapping[str, Array]) -> None:
        super().__init__(target, options, tensors)
        model = self.compute.target
        self.kept_layers = options.layers(model.sizes.num_layers)
        self._mask = self.compute.rows(tensors["mask"][None])
        self._vocabulary = DraftVocabulary(target, tensors)
        self._adapters = None
        if options.which != "none":
            self._adapters = model.adapters(stacked_adapters(model.sizes, self.kept_layers, options, tensors))

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: S3DOptions) -> dict[str, TensorSpec]:
        """Return the mask token and the adapters by peft's names. With `full` the trained layers belong to the target.

        Raises UsageMistake for layers that the target does not have, or that cannot draft without the others.
        """
        sizes, specs = target.compute.target.sizes, {}
        sizes.need_layers_alone(cls.kind)
        layers = options.layers(sizes.num_layers)
        for part in adapted_parts(sizes, layers, options.which) if options.which != "none" else ():
            specs[part.lora_a] = TensorSpec((options.rank, part.inputs))
            specs[part.lora_b] = TensorSpec((part.size, options.rank))
        if vocabulary := draft_vocabulary(options.vocabulary, sizes.vocab_size):
            specs["kept"] = TensorSpec((vocabulary,), "int64")
        return {**specs, "mask": TensorSpec((sizes.hidden_size,))}

    @property
    def nbytes(self) -> int:
        """Bytes of the drafter, without the target's layers."""
        return bytes_of(self._mask, self._adapters, self._vocabulary)

    def draft(self, context: Context) -> DraftTree:
        """Run one pass of the kept layers (eqs. 5 to 8) and return the likeliest tree of its predictions."""
        rows = self._predict(context)
        if rows is None:
            return DraftTree((context.root,), (-1,))
        if context.sampling.rule == "rejection":
            return self.build_tree(context, self.compute.logits(self._vocabulary.whole(rows)))
        return self.build_tree(context, self.compute.logits(rows), ids=self._vocabulary.ids)

    def _predict(self, context: Context) -> Rows:
        """Return logits [rows, tokens] of the tokens after the root; None if there is no room for a row.

        The rows are written to the cache after the committed tokens, and verification overwrites them.
        """
        model, cache = self.compute.target, context.cache
        rows = min(self.depth, context.nodes, self.target.context - len(context.committed))
        if rows < 1:
            return None
        inputs = self.compute.concat([model.embed([context.root]), self.compute.repeated(self._mask, rows - 1)])
        states = model.read_rows(inputs, cache, self.kept_layers, self._adapters)
        logits = self._vocabulary.head(states)
        if self.compute.logits(logits).finite():
            return logits
        model.forget_rows(cache, rows, self.kept_layers)
        return None


def stacked_adapters(
    sizes: TransformerConfig, layers: Sequence[int], options: S3DOptions, tensors: Mapping[str, Array]
) -> dict[int, dict[str, LowRank]]:
    """Return adapters by layer and by linear layer. Projections that are stacked in one linear layer share one adapter:

    A [blocks * rank, in]    B [out, blocks * rank]    q │ ■ · ·
                                                       k │ · ■ ·
                                                       v │ · · ■
    """
    rank, made_of = options.rank, weight_map(sizes)
    adapters: dict[int, dict[str, LowRank]] = {}
    parts = adapted_parts(sizes, layers, options.which)
    for (layer, linear), group in groupby(parts, lambda part: (part.layer, part.linear)):
        blocks = list(group)
        a = np.concatenate([tensors[part.lora_a] for part in blocks])
        b = np.zeros((sum(rows for _, rows in made_of[f"layers.{layer}.{linear}.weight"]), len(a)), np.float32)
        for part in blocks:
            rows = slice(part.start - part.first, part.end - part.first)
            b[part.start : part.end, part.block * rank : (part.block + 1) * rank] = tensors[part.lora_b][rows]
        adapters.setdefault(layer, {})[linear] = LowRank(a, b, options.alpha / rank)
    return adapters
