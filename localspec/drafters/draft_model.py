"""A draft model: a small target, decoded by the same decode step as the target that it drafts for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.forward import ForwardModel, TokenCache, common_prefix
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.ingredients import Ingredients
from localspec.errors import LocalspecError
from localspec.policy.prediction import CHUNK

SOURCE = "draft_model"
PRIOR = 0.5  # how often a token is believed to be right at first
REMEMBERED = 24  # drafts, over which accuracy is averaged


class DraftModel:
    """Speculative decoding (Leviathan et al. 2023, §2; Chen et al. 2023): drafts the chain that a small model decodes.

    A draft has at most `length` tokens, or as many as there are nodes. The small model samples with the noise that the
    target's picks will meet, so that sampled text is accepted almost as well as greedy text. It may be accelerated by a
    drafter of its own, `inner`, with its own budget (Ouroboros, §3.1), which observes what the small model commits.
    Each token is read once: nothing is read again where a part of a draft was accepted, and where all of it was, its
    last token is read together with the bonus token. The target has the ids below `vocabulary`.
    """

    def __init__(
        self, small: ForwardModel[Any], vocabulary: int, inner: Drafter, budget: Budget, length: int | None = None
    ) -> None:
        self.small, self.inner, self.length = small, inner, length
        self.forwards: Counter[int] = Counter()  # of the small model, by their rows
        self._vocabulary, self._budget = vocabulary, budget
        self._cache: TokenCache = small.cache(0)
        self._tokens: list[int] = []  # the text, then the draft; the first ones are in the cache
        self._failed = False
        self._confirmed = 0  # so many of them are known to be the text's
        self._drafted: list[int] = []  # the last draft
        self._accuracy: list[float] = []  # by depth: how often a token was right lately, where all before it were

    @property
    def nbytes(self) -> int:
        return self.small.nbytes + self._cache.nbytes + self.inner.nbytes

    def observe(self, step: Step) -> None:
        """Learns from the last draft. The committed text is taken over with the next draft."""
        for depth, (drafted, token) in enumerate(zip(self._drafted, step.committed, strict=False)):
            if depth == len(self._accuracy):
                self._accuracy.append(PRIOR)
            self._accuracy[depth] += (float(drafted == token) - self._accuracy[depth]) / REMEMBERED
            if drafted != token:
                break
        self._drafted = []

    def rewind(self, length: int) -> None:
        """Forgets what follows `length`; what was read before it is not read again."""
        self._truncate(length)
        self._confirmed = min(self._confirmed, length)
        self._budget.begin()
        if self._failed:
            self._truncate(0)  # what made it fail may be in the cache
            self._confirmed, self._failed = 0, False

    def draft(self, context: Context) -> DraftTree:
        """Returns the chain, up to a token that ends a reply. It is the root alone where the small model's context is
        full, and for the rest of a reply in which its logits were NaN or inf: that costs speed and changes no text.
        """
        count = len(context.committed)
        wanted = min(context.nodes, self.length or context.nodes, self.small.context - count)
        if wanted < 1 or self._failed:
            return DraftTree((context.root,), (-1,))
        self._follow_text(context.committed)
        sampling = replace(context.sampling, rule="exact")
        drafted: list[int] = []
        while len(drafted) < wanted:
            if len(self._tokens) == count + len(drafted):
                try:
                    self._decode(sampling)
                except LocalspecError:  # nothing can be picked from NaN or inf
                    self._failed = True
                    break
            token = self._tokens[count + len(drafted)]
            if token >= self._vocabulary:  # where its vocabulary is padded beyond the target's
                break
            drafted.append(token)
            if token in self.small.stop_tokens:
                break
        self._drafted = drafted
        chances = [1.0, *self._accuracy[: len(drafted)], *[PRIOR] * (len(drafted) - len(self._accuracy))]
        return replace(DraftTree.chain([context.root, *drafted], SOURCE), chance=chances)

    def _follow_text(self, committed: Sequence[int]) -> None:
        """Takes over what is new in the text. The draft stays as far as the text confirms it."""
        known = self.small.vocab_size
        fresh = [token if token < known else 0 for token in committed[self._confirmed :]]
        same = common_prefix(self._tokens[self._confirmed :], fresh)
        if same < len(fresh):
            self._truncate(self._confirmed + same)
            self._tokens += fresh[same:]
        self._confirmed = len(committed)
        # The last token is always read again, for the pick after it.
        self._cache.truncate(min(self._cache.length, len(self._tokens) - 1))

    def _truncate(self, length: int) -> None:
        del self._tokens[length:]
        self._cache.truncate(min(self._cache.length, length))
        self.inner.rewind(length)

    def _decode(self, sampling: Sampling) -> None:
        """Reads what is unread, which drafts at least one more token."""
        unread = self._tokens[self._cache.length :]
        self._cache.reserve(len(self._tokens) + self._budget.most + self.small.row_multiple)
        if len(unread) == 1:
            step = decode_step(self.small, self._cache, self.inner, self._tokens, self._budget, sampling)
            self.forwards[step.tree.size if step.tree else 1] += 1
            if not step.hidden.finite():
                raise LocalspecError("The draft model's answer is not a number.")
            self._tokens += step.committed
            return
        self.inner.rewind(self._cache.length)
        while unread:
            chunk, unread = unread[:CHUNK], unread[CHUNK:]
            step = prefill_step(self.small, self._cache, self.inner, chunk, sampling, last=not unread)
            self.forwards[len(chunk)] += 1
        self._tokens.append(step.committed[-1])


def build(ingredients: Ingredients) -> DraftModel:
    """Builds the draft model alone, without a drafter of its own."""
    small, vocabulary = ingredients.small, ingredients.target.vocab_size
    assert small is not None
    length = None if ingredients.fixed else ingredients.hyperparameters.draft
    return DraftModel(small, vocabulary, Autoregressive(), Budget(0), length)
