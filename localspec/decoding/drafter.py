"""The protocol of drafters: a drafter observes the target and proposes a tree of possible next tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.decoding.forward import ParkableCache, TokenCache
from localspec.decoding.logits import Hidden, Logits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree


@dataclass(frozen=True)
class Context:
    """The input of `Drafter.draft`. `committed` are the tokens of the text; the last of them is the root of the draft.

    `cache` is the target's and holds all tokens before the root. A drafter may use its free slots. `token_seconds` is
    the time that one more accepted token saves at present; None if the size of drafts is fixed. `verify_seconds` maps a
    number of rows to the seconds of verifying them. `covered` is set if another drafter proposes tokens too: by depth,
    the chance that it already proposes all right tokens up to that depth.
    """

    committed: Sequence[int]
    cache: TokenCache
    nodes: int  # the most nodes of the tree, not counting the root
    sampling: Sampling
    token_seconds: float | None = None
    covered: Sequence[float] = ()
    verify_seconds: Callable[[int], float] = lambda rows: 0.0

    @property
    def root(self) -> int:
        return self.committed[-1]


@dataclass(frozen=True)
class Step:
    """The target's answer to one chunk of prefill, or to one decode step.

    `committed` are the tokens that became final, in order: the accepted nodes and the bonus token. In prefill
    `committed` has the chunk's tokens, and after the last chunk also the first pick. `hidden` [rows, hidden_size] are
    the target's states at the rows now in the cache (the chunk, or the path). `inner` are the states of the layers that
    the drafter reads. `greedy_picks` are the target's argmax at every node of the tree, and `logits` have one row per
    node. Prefill has no tree and no times, and logits only of its last row.
    """

    committed: Sequence[int]
    hidden: Hidden
    tree: DraftTree | None = None
    path: Sequence[int] = ()
    greedy_picks: Sequence[int] = ()
    draft_seconds: float = 0.0  # until it was known which nodes to verify
    verify_seconds: float = 0.0  # from there until the target's picks were known
    logits: Logits | None = None
    learn_seconds: float = 0.0  # in which drafter and budget learned from it
    inner: Hidden | None = None


@dataclass
class DrafterState:
    """The state of a drafter that has read a text. It is stored so that drafting can continue after this text later.

    `cache` belongs to the drafter's own model, if it has one. `features` are rows of the target's states, one per
    token. `inner` are the states of the drafters within this drafter.
    """

    cache: ParkableCache | None = None
    features: Sequence[Any] = ()
    inner: Sequence["DrafterState"] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of this state."""
        total = sum(int(row.nbytes) for row in self.features) + (self.cache.nbytes if self.cache else 0)
        return total + sum(state.nbytes for state in self.inner)

    def copy(self, length: int) -> "DrafterState":
        """Return a copy of the state after the first `length` tokens, or after fewer if the cache cannot be cut there.

        Raises the errors of `ParkableCache.copy`.
        """
        cache = self.cache
        if cache is not None:
            reached = cache.reachable(min(length, cache.length))
            cache = cache.copy(reached, reached)
        inner = [state.copy(length) for state in self.inner]
        return DrafterState(cache, self.features[:length], inner)


class Drafter(Protocol):
    """A method of drafting. It observes the prompt and each decode step, and drafts only after the whole prompt."""

    @property
    def target_layers(self) -> Sequence[int]:
        """Indices, in Hugging Face's hidden_states, of the target's states that the drafter reads in `Step.inner`."""

    @property
    def nbytes(self) -> int:
        """Bytes that the drafter holds in addition to the target."""

    def observe(self, step: Step) -> None:
        """Observe a chunk of prefill or a decode step."""

    def draft(self, context: Context) -> DraftTree:
        """Return a tree with the last committed token as root and at most `context.nodes` nodes below it."""

    def rewind(self, length: int) -> None:
        """Discard everything observed after the first `length` committed tokens. With 0 discard everything."""

    def hand_over(self) -> DrafterState:
        """Return the state of the current text, so that `resume` can continue it later. Forget the text.

        The state holds only what the drafter could not compute again without running the target.
        """

    def resume(self, state: DrafterState, tokens: Sequence[int]) -> None:
        """Continue from `state`, the state of the text `tokens`: a result of `hand_over`, or its copy.

        The drafter must hold no text.
        """


class Textless:
    """A base class of drafters that store nothing about the text, so their state is empty."""

    nbytes, target_layers = 0, ()

    def hand_over(self) -> DrafterState:
        return DrafterState()

    def resume(self, state: DrafterState, tokens: Sequence[int]) -> None:
        pass
