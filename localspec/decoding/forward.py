"""What decoding asks of the model it decodes with, whoever computes it: forwards over rows, and a cache behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from localspec.decoding.tree import DraftTree


class TokenCache(Protocol):
    """Keys and values of the committed tokens; the rows of the last forward lie behind them until they are kept."""

    length: int

    @property
    def capacity(self) -> int:
        """Slots that it has room for now."""

    @property
    def nbytes(self) -> int:
        """Memory the cache holds."""

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Makes room for `slots` tokens, the tree included; with `spare` for some more, so that it seldom grows."""

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
    multiple: int  # rows behind a cache are filled up to a multiple of this many
    stop_tokens: frozenset[int]

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def dtype(self) -> torch.dtype:
        """What its embeddings are kept in."""

    @property
    def nbytes(self) -> int:
        """Memory its weights hold."""

    def cache(self, slots: int) -> CacheT:
        """An empty cache with room for `slots` tokens."""

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: CacheT, *, last: bool = False
    ) -> ForwardOutput:
        """One pass over new rows: tokens [n], positions [n], mask bool [n, n]; with `last`, logits of the last row."""

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """The part of a tree, after `start` committed tokens, that is computed to the bit where that was asked for."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; special tokens have none."""


def common_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the longest common prefix of two texts: so many tokens of a cache can be kept."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return min(len(ours), len(theirs))
