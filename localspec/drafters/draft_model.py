"""A draft model: a small target, decoded by the same decode step as the one it drafts for (speculative decoding)."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.forward import common_prefix
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.ingredients import Ingredients
from localspec.errors import LocalspecError
from localspec.nn.target import Target
from localspec.policy.prediction import CHUNK

SOURCE = "draft_model"
UNSEEN = 0.5  # how often a token is believed to be right at first
REMEMBERED = 24  # drafts


class DraftModel:
    """Proposes the chain that a small model would say: at most `length` tokens, or as many as there are nodes.

    The small model draws with the noise that the target's own picks will meet, so drawn text is accepted almost as well
    as greedy text. What accelerates it is a drafter of its own, `inner`, with a budget of its own (Ouroboros §3.1),
    which sees what the small model says and reads, not every token of the target's.
    Each token is read once: after a draft that was accepted in part there is nothing to read again, after a whole one
    its last token goes along with the bonus token. Of the target's ids there are `vocabulary`.
    """

    def __init__(
        self, small: Target, vocabulary: int, inner: Drafter, budget: Budget, length: int | None = None
    ) -> None:
        self.small, self.inner, self.length = small, inner, length
        self.forwards: Counter[int] = Counter()  # of the small model, by their rows
        self._vocabulary, self._budget, self._cache = vocabulary, budget, small.cache(0)
        self._tokens: list[int] = []  # the text, and behind it the draft; the first ones are in the cache
        self._fails = False
        self._agreed = 0  # so many of them are known to be the text's
        self._drafted: list[int] = []  # by the last draft, to be judged
        self._right: list[float] = []  # by depth: how often a token was right of late, where all before it were

    @property
    def nbytes(self) -> int:
        return self.small.nbytes + self._cache.nbytes + self.inner.nbytes

    def observe(self, step: Step) -> None:
        """Judges the last draft. What was committed is taken over when the next one is made."""
        for depth, (drafted, token) in enumerate(zip(self._drafted, step.committed, strict=False)):
            if depth == len(self._right):
                self._right.append(UNSEEN)
            self._right[depth] += (float(drafted == token) - self._right[depth]) / REMEMBERED
            if drafted != token:
                break
        self._drafted = []

    def rewind(self, length: int) -> None:
        """Forgets what stands behind `length`; what was read before is not read again."""
        self._cut(length)
        self._agreed = min(self._agreed, length)
        self._budget.begin()
        if self._fails:
            self._cut(0)  # what it has read may hold what made it fail
            self._agreed, self._fails = 0, False

    def draft(self, context: Context) -> DraftTree:
        """The chain, up to a token that ends a reply. The root alone where the small model's context is full, and for
        the rest of a reply in which it gave no numbers: that costs speed, and never text.
        """
        count = len(context.committed)
        wanted = min(context.nodes, self.length or context.nodes, self.small.context - count)
        if wanted < 1 or self._fails:
            return DraftTree((context.root,), (-1,))
        self._follow(context.committed)
        sampling = replace(context.sampling, rule="exact")
        drafted: list[int] = []
        while len(drafted) < wanted:
            if len(self._tokens) == count + len(drafted):
                try:
                    self._go_on(sampling)
                except (LocalspecError, IndexError):  # from logits that are no numbers nothing can be picked
                    self._fails = True
                    break
            token = self._tokens[count + len(drafted)]
            if token >= self._vocabulary:  # where its vocabulary is filled up further than the target's
                break
            drafted.append(token)
            if token in self.small.stop_tokens:
                break
        self._drafted = drafted
        chances = [1.0, *self._right[: len(drafted)], *[UNSEEN] * (len(drafted) - len(self._right))]
        return replace(DraftTree.chain([context.root, *drafted], SOURCE), chance=chances)

    def _follow(self, committed: Sequence[int]) -> None:
        """Takes over what is new in the text. What was drafted stays as far as the text confirms it."""
        known = self.small.transformer.config.vocab_size
        fresh = [token if token < known else 0 for token in committed[self._agreed :]]
        same = common_prefix(self._tokens[self._agreed :], fresh)
        if same < len(fresh):
            self._cut(self._agreed + same)
            self._tokens += fresh[same:]
        self._agreed = len(committed)
        self._cache.truncate(
            min(self._cache.length, len(self._tokens) - 1)
        )  # the last token is to be read, for its pick

    def _cut(self, length: int) -> None:
        del self._tokens[length:]
        self._cache.truncate(min(self._cache.length, length))
        self.inner.rewind(length)

    def _go_on(self, sampling: Sampling) -> None:
        """Reads what is unread, by which at least one token more is drafted."""
        unread = self._tokens[self._cache.length :]
        self._cache.reserve(len(self._tokens) + self._budget.most + self.small.row_multiple)
        if len(unread) == 1:
            step = decode_step(self.small, self._cache, self.inner, self._tokens, self._budget, sampling)
            self.forwards[step.tree.size if step.tree else 1] += 1
            if not step.hidden.isfinite().all():
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
    """The draft model alone, by nothing accelerated."""
    small, vocabulary = ingredients.small, ingredients.target.transformer.config.vocab_size
    assert small is not None
    length = None if ingredients.fixed else ingredients.hyperparameters.draft
    return DraftModel(small, vocabulary, Autoregressive(), Budget(0), length)


def searched(parts: Collection[str]) -> Sequence[str]:
    """The hyper-parameters that are searched for a pair of models."""
    return ["draft"]
