"""ParallelSpec: one small transformer with k mask tokens predicts k + 1 tokens in a single forward.

The masks follow the root. Each row predicts the token one position after it:

    rows        … a b root m1 m2        kept in the drafter's own cache: … a b root, never a mask
    predicts    … b root  +1 +2 +3

Mask rows are computed before it is known which tokens the tree has in their place. A low-rank correction then changes a
mask's logits for each such token, by a few channels of the token and of the row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from localspec.choosing.fit import CHUNK
from localspec.decoding.compute import Array, Compute, DraftableModel, RowModel, Rows
from localspec.decoding.drafter import Context, Step
from localspec.decoding.forward import ParkableCache
from localspec.decoding.tree import DraftTree
from localspec.drafters.paths import PathTrees
from localspec.drafters.tensors import StoredTensors, TensorSpec
from localspec.drafters.trained import (
    DraftVocabulary,
    Features,
    OfModel,
    ParallelDrafter,
    bytes_of,
    check_options,
    draft_vocabulary,
)
from localspec.errors import UsageMistake
from localspec.families.architecture import TransformerConfig, in_features, weight_map
from localspec.models.small_model import compare_tokens, impossible_ids, mask_token, masked_model
from localspec.models.stored_names import stored_name
from localspec.models.target_map import BIAS, WEIGHT, TargetMap, target_map
from localspec.models.tokenizer import Tokenizer
from localspec.weights.checkpoint import inspect
from localspec.weights.stored import LazyTensors, read_config

FORMS = ("medusa", "eagle", "model")
BEGINNINGS = ("last", "first", "fresh")
MODEL_MASKS = 11  # of published models of this form: their figures are of drafts of twelve tokens
MOST_MASKS = 32


@dataclass(frozen=True)
class ParallelSpecOptions:
    """The options of ParallelSpec. `masks` is k; a draft has one more token. `form` names the input of the drafter:

    - "medusa": the text's tokens (eq. 3);
    - "eagle": the text's tokens with the target's features (eq. 5);
    - "model": the text's tokens, read by a small language model.

    The forms "medusa" and "eagle" have `layers` layers. They begin training as copies of the target's "last" or "first"
    layers, or "fresh" (`begin`). `correction` is the rank of the correction of masks' logits (0: no correction).

    In training, depth d is weighted by `decay`ᵈ (λ, eq. 3). Of the positions that have masks, only the share (1 -
    `drop`)ᵈ has mask d, but at least 0.2 (PARD's conditional drop). `model` is the directory of the small language
    model, which is read once; `config` is the content of its config.json. Raises UsageMistake for impossible values.
    """

    masks: int = 4
    form: str = "medusa"
    layers: int = 1
    decay: float = 0.8
    drop: float = 0.0
    model: str = ""
    config: str = ""
    correction: int = 64
    begin: str = "last"
    vocabulary: int = -1

    def __post_init__(self) -> None:
        checks = (
            ("masks", 1 <= self.masks <= MOST_MASKS, f"1 to {MOST_MASKS}"),
            ("form", self.form in FORMS, f"one of {', '.join(FORMS)}"),
            ("layers", 1 <= self.layers <= 8, "1 to 8"),
            ("decay", 0 < self.decay <= 1, "above 0 and at most 1"),
            ("drop", 0 <= self.drop < 1, "0 or more and below 1"),
            ("correction", 0 <= self.correction <= 1024, "0 for none, or up to 1024"),
            ("begin", self.begin in BEGINNINGS, f"one of {', '.join(BEGINNINGS)}"),
            ("vocabulary", self.vocabulary >= -1, "0 for all tokens, -1 for automatic, or a number"),
        )
        check_options("parallelspec", self, checks)
        of_model = self.form == "model"
        if of_model and not (self.model or self.config):
            raise UsageMistake("The form 'model' of parallelspec needs a small language model; give model = DIRECTORY.")
        if not of_model and (self.model or self.config):
            raise UsageMistake(f"model has no effect with form = {self.form}; leave model out, or give form = model.")
        if of_model and self.layers != 1:
            raise UsageMistake(
                f"layers = {self.layers} has no effect with the form 'model', which has its own; leave it out."
            )
        if of_model and self.vocabulary > 0:
            raise UsageMistake(
                f"vocabulary = {self.vocabulary} has no effect with the form 'model', which has its own head; "
                "leave it out."
            )

    @property
    def rank(self) -> int:
        """The rank of the correction."""
        return 0 if self.form == "model" else self.correction

    def tokens(self, vocab_size: int) -> int:
        """Return how many tokens the drafter proposes for a target with `vocab_size` tokens; 0 stands for all."""
        return 0 if self.form == "model" else draft_vocabulary(self.vocabulary, vocab_size)


def layers_of(target: TransformerConfig, options: ParallelSpecOptions) -> TransformerConfig:
    """Return the sizes of a drafter of the form "medusa" or "eagle": layers without an embedding or a head."""
    windows, local = target.sliding_windows[-1:] * options.layers, target.local_layers[-1:] * options.layers
    sizes = tuple(replace(layer, keys_of=None) for layer in target.layer_sizes[-1:]) * options.layers
    return replace(
        target, vocab_size=0, tied=True, sliding_windows=windows, local_layers=local, layer_sizes=sizes,
        per_layer_inputs=(0, 0), delta=None,
    )  # fmt: skip


class MappedFeatures(Features):
    """States of some of the target's layers, mapped by a matrix to a small model's width (PARD-2).

    The mapped states are stored: one row of the small model's width instead of several of the target's.
    """

    def __init__(self, target: DraftableModel[Any], described: TargetMap) -> None:
        """Load the matrix for states. Raises UsageMistake for another target's matrix, LocalspecError for damage."""
        sizes, compute = target.compute.target.sizes, target.compute
        self.layers = described.for_target(sizes.num_layers, sizes.hidden_size)
        tensors, scale = StoredTensors(described.file), np.float32(described.scale)
        bias = tensors[BIAS] * scale if described.has_bias else None
        self._map, self._states = compute.linear(tensors[WEIGHT] * scale, bias), described.states
        super().__init__(compute)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix and of stored rows."""
        return self._map.nbytes + super().nbytes

    def of(self, step: Step) -> Rows:
        """Return the mapped states of a step, [rows, the small model's channels]."""
        assert step.inner is not None
        return self._map(step.inner.rows)

    def zeros(self, rows: int) -> Rows:
        """Return `rows` rows of zeros, multiplied by the matrix: the matrix's bias in each row, or zeros."""
        return self._map(self._compute.rows(np.zeros((rows, self._states), np.float32)))


@dataclass(frozen=True)
class Published:
    """A published small language model, its mask token, and bool [vocab_size] of ids that are never drafted.

    `features` are the target's states that the model reads in addition to tokens; None except in PARD-2.
    """

    model: RowModel
    mask: int
    never: Array
    features: MappedFeatures | None = None


class Drafter(ParallelDrafter, OfModel):
    """ParallelSpec's parallel drafter (§4, eqs. 3 to 5): all depths in one forward of a small transformer.

    Its input is [tokens + k masks, hidden_size]. Its output [1 + k, draft vocabulary] are logits of the k + 1 tokens
    after the root. The drafter shares the target's embedding and head, except in the form "model", which has its own
    embedding and head.
    """

    kind = "parallelspec"
    Options = ParallelSpecOptions
    BEFORE: ClassVar[Mapping[str, Any]] = {"correction": 0, "begin": "fresh", "vocabulary": 0}
    options: ParallelSpecOptions
    _model: RowModel
    _cache: ParkableCache

    def __init__(
        self,
        target: DraftableModel[Any],
        options: ParallelSpecOptions,
        tensors: Mapping[str, Array],
        published: Published | None = None,
    ) -> None:
        """Make the drafter. With `published`, `tensors` are not used."""
        super().__init__(target, options, tensors)
        self._model = published.model if published else self._model_of(tensors)
        self._masks = self._model.embed([published.mask]) if published else self.compute.rows(tensors["masks"])
        joins = options.form == "eagle"
        self._joined = self.compute.linear(tensors["joined.weight"], tensors["joined.bias"]) if joins else None
        self._never: Rows = None  # [1, vocab_size]: -inf for tokens that the form 'model' must not propose
        if options.form == "model":
            never = published.never if published else tensors["never"]
            self._never = self.compute.rows(np.where(never, -np.inf, 0.0).astype(np.float32)[None])
        self._vocabulary = DraftVocabulary(target, tensors)
        self._correction = Correction(self.compute, tensors, self._vocabulary.head) if options.rank else None
        self._trees = PathTrees(self)  # of a correction
        self._cache = self._model.cache(0)
        self._features: Features | None = published.features if published else None
        if joins:
            self._features = Features(self.compute)

    def _model_of(self, tensors: Mapping[str, Array]) -> RowModel:
        sizes, rope = layers_of(self.compute.target.sizes, self.options), None
        if self.options.form == "model":
            sizes, rope, _ = masked_model(self.options.config, self.target.context)
        stored = {name: f"model.{stored_name(name)}" for name in weight_map(sizes)}
        names = {name: key for name, key in stored.items() if key in tensors}
        return self.compute.model(sizes, rope, LazyTensors(names, lambda name: tensors[names[name]]))

    @classmethod
    def from_model(cls, path: Path, target: DraftableModel[Any], depth: int | None = None) -> Self:
        """Return a published small language model as a drafter (PARD): its config.json names a `pard_token`.

        A model of PARD-2 also has a matrix for the states of one target. The product of both is added to embeddings.
        `depth` is the number of tokens of a draft, by default `MODEL_MASKS` + 1. Raises UsageMistake if the model's
        tokens are not the target's, or if the matrix was made for another target. Raises
        LocalspecError for a damaged model, or one without a `pard_token`.
        """
        config, tokenizer = read_config(inspect(path)), Tokenizer.open(path)
        mask = mask_token(config, path)
        compare_tokens(tokenizer, config.vocab_size, target.tokenizer, path)
        never = impossible_ids(tokenizer, mask, target.tokenizer, target.vocab_size)
        described = target_map(config.content, path)
        features = None if described is None else MappedFeatures(target, described)
        model = target.compute.read_model(path, min(target.context, config.max_position_embeddings))
        masks = MODEL_MASKS if depth is None else min(max(depth - 1, 1), MOST_MASKS)
        options = ParallelSpecOptions(masks=masks, form="model", model=str(path))
        return cls(target, options, {}, Published(model, mask, never, features))

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: ParallelSpecOptions) -> dict[str, TensorSpec]:
        """Return the tensors: the layers, the masks' embeddings, and tensors that only some options need.

        Raises UsageMistake and LocalspecError for a model that is not a drafter.
        """
        target_sizes = target.compute.target.sizes
        is_model = options.form == "model"
        sizes = masked_model(options.config, target.context)[0] if is_model else layers_of(target_sizes, options)
        specs = {"masks": TensorSpec((1 if is_model else options.masks, sizes.hidden_size))}
        for name, made_of in weight_map(sizes).items():
            rows, columns = sum(rows for _, rows in made_of), in_features(name, sizes)
            if is_model or name != "embed_tokens":
                specs[f"model.{stored_name(name)}"] = TensorSpec((rows,) if columns is None else (rows, columns))
        if options.form == "eagle":
            specs["joined.weight"] = TensorSpec((target_sizes.hidden_size, 2 * target_sizes.hidden_size))
            specs["joined.bias"] = TensorSpec((target_sizes.hidden_size,))
        if options.rank:
            width, rank = target_sizes.hidden_size, options.rank
            specs |= {f"correction.{name}.weight": TensorSpec((rank, width)) for name in ("near", "far")}
            specs["correction.near.bias"], specs["correction.out.weight"] = (
                TensorSpec((rank,)),
                TensorSpec((width, rank)),
            )
        if vocabulary := options.tokens(target_sizes.vocab_size):
            specs["kept"] = TensorSpec((vocabulary,), "int64")
        if is_model:
            specs["never"] = TensorSpec((target_sizes.vocab_size,), "bool")
        return specs

    @property
    def depth(self) -> int:
        """The number of tokens in a draft."""
        return self.options.masks + 1

    @property
    def nbytes(self) -> int:
        """Bytes of weights, cache and features."""
        others = self._joined, self._never, self._correction, self._features
        return bytes_of(self._model, self._masks, self._cache, self._vocabulary, *others)

    # -- drafting -----------------------------------------------------------------------------------------------------

    def calibrate(self, step: Step) -> None:
        if self._correction:
            self._trees.calibrate(step)
        else:
            super().calibrate(step)

    def forget_draft(self) -> None:
        super().forget_draft()
        self._trees.forget()

    def draft(self, context: Context) -> DraftTree:
        """Return the tree of one forward over the masks and the tokens that are new to the drafter's cache,
        including the root."""
        nodes, position = context.nodes, len(context.committed)
        self.rewind(position - 1)  # the root's row is always computed again
        has_features = self._features is None or len(self._features) == position - 1
        if not nodes or not has_features:
            return DraftTree((context.root,), (-1,))
        states = self._predict(context.committed, min(self.options.masks, nodes - 1))
        logits, correction = self._logits(states), self._correction
        sampled = context.sampling.rule == "rejection"
        if correction is None:
            logits = self._vocabulary.whole(logits) if sampled else logits
            return self.build_tree(context, self.compute.logits(logits), ids=None if sampled else self._vocabulary.ids)
        far = correction.far(states)

        def logits_of(parents: Sequence[int], tokens: Sequence[int], depth: int) -> Rows:
            row = slice(depth, depth + 1)  # the mask's rows; the root's own row has read the token before
            rows = logits[row] + correction(self.compute.target.embed(tokens), far[row]) if depth else logits[:1]
            return self._vocabulary.whole(rows) if sampled else rows

        return self._trees.grow(context, logits_of, len(logits), self._vocabulary.ids)

    def _predict(self, committed: Sequence[int], masks: int) -> Rows:
        """Return states [1 + masks, hidden_size] of the root and its masks; rows of tokens stay in the cache."""
        while len(committed) - self._cache.length > CHUNK:
            self._read_rows(committed[self._cache.length : self._cache.length + CHUNK], 0)
        new = len(committed) - self._cache.length
        return self._read_rows(committed[self._cache.length :], masks)[new - 1 :]

    def _read_rows(self, tokens: Sequence[int], masks: int) -> Rows:
        """Return states [tokens + masks, hidden_size] of new tokens and masks; add the tokens to the cache."""
        start, count = self._cache.length, len(tokens)
        features = None if self._features is None else self._features.of_tokens(start, count)
        states = self._model.read_rows(self._embed(tokens, masks, features), self._cache)
        self._cache.keep(range(count))
        return states

    def _embed(self, tokens: Sequence[int], masks: int, features: Rows | None) -> Rows:
        """Return the input [n + masks, hidden_size] of tokens [n] and features [n, hidden_size].

        In EAGLE's form the features of masks are zeros (eq. 5). In PARD-2 features are added to embeddings, and masks
        have the root's features.
        """
        if self.options.form == "model":  # one mask for all, and ids that no tokenizer produces
            largest, embed = self._model.sizes.vocab_size - 1, self._model.embed
            tokens, after = [min(token, largest) for token in tokens], self.compute.repeated(self._masks, masks)
        else:
            embed, after = self.compute.target.embed, self._masks[:masks]
        x = self.compute.concat([embed(tokens), after])
        if features is None or self._features is None:
            return x
        if self._joined is None:
            return x + self.compute.concat([features, self.compute.repeated(features[len(tokens) - 1 :], masks)])
        return self._joined(self.compute.concat([self.compute.concat([features, self._features.zeros(masks)]), x], 1))

    def _logits(self, states: Rows) -> Rows:
        """Return logits [rows, draft vocabulary]. In the form "model", ids that are never drafted have -inf."""
        if self.options.form != "model":
            return self._vocabulary.head(states)
        logits, width = self._model.head(states), self.target.vocab_size
        if logits.shape[1] < width:
            logits = self.compute.at_columns(logits, np.arange(logits.shape[1]), width)
        return logits[:, :width] + self._never


class Correction:
    """The change of a mask's logits by the token before it: W B SiLU(N e + b + F s), where W is the target's head.

    e is the token's normalised embedding, and s the mask's state. W B [draft vocabulary, rank] is computed once, so
    that drafting does not read the head for each depth.
    """

    def __init__(self, compute: Compute, tensors: Mapping[str, Array], head: Callable[[Rows], Rows]) -> None:
        self._compute = compute
        self._near = compute.linear(tensors["correction.near.weight"], tensors["correction.near.bias"])
        self.far = compute.linear(tensors["correction.far.weight"])
        out = np.ascontiguousarray(tensors["correction.out.weight"].T)
        columns = compute.logits(head(compute.rows(out))).numpy()
        self._out = compute.linear(np.ascontiguousarray(columns.T))

    @property
    def nbytes(self) -> int:
        """Bytes of the correction's matrices."""
        return bytes_of(self._near, self.far, self._out)

    def __call__(self, embeddings: Rows, far: Rows) -> Rows:
        """Return the change [rows, draft vocabulary] of masks' logits. `far` is the result of `self.far` for the masks'
        states."""
        compute = self._compute
        return self._out(compute.silu(self._near(compute.rms_norm(embeddings)) + far))
