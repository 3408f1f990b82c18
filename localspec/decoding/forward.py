"""What decoding asks of a model, whoever computes it: forwards over rows of tokens, and a cache of those committed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from localspec.decoding.logits import Hidden, Logits
from localspec.decoding.tree import DraftTree

_AT_ONCE = 256  # tokens that are compared in one go


class TokenCache(Protocol):
    """Keys and values of the committed tokens; the rows of the last forward lie after them until they are kept."""

    @property
    def length(self) -> int:
        """How many tokens are committed."""

    @property
    def capacity(self) -> int:
        """How many tokens it has room for now."""

    @property
    def nbytes(self) -> int:
        """Bytes that the cache holds."""

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Make room for `slots` tokens, the tree included; with `spare`, for some more, so that it seldom grows.

        Raises MemoryError or RuntimeError where memory runs out; the cache is then unchanged.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Commit the rows `path` after `length`, in that order."""

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` tokens, and before them what it must: `length` says what is left.

        A cache of keys and values forgets no more than that; one with states does, but for what came lately: what a
        step or a draft read is always taken back to the token.
        """

    def assume(self, length: int) -> None:
        """Count the first `length` slots as committed, whatever they hold: for measurements, which need no text."""


class ParkableCache(TokenCache, Protocol):
    """A cache that can be put away with its text, whole or in part, and be gone on with later."""

    def reachable(self, length: int) -> int:
        """Return the length that `truncate(length)` would leave, also for a `length` beyond the end."""

    def copy(self, length: int, slots: int) -> Self:
        """Return a cache with the first `length` tokens, which are reachable, and room for at least `slots`.

        Raises MemoryError or RuntimeError where memory runs out.
        """

    @property
    def pinned(self) -> bool:
        """Whether forwards were recorded over its very slots, which are then worth more than a copy costs."""

    def take(self, other: Self) -> bool:
        """Take over what another cache holds, and return True. Return False if the other one serves as well."""


CacheT = TypeVar("CacheT", bound=TokenCache)
ParkableT = TypeVar("ParkableT", bound=ParkableCache)


@dataclass(frozen=True)
class ForwardOutput:
    """The result of one forward: logits [rows, vocab_size], and hidden states after the final norm
    [rows, hidden_size].

    `inner` are the states that were asked for, side by side [rows, places * hidden_size]; None where none were.
    `once_seconds` is what this forward took to prepare for others like it, and no later one takes.
    """

    logits: Logits
    hidden: Hidden
    inner: Hidden | None = None
    once_seconds: float = 0.0


class ForwardModel(Protocol[CacheT]):
    """A model that reads rows of tokens, and turns text into tokens and committed tokens into text."""

    context: int  # the longest text it holds, in tokens
    row_multiple: int  # a forward fills its rows up to a multiple of this many
    stop_tokens: frozenset[int]

    @property
    def branches(self) -> bool:
        """Whether it computes trees; where it reads chains alone, as recurrent layers do, `aligned` gives those."""

    @property
    def special_tokens(self) -> frozenset[int]:
        """Ids that stand for no text: role marks, ends, padding."""

    @property
    def vocab_size(self) -> int:
        """How many token ids it has."""

    @property
    def device(self) -> str:
        """The device that it computes on, as `--device` names it."""

    @property
    def precision(self) -> str:
        """The format that its numbers have, as a user would name it: int8, fp32."""

    @property
    def nbytes(self) -> int:
        """Bytes that its weights hold."""

    def cache(self, slots: int) -> CacheT:
        """Return an empty cache with room for `slots` tokens."""

    def forward(
        self, tree: DraftTree, cache: CacheT, *, last: bool = False, inner: Sequence[int] = ()
    ) -> ForwardOutput:
        """Read the nodes of a tree, each of which sees the committed tokens and its ancestors; a prompt is a chain.

        With `last` the logits are those of the last row only. `inner` asks for states by their indices in Hugging
        Face's hidden_states: 0 are the embeddings, i the states before layer i, the last those after the final norm.
        """

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Return the part of a tree, after `start` committed tokens, that the model computes as plain decoding would.

        That is all of it, except where results must be equal to the bit and the cache's layout would change one, and
        where it does not compute branches.
        """

    def encode(self, messages: Sequence[dict[str, str]], think: bool | None = None) -> list[int]:
        """Return the token ids of a conversation that waits for the assistant, who is to `think`, or not, or neither.

        Raises LocalspecError for a chat template that fails.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; special tokens have none."""


def set_aside(cache: ParkableT, fresh: Callable[[int], ParkableT]) -> tuple[ParkableT, ParkableT]:
    """Return a cache with what this one holds, to be put away, and an empty one to go on with."""
    if not cache.pinned:
        return cache, fresh(0)
    copy = cache.copy(cache.length, cache.length)
    cache.truncate(0)
    return copy, cache


def brought_back(away: ParkableT, cache: ParkableT) -> ParkableT:
    """Return a cache with what the one that was put `away` holds, in the place of an empty one."""
    return cache if cache.take(away) else away


def common_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two texts: this many tokens of a cache can be kept."""
    start, most = 0, min(len(ours), len(theirs))
    while start < most and ours[start : start + _AT_ONCE] == theirs[start : start + _AT_ONCE]:
        start += _AT_ONCE
    for index in range(start, most):
        if ours[index] != theirs[index]:
            return index
    return most
