"""MTP: a layer in a model's own files that predicts a token further ahead (Qwen3.5). It drafts chains, token by token.

A row joins a token's embedding with the target's state one position before it, which predicted that token. The target
has not read the nodes below the root, so their rows join the layer's own state instead:

    tokens      a    b    root  t
    states      -    s_a  s_b   m_r     s: of the target, after its final norm; m: the layer's own, after its norm
    predicts         root t     …
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np

from localspec.choosing.fit import CHUNK
from localspec.decoding.compute import Array, DraftableModel, RowModel, Rows
from localspec.decoding.drafter import Context
from localspec.decoding.forward import ParkableCache
from localspec.decoding.tree import DraftTree
from localspec.drafters.paths import PathDrafter
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import QUIET, Features, OfModel, bytes_of, check_options
from localspec.families.architecture import ahead_config, ahead_features, ahead_gguf_map, ahead_map
from localspec.models.drafter_cards import mtp_layer
from localspec.weights.checkpoint import inspect, is_packed
from localspec.weights.gguf_weights import registered_ahead
from localspec.weights.stored import LazyTensors, StoredTensor, damaged, find_stored


@dataclass(frozen=True)
class MtpOptions:
    """The options of an MTP drafter. A draft has at most `depth` tokens. It ends sooner if another token would not
    pay."""

    depth: int = 5

    def __post_init__(self) -> None:
        check_options("mtp", self, [("depth", 1 <= self.depth <= 16, "1 to 16")])


class Drafter(PathDrafter, OfModel):
    """Multi-token prediction: one layer that runs once per token, with the target's embedding and head.

    Rows of the text keep keys and values; the keys and values of a draft are discarded with it. The drafter proposes
    chains, because a target with recurrent layers cannot read branches.
    """

    kind = "mtp"
    CHAIN = True
    Options = MtpOptions
    options: MtpOptions
    _features: Features
    _model: RowModel
    _cache: ParkableCache

    def __init__(self, target: DraftableModel[Any], options: MtpOptions, tensors: Mapping[str, Array]) -> None:
        super().__init__(target, options, tensors)
        sizes, compute = self.compute.target.sizes, self.compute
        self._eps = sizes.rms_norm_eps
        self._norms = {
            name: compute.rows(np.asarray(tensors[name])[None] + np.float32(sizes.norm_offset))
            for name in ("embedding_norm", "state_norm")
        }
        self._fc = compute.linear(tensors["fc.weight"])
        self._model = compute.model(ahead_config(sizes), None, tensors)
        self._cache = self._model.cache(0)
        self._features = Features(compute)

    @classmethod
    def from_model(cls, path: Path, target: DraftableModel[Any], depth: int | None = None) -> Self:
        """Return a drafter with the MTP layer in the target's own files. `depth` is the number of tokens of a draft.

        Raises LocalspecError if the files have no MTP layer, or if the layer is damaged or needs another computation.
        """
        sizes = target.compute.target.sizes
        mtp_layer(path)  # report a wrong config before anything is read
        options = MtpOptions() if depth is None else MtpOptions(min(max(depth, 1), 16))
        if is_packed(path):
            names = {name: parts[0][0] for name, parts in ahead_gguf_map(sizes).items()}
            return cls(target, options, _tensors(names, registered_ahead(path, sizes)))
        made_of = ahead_map(sizes)
        stored = find_stored(inspect(path), made_of, lambda name: ahead_features(name, sizes))
        names = {name: parts[0][0] for name, parts in made_of.items()}
        return cls(
            target, options, _tensors(names, {name: [stored[part] for part, _ in made_of[name]] for name in made_of})
        )

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: MtpOptions) -> dict[str, TensorSpec]:
        """List the tensors: the layer, the norms before it, and the matrix that joins its two inputs."""
        sizes, specs = target.compute.target.sizes, {}
        for name, parts in ahead_map(sizes).items():
            rows, columns = sum(rows for _, rows in parts), ahead_features(name, sizes)
            specs[name] = TensorSpec((rows,) if columns is None else (rows, columns))
        return specs

    @property
    def nbytes(self) -> int:
        """Bytes of weights, keys, values and states."""
        return bytes_of(*self._norms.values(), self._fc, self._model, self._cache, self._features)

    # -- drafting -----------------------------------------------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """Discard everything after the first `length` tokens. Earlier keys, values and states stay valid."""
        self._cache.truncate(min(self._cache.length, max(length - 1, 0)))  # the first token has no row
        super().rewind(length)

    @QUIET
    def draft(self, context: Context) -> DraftTree:
        """Read the new part of the text and return a chain, sampled for the rule `rejection`."""
        position = len(context.committed)
        self.rewind(position - 1)  # the root's row is always computed again
        depths = min(self.depth, context.nodes)
        if not depths or position < 2 or len(self._features) != position - 1:
            return DraftTree((context.root,), (-1,))
        state, text = self._read_text(context.committed), self._cache.length

        def logits_of(parents: Sequence[int], tokens: Sequence[int], depth: int) -> Rows:
            nonlocal state
            if depth:
                state = self._read(tokens, state)
            return self.compute.target.head(state)

        try:
            return self._trees.grow(context, logits_of, depths)
        finally:
            self._cache.truncate(text)

    def _read_text(self, committed: Sequence[int]) -> Rows:
        """Read tokens that have no row yet, including the root; return the root's state [1, hidden_size]."""
        while True:
            start = self._cache.length + 1
            tokens = committed[start : start + CHUNK]
            states = self._read(tokens, self._features.of_tokens(start, len(tokens)))
            if start + len(tokens) == len(committed):
                last: Rows = states[len(states) - 1 :]
                return last

    def _read(self, tokens: Sequence[int], previous: Rows) -> Rows:
        """Read tokens and the states before them, [tokens, hidden_size]; return the layer's states, of that shape."""
        pair = (("embedding_norm", self.compute.target.embed(tokens)), ("state_norm", previous))
        normed = [self.compute.rms_norm(x, self._eps) * self._norms[name] for name, x in pair]
        states = self._model.read_rows(self._fc(self.compute.concat(normed, 1)), self._cache)
        self._cache.keep(range(len(tokens)))
        return states


def _tensors(names: Mapping[str, str], stored: Mapping[str, Sequence[StoredTensor]]) -> LazyTensors:
    """Return the layer's tensors under localspec's names, each stacked from its parts in the files, as fp32.

    `names` maps these names to the names in the files, for errors.
    """

    def read(name: str) -> Array:
        parts = stored[name]
        whole = np.concatenate([part.floats(0, prod(part.shape)).reshape(part.shape) for part in parts])
        if not np.isfinite(whole).all():
            tensor = names[name]
            raise damaged(parts[0].file, f"the tensor '{tensor}' has NaN or inf")
        return whole

    return LazyTensors(stored, read)
