"""Ouroboros (Zhao et al. 2024): a small model that drafts phrase by phrase, and drafts lengthened by phrases."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters, Ingredients
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.nn.target import Target
from localspec.policy.forward_costs import ForwardCostModel

WIDEST = 64  # nodes of the small model's own trees


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
    parts: Collection[str] = ("accelerating", "lengthening"),
) -> Drafter:
    """The draft of the small model, and behind it K phrases that begin with its last token (§3.2, eqs. 7 to 9).

    They count where the whole draft was accepted, for they hang below its last node, and then with the token that the
    target says behind them. Phrases from verification and from history (§3.3, §3.4) are the pool's. With the part
    `beside`, which is not in the paper, phrases may stand at the root, too, and serve where the small model errs at
    once.
    """
    drafted = draft_model(pair, chosen, "accelerating" in parts, costs, fixed)
    if "lengthening" not in parts:
        return drafted
    return WithPhrases(drafted, pair.pool, chosen.phrases, chosen.phrase - 1, anywhere="beside" in parts)


def build(ingredients: Ingredients) -> Drafter:
    """The drafter of these two models, with those of its parts that are used."""
    target, small = ingredients.target, ingredients.small
    assert small is not None
    pair = Pair(target.special_tokens, target.transformer.config.vocab_size, small, ingredients.pool)
    return ouroboros(pair, ingredients.hyperparameters, ingredients.costs, ingredients.fixed, ingredients.parts)


def searched(parts: Collection[str]) -> Sequence[str]:
    """The hyper-parameters that are searched for a pair of models, with these parts."""
    names = ["draft"]
    names += ["window"] if "accelerating" in parts else []
    names += ["phrase", "phrases"] if {"accelerating", "lengthening"} & {*parts} else []
    return names
