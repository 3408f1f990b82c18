"""The interface between decoding and a model on any backend: forwards over rows of tokens, and a cache of committed
tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from localspec.decoding.logits import Hidden, Logits
from localspec.decoding.tree import DraftTree

_AT_ONCE = 256  # tokens compared at once


class TokenCache(Protocol):
    """A store of the keys and values of the committed tokens. Until `keep` is called, the rows of the last forward
    follow them."""

    @property
    def length(self) -> int:
        """The number of committed tokens."""

    @property
    def capacity(self) -> int:
        """The number of tokens that the cache has room for now."""

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Make room for `slots` tokens, including the tree. With `spare` make a little more room, so that the cache
        seldom grows.

        Raises MemoryError or RuntimeError if there is not enough memory; the cache is then unchanged.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Commit the rows `path` of the last forward, in this order. Row numbers count from 0."""

    def truncate(self, length: int) -> None:
        """Discard everything after the first `length` tokens, or more if necessary.

        The property `length` is then the number of tokens left. A cache of keys and values discards no more than
        requested. A cache with recurrent states may have to discard more, but it can always discard exactly the rows of
        the last step or draft.
        """

    def assume(self, length: int) -> None:
        """Count the first `length` slots as committed, whatever they contain, for measurements that read no text."""


class ParkableCache(TokenCache, Protocol):
    """A cache that can be copied and cut, so that it can be kept while another text is decoded, and continued later."""

    def reachable(self, length: int) -> int:
        """Return how many tokens `truncate(length)` would leave. `length` may exceed the cache's length."""

    def copy(self, length: int, slots: int) -> Self:
        """Return a cache with the first `length` tokens and room for at least `slots`.

        `length` must be a result of `reachable`. Raises MemoryError or RuntimeError if memory runs out.
        """

    @property
    def pinned(self) -> bool:
        """Whether recorded CUDA graphs refer to the memory of this cache.

        If so, it is cheaper to copy another cache into this one than to record the graphs again for the other cache.
        """

    def take(self, other: Self) -> bool:
        """Copy the contents of the cache `other` into this one if that saves time. Return whether they were copied.

        If not, the caller continues with `other` instead of this cache.
        """


CacheT = TypeVar("CacheT", bound=TokenCache)
ParkableT = TypeVar("ParkableT", bound=ParkableCache)


@dataclass(frozen=True)
class ForwardOutput:
    """The result of one forward: logits [rows, vocab_size], and hidden states after the final norm [rows, hidden_size].

    `inner` are the requested states, side by side [rows, places * hidden_size]; None if none were requested.
    `once_seconds` is the time that this forward spent on preparation that later forwards do not repeat.
    """

    logits: Logits
    hidden: Hidden
    inner: Hidden | None = None
    once_seconds: float = 0.0


class ForwardModel(Protocol[CacheT]):
    """A model that reads rows of tokens. It also turns text into tokens, and committed tokens into text."""

    context: int  # the longest text in tokens
    row_multiple: int  # rows of a forward are filled up to a multiple of this
    stop_tokens: frozenset[int]
    file: Path | None  # that localspec wrote with its weights and can write again, if they are in one

    @property
    def branches(self) -> bool:
        """Whether the model computes trees.

        If the model reads only chains, because it has recurrent layers, `aligned` returns chains.
        """

    @property
    def special_tokens(self) -> frozenset[int]:
        """Ids that do not stand for text: role marks, ends, padding."""

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

        With `last` return logits only of the last row. `inner` requests states by their indices in Hugging Face's
        hidden_states: 0 are the embeddings, i the states before layer i, the last the states after the final norm.
        """

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Return the part of a tree that the model computes with the same result as plain decoding.

        If the model reads only chains, that part is a chain. If results must be bit-identical, nodes are removed whose
        slot in the cache would change their bits. Otherwise the whole tree is returned. `start` is the number of
        committed tokens.
        """

    def encode(self, messages: Sequence[dict[str, str]], think: bool | None = None) -> list[int]:
        """Return the token ids of a conversation that waits for the assistant's reply.

        `think` turns thinking on or off; None leaves it to the template. Raises LocalspecError for a chat template that
        fails.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""


def nan_words(name: str, model: ForwardModel[Any]) -> str:
    """Return the error message "`name` computes NaN in int8; …" for a `model` whose logits have NaN."""
    again = f"delete {model.file}, which localspec makes again; if that does not help, " if model.file else ""
    form = "the blocks of its GGUF files" if model.precision == "blocks" else model.precision
    return (
        f"{name} computes NaN in {form}; its weights are damaged, or too large for this format: {again}"
        "try --dtype fp32, or fetch the model again."
    )


def set_aside(cache: ParkableT, fresh: Callable[[int], ParkableT]) -> tuple[ParkableT, ParkableT]:
    """Return a cache with the contents of `cache`, to be kept for later, and an empty cache for another text.

    `fresh(slots)` makes an empty cache. If `cache` is pinned, its contents are copied, and it becomes the empty cache.
    """
    if not cache.pinned:
        return cache, fresh(0)
    copy = cache.copy(cache.length, cache.length)
    cache.truncate(0)
    return copy, cache


def brought_back(parked: ParkableT, cache: ParkableT) -> ParkableT:
    """Return a cache with the contents of `parked`: the empty `cache` if they could be copied to it, or `parked`
    itself."""
    return cache if cache.take(parked) else parked


def common_prefix(text: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two texts: how many tokens of a cache can be reused."""
    start, shortest = 0, min(len(text), len(other))
    while start < shortest and text[start : start + _AT_ONCE] == other[start : start + _AT_ONCE]:
        start += _AT_ONCE
    for index in range(start, shortest):
        if text[index] != other[index]:
            return index
    return shortest
