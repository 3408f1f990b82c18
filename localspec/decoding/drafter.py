"""What every drafter is: it observes what the target did, and proposes a tree of what it may do next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.decoding.forward import ParkableCache, TokenCache
from localspec.decoding.logits import Hidden, Logits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree


@dataclass(frozen=True)
class Context:
    """What a draft may use. `committed` ends with the root; the cache holds all before it, and may be borrowed.

    A part of a draft that takes time is worth it where it saves more: `token_seconds` is what one expected token more
    is worth on this machine at present (None: a fixed experiment, where time does not matter). `verify_seconds` gives
    the seconds of a verification by its rows. `covered` are the chances, by depth, that another drafter already
    proposes all tokens up to there.
    """

    committed: Sequence[int]
    cache: TokenCache
    nodes: int  # the most that the tree may have, the root not counted
    sampling: Sampling
    token_seconds: float | None = None
    covered: Sequence[float] = ()
    verify_seconds: Callable[[int], float] = lambda rows: 0.0

    @property
    def root(self) -> int:
        return self.committed[-1]


@dataclass(frozen=True)
class Step:
    """What the target did: one chunk of prefill, or one decode step.

    `committed` are the tokens that became final, in order: the accepted nodes and the bonus token; in prefill those of
    the chunk, and after the last chunk the first pick. `hidden` [rows, hidden_size] are the target's states at the rows
    now in the cache (the chunk, or the path), `inner` those of the layers that the drafter reads, and `greedy_picks`
    its argmax at every node of the tree, whose `logits` have a row a node. Prefill has no tree and no times, and logits
    of its last row alone.
    """

    committed: Sequence[int]
    hidden: Hidden
    tree: DraftTree | None = None
    path: Sequence[int] = ()
    greedy_picks: Sequence[int] = ()
    draft_seconds: float = 0.0  # until it was known what to verify
    verify_seconds: float = 0.0  # from there until the target's picks were known
    logits: Logits | None = None
    learn_seconds: float = 0.0  # that drafter and budget took to learn from it
    inner: Hidden | None = None


@dataclass
class HeldText:
    """A drafter's part of a text that was put aside, and what drafters within it hold.

    `cache` is that of a model of the drafter, and `features` are rows of the target's states, one a token.
    """

    cache: ParkableCache | None = None
    features: Sequence[Any] = ()
    inner: Sequence["HeldText"] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        held = sum(int(row.nbytes) for row in self.features) + (self.cache.nbytes if self.cache else 0)
        return held + sum(one.nbytes for one in self.inner)

    def copy(self, length: int) -> "HeldText":
        """Return what is held of the first `length` tokens, or of fewer. Raises what `TokenCache.copy` does."""
        cache = self.cache
        if cache is not None:
            reached = cache.reachable(min(length, cache.length))
            cache = cache.copy(reached, reached)
        inner = [one.copy(length) for one in self.inner]
        return HeldText(cache, self.features[:length], inner)


class Drafter(Protocol):
    """One method of drafting. Drafting starts only after the first target output: prefill is the first observation."""

    @property
    def target_layers(self) -> Sequence[int]:
        """Which states of the target it reads in `Step.inner`, by their indices in Hugging Face's hidden_states."""

    @property
    def nbytes(self) -> int:
        """Memory the drafter holds beside the target."""

    def observe(self, step: Step) -> None:
        """Observe a chunk of prefill or a decode step, after it."""

    def draft(self, context: Context) -> DraftTree:
        """Return a tree whose root is the last committed token, of at most `context.nodes` nodes below it."""

    def rewind(self, length: int) -> None:
        """Forgets what was observed after the first `length` committed tokens; 0 starts afresh."""

    def hand_over(self) -> HeldText:
        """Return what it holds of the text and could not compute again without the target; holds no text then."""

    def resume(self, held: HeldText, tokens: Sequence[int]) -> None:
        """Goes on from what it handed over, or a copy: `tokens` are the text then. It holds no text before."""
