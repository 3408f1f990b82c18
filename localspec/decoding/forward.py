"""What decoding needs from a model on any backend: forwards over rows of tokens, and a cache of committed tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from localspec.decoding.logits import Hidden, Logits
from localspec.decoding.tree import DraftTree

_AT_ONCE = 256  # tokens compared at once


class TokenCache(Protocol):
    """Keys and values of the committed tokens; the rows of the last forward lie after them until `keep`."""

    @property
    def length(self) -> int:
        """Committed tokens."""

    @property
    def capacity(self) -> int:
        """Tokens that it has room for now."""

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Make room for `slots` tokens, the tree included; with `spare`, for some more, so that it seldom grows.

        Raises MemoryError or RuntimeError where memory runs out; the cache is then unchanged.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Commit the rows `path` after `length`, in that order."""

    def truncate(self, length: int) -> None:
        """Discard everything after the first `length` tokens, and if necessary more: `length` then says what is left.

        A cache of keys and values discards no more than that. A cache with recurrent states may, but the rows of the
        last step or draft can always be discarded exactly.
        """

    def assume(self, length: int) -> None:
        """Count the first `length` slots as committed, whatever they contain: for measurements, which need no text."""


class ParkableCache(TokenCache, Protocol):
    """A cache that can be parked with its text, whole or in part, and resumed later."""

    def reachable(self, length: int) -> int:
        """Return the length that `truncate(length)` would leave, also for a `length` beyond the end."""

    def copy(self, length: int, slots: int) -> Self:
        """Return a cache with the first `length` tokens, which are reachable, and room for at least `slots`.

        Raises MemoryError or RuntimeError if memory runs out.
        """

    @property
    def pinned(self) -> bool:
        """Whether forwards were recorded over these very slots, which are then worth more than a copy costs."""

    def take(self, other: Self) -> bool:
        """Take over the contents of another cache and return True, or return False if the other is just as good."""


CacheT = TypeVar("CacheT", bound=TokenCache)
ParkableT = TypeVar("ParkableT", bound=ParkableCache)


@dataclass(frozen=True)
class ForwardOutput:
    """The result of one forward: logits [rows, vocab_size], and hidden states after the final norm [rows, hidden_size].

    `inner` are the requested states, side by side [rows, places * hidden_size]; None if none were requested.
    `once_seconds` is the time that this forward spent on preparation that no later one needs.
    """

    logits: Logits
    hidden: Hidden
    inner: Hidden | None = None
    once_seconds: float = 0.0


class ForwardModel(Protocol[CacheT]):
    """A model that reads rows of tokens, and turns text into tokens and committed tokens into text."""

    context: int  # the longest text in tokens
    row_multiple: int  # rows of a forward are filled up to a multiple of this
    stop_tokens: frozenset[int]

    @property
    def branches(self) -> bool:
        """Whether it computes trees. Recurrent layers read only chains; `aligned` gives those."""

    @property
    def special_tokens(self) -> frozenset[int]:
        """Ids that stand for no text: role marks, ends, padding."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def device(self) -> str:
        """The device, as `--device` names it."""

    @property
    def precision(self) -> str:
        """The number format, as a user would name it: int8, fp32."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""

    def cache(self, slots: int) -> CacheT:
        """Return an empty cache with room for `slots` tokens."""

    def forward(
        self, tree: DraftTree, cache: CacheT, *, last: bool = False, inner: Sequence[int] = ()
    ) -> ForwardOutput:
        """Read the nodes of a tree, each of which sees the committed tokens and its ancestors; a prompt is a chain.

        With `last` the logits are only those of the last row. `inner` requests states by their indices in Hugging
        Face's hidden_states: 0 are the embeddings, i the states before layer i, the last those after the final norm.
        """

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Return the part of a tree, after `start` committed tokens, that the model computes as plain decoding would.

        That is the whole tree, unless results must be bit-identical and the cache's layout would change one, or the
        model does not compute branches.
        """

    def encode(self, messages: Sequence[dict[str, str]], think: bool | None = None) -> list[int]:
        """Return the token ids of a conversation that waits for the assistant. `think` turns thinking on or off, if not
        None.

        Raises LocalspecError for a chat template that fails.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""


def set_aside(cache: ParkableT, fresh: Callable[[int], ParkableT]) -> tuple[ParkableT, ParkableT]:
    """Return a cache with the contents of this one, to be parked, and an empty one to continue with."""
    if not cache.pinned:
        return cache, fresh(0)
    copy = cache.copy(cache.length, cache.length)
    cache.truncate(0)
    return copy, cache


def brought_back(away: ParkableT, cache: ParkableT) -> ParkableT:
    """Return a cache with the contents of the one that was parked, in place of an empty one."""
    return cache if cache.take(away) else away


def common_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two texts: that many tokens of a cache can be kept."""
    start, most = 0, min(len(ours), len(theirs))
    while start < most and ours[start : start + _AT_ONCE] == theirs[start : start + _AT_ONCE]:
        start += _AT_ONCE
    for index in range(start, most):
        if ours[index] != theirs[index]:
            return index
    return most
