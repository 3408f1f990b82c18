"""Ouroboros (Zhao et al. 2024): a small model drafts phrase by phrase, and phrases lengthen its drafts."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.forward import ForwardModel
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters, Ingredients
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool


@dataclass(frozen=True)
class Pair:
    """A target and its small model: the target's special tokens and vocabulary, the small model, and a pool of phrases.

    Phrases have only ids that both models know.
    """

    special: Collection[int]
    vocabulary: int
    small: ForwardModel[Any]
    pool: PhrasePool


def draft_model(
    pair: Pair, chosen: Hyperparameters, accelerated: bool, costs: ForwardCostModel | None, fixed: bool
) -> DraftModel:
    """Return the small model as a drafter. If `accelerated`, phrases speed up its own decoding (§3.1).

    `costs` are the costs of its forwards. With them the drafter decides in each step how far to draft, up to γ tokens,
    and prunes its own trees. A `fixed` draft is as long as the tree has room for.
    """
    length, deciding = (None, None) if fixed else (chosen.draft, costs)
    if not accelerated:
        return DraftModel(pair.small, pair.vocabulary, Autoregressive(), Budget(0), length, deciding)
    window = Lookahead(pair.pool, pair.special, chosen.window, chosen.phrase) if chosen.window else Autoregressive()
    ahead = chosen.phrase - 1
    inner = WithPhrases(window, pair.pool, chosen.phrases, ahead, read_only=True)
    # Two thirds of the nodes are for the window, which needs room for all its columns.
    columns = max(chosen.window + chosen.phrases, -(-3 * chosen.window // 2))
    budget = Budget(columns * ahead, costs, pair.small.branches)
    return DraftModel(pair.small, pair.vocabulary, inner, budget, length, deciding)


def ouroboros(
    pair: Pair,
    chosen: Hyperparameters,
    costs: ForwardCostModel | None,
    fixed: bool,
    parts: Collection[str] = ("accelerating", "lengthening"),
) -> Drafter:
    """Return Ouroboros: the small model's draft, then K phrases that begin with its last token (§3.2, eqs. 7 to 9).

    The phrases follow the draft's last node, so they matter only if the whole draft is accepted. The pool also has
    phrases from verification and from history (§3.3, §3.4). With the part `beside`, which is not in the paper, phrases
    may also start at the root, which helps if the small model's first token is wrong. With `costs`, that part adds
    phrases of any number and length, as long as they save time.
    """
    drafted = draft_model(pair, chosen, "accelerating" in parts, costs, fixed)
    if "lengthening" not in parts:
        return drafted
    anywhere = "beside" in parts
    if anywhere and costs is not None and not fixed:
        return WithPhrases(drafted, pair.pool, anywhere=True)
    return WithPhrases(drafted, pair.pool, chosen.phrases, chosen.phrase - 1, anywhere=anywhere)


def build(ingredients: Ingredients) -> Drafter:
    """Build Ouroboros, or only its parts in `ingredients.parts`, for this target and small model."""
    target, small = ingredients.target, ingredients.small
    assert small is not None
    pair = Pair(target.special_tokens, target.vocab_size, small, ingredients.pool)
    return ouroboros(pair, ingredients.hyperparameters, ingredients.costs, ingredients.fixed, ingredients.parts)
