"""Ouroboros (Zhao et al. 2024): a small model that drafts phrase by phrase, and drafts lengthened by phrases."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.nn.target import Target
from localspec.policy.forward_costs import ForwardCostModel

MOST = 16  # of each hyper-parameter
WIDEST = 64  # nodes of the small model's own trees


@dataclass(frozen=True)
class Hyperparameters:
    """γ, W, β and K of the paper; without a window the draft is accelerated by the pool alone."""

    draft: int = 4  # tokens that the small model drafts
    window: int = 2  # columns of its Jacobi window
    phrase: int = 4  # tokens of a phrase, the first of which is the one it is found by
    phrases: int = 3  # candidates behind a draft, and in each forward of the small model

    def as_json(self) -> dict[str, int]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Any) -> Self | None:
        """What was stored; None for anything else, for it can be searched again."""
        least = {"draft": 1, "window": 0, "phrase": 2, "phrases": 1}
        names = {field.name for field in fields(cls)}
        if not isinstance(stored, dict) or stored.keys() != names:
            return None
        if not all(type(value) is int and least[name] <= value <= MOST for name, value in stored.items()):
            return None
        return cls(**stored)


@dataclass(frozen=True)
class Pair:
    """A target's special tokens and vocabulary, the small model that drafts for it, and the phrases they share, which
    hold no id that one of the two does not know.
    """

    special: Collection[int]
    vocabulary: int
    small: Target
    pool: PhrasePool


def draft_model(
    pair: Pair, chosen: Hyperparameters, accelerated: bool, costs: ForwardCostModel | None, fixed: bool
) -> DraftModel:
    """The small model, by phrases where it is `accelerated` (§3.1); `costs` are those of its own forwards.

    Without them its own trees are never resized. A `fixed` draft is as long as the tree has room for.
    """
    length = None if fixed else chosen.draft
    if not accelerated:
        return DraftModel(pair.small, pair.vocabulary, Autoregressive(), Budget(0), length)
    window = Lookahead(pair.pool, pair.special, chosen.window, chosen.phrase) if chosen.window else Autoregressive()
    ahead = chosen.phrase - 1
    inner = WithPhrases(window, pair.pool, chosen.phrases, ahead, lent=True)
    budget = Budget(min((chosen.window + chosen.phrases) * ahead, WIDEST), costs)
    return DraftModel(pair.small, pair.vocabulary, inner, budget, length)


def ouroboros(
    pair: Pair,
    chosen: Hyperparameters,
    costs: ForwardCostModel | None,
    fixed: bool,
    accelerating: bool = True,
    lengthening: bool = True,
    beside: bool = False,
) -> Drafter:
    """The draft of the small model, and behind it K phrases that begin with its last token (§3.2, eqs. 7 to 9).

    They count where the whole draft was accepted, for they hang below its last node, and then with the token that the
    target says behind them. Phrases from verification and from history (§3.3, §3.4) are the pool's. With `beside`,
    which is not in the paper, phrases may stand at the root, too, and serve where the small model errs at once.
    """
    drafted = draft_model(pair, chosen, accelerating, costs, fixed)
    if not lengthening:
        return drafted
    return WithPhrases(drafted, pair.pool, chosen.phrases, chosen.phrase - 1, anywhere=beside)
