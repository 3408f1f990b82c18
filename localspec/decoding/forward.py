"""What decoding asks of a model, whoever computes it: forwards over rows of tokens, and a cache of those committed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from localspec.decoding.tree import DraftTree


class TokenCache(Protocol):
    """Keys and values of the committed tokens; the rows of the last forward lie after them until they are kept."""

    length: int

    @property
    def capacity(self) -> int:
        """How many tokens it has room for now."""

    @property
    def nbytes(self) -> int:
        """Bytes that the cache holds."""

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Makes room for `slots` tokens, the tree included; with `spare`, for some more, so that it seldom grows.

        Raises MemoryError or RuntimeError where memory runs out; the cache is then unchanged.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Commits the rows `path` of the last forward, in that order."""

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""


CacheT = TypeVar("CacheT", bound=TokenCache)


@dataclass(frozen=True)
class ForwardOutput:
    """The result of one forward: logits [rows, vocab_size], and hidden states after the final norm
    [rows, hidden_size].
    """

    logits: torch.Tensor
    hidden: torch.Tensor


class ForwardModel(Protocol[CacheT]):
    """A model that reads rows of tokens, and turns committed tokens into text."""

    context: int  # the longest text it holds, in tokens
    row_multiple: int  # a forward with a cache fills its rows up to a multiple of this many
    stop_tokens: frozenset[int]

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its embeddings and its cache."""

    @property
    def nbytes(self) -> int:
        """Bytes that its weights hold."""

    def cache(self, slots: int) -> CacheT:
        """An empty cache with room for `slots` tokens."""

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: CacheT, *, last: bool = False
    ) -> ForwardOutput:
        """Reads new rows: tokens [n], positions [n], mask bool [n, n], True where a row sees another.

        Every row sees all committed tokens too. With `last` the logits are those of the last row only.
        """

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Returns the part of a tree, after `start` committed tokens, that the model computes as plain decoding would.

        That is all of it, except where results must be equal to the bit and the cache's layout would change one.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids; special tokens have none."""


def common_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two texts: so many tokens of a cache can be kept."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return min(len(ours), len(theirs))
