"""A draft model: a small language model, decoded by the same decode step as the target, whose text is the draft."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.choosing import cost as host_time
from localspec.choosing.cost import ForwardCostModel
from localspec.choosing.fit import CHUNK
from localspec.decoding.budget import Budget
from localspec.decoding.calibration import Calibration
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Drafter, DrafterState, Step
from localspec.decoding.forward import ForwardModel, ParkableCache, brought_back, common_prefix, set_aside
from localspec.decoding.logits import Candidate
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree, caterpillar
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.ingredients import Ingredients
from localspec.drafters.phrases import WithPhrases
from localspec.errors import LocalspecError

SOURCE = "draft_model"
PRIOR = 0.8  # assumed acceptance of the next pick at first: 0.7 to 0.97 with published pairs, depending on the text
REMEMBERED = 12  # recent picks whose average is taken
UNUSED = 32  # steps without a draft after which the average is halfway back to the prior: unused, it could not recover
UNREAD = 2  # tokens that a forward reads if every step is drafted for and a whole draft was accepted
MANY = 16  # unread tokens that take clearly longer to read than those of a step
FORESEEN = 0.25  # the chance of a phrase, above which phrases draft until the small model has read many tokens
REPLY, SAVED = 64, 0.2  # fewest further tokens expected of a reply; share of their time that drafts save
AHEAD = 8  # tokens of phrases that the small model reads at once
COSTS_MORE = "the small model's drafts are expected to cost more than they save"
READS = "the small model would need longer to read the prompt than its drafts are expected to save"
WIDTH = 4  # candidates of a level: the small model's own pick and its siblings


class DraftModel:
    """A drafter whose drafts are the text of a small model (Leviathan et al. 2023, §2; Chen et al. 2023).

    The small model samples with the same noise as the target, so sampled text is accepted almost as often as greedy
    text. It may itself decode speculatively, with the drafter `inner` and a budget (Ouroboros, §3.1). `inner` observes
    the tokens that the small model commits. Only token ids below `vocabulary` are drafted, because the target has no
    others.

    Without `costs` of the small model's forwards, a draft is the papers' chain of at most `length` tokens (None: as
    many as the tree may have). With costs it is a tree: other likely tokens become siblings of the small model's picks,
    with calibrated chances. The chain grows while a longer one is expected to save more time than it takes:

        context   a ─ b ─ c ─ · ─ ·   b and c are picks, d and e the next likely tokens. Drafting continues if, for
                  └ d └ e             some number of further picks, chance(b) · chance(c) · (q + q² + …) tokens are
                                      worth more than the further picks cost; q is how often a pick is right.

    The small model must read a prompt before it can draft. It does not draft while this reading costs more than its
    drafts would save, for example in short replies, or while phrases already predict the reply.
    """

    def __init__(
        self,
        small: ForwardModel[Any],
        vocabulary: int,
        inner: Drafter,
        budget: Budget,
        length: int | None = None,
        costs: ForwardCostModel | None = None,
    ) -> None:
        self.small, self.inner, self.length = small, inner, length
        self.calibration = Calibration()
        self.forwards: Counter[int] = Counter()  # of the small model, by their rows
        self._vocabulary, self._budget, self._costs = vocabulary, budget, costs
        self._cache: ParkableCache = small.cache(0)
        self._tokens: list[int] = []  # the text, then the draft; a prefix of them is in the cache
        self._candidates: list[list[Candidate]] = []  # for the place of each token of the draft
        self._failed = False
        self._confirmed = 0  # how many of these tokens are committed
        self._levels: list[list[Candidate]] = []  # candidates of the last draft, by depth
        self._drafted: list[int] = []  # picks of the last draft
        self._greedy = True
        self._replied = 0  # tokens of this reply
        self._right = PRIOR  # how often a pick was right lately, given that all before it were
        self._pace = 1.0  # tokens drafted per forward
        self._rows = deque[int](maxlen=REMEMBERED)  # of the last forwards

    target_layers = ()

    @property
    def nbytes(self) -> int:
        return self.small.nbytes + self._cache.nbytes + self.inner.nbytes

    def observe(self, step: Step) -> None:
        """Learn from the last draft. The small model reads the committed tokens in the next call of `draft`."""
        self._replied = self._replied + len(step.committed) if step.tree else 0
        for depth, (level, pick, token) in enumerate(zip(self._levels, self._drafted, step.committed, strict=False)):
            self.calibration.learn(level, depth + 1, self._greedy, token)
            self._right += (float(pick == token) - self._right) / REMEMBERED
            if pick != token:
                break
        self._levels, self._drafted = [], []

    def rewind(self, length: int) -> None:
        """Discard tokens after the first `length`. Earlier tokens are not read again."""
        self._truncate(length)
        self._confirmed = min(self._confirmed, length)
        self._budget.begin()
        if self._failed:
            self._truncate(0)  # NaN or inf in the cache may be why it failed
            self._confirmed, self._failed = 0, False

    def hand_over(self) -> DrafterState:
        """Return the small model's cache of the committed text."""
        self.rewind(self._confirmed)
        cache, self._cache = set_aside(self._cache, self.small.cache)
        inner = self.inner.hand_over()
        self.rewind(0)
        return DrafterState(cache, inner=[inner])

    def resume(self, state: DrafterState, tokens: Sequence[int]) -> None:
        """Continue from a cache that `hand_over` returned."""
        assert state.cache is not None
        self._cache = brought_back(state.cache, self._cache)
        self._tokens = self._known(tokens)
        self._truncate(min(self._cache.length, len(tokens)))
        self._confirmed = len(self._tokens)
        self.inner.resume(state.inner[0], self._tokens)

    def draft(self, context: Context) -> DraftTree:
        """Return the draft, up to a token that ends a reply.

        Return only the root if drafting is not expected to save time, or if the context of the small model is full.
        After logits with NaN or inf, return only the root for the rest of the reply.
        """
        count = len(context.committed)
        longest = min(context.nodes, self.length or context.nodes, self.small.context - count)
        chance = 1.0
        self._levels, self._drafted, self._greedy = [], [], context.sampling.greedy
        root_only = DraftTree((context.root,), (-1,))
        if longest < 1 or self._failed:
            return root_only
        self._follow_text(context.committed)
        if self._rests(context):
            return replace(root_only, declined=READS)
        sampling = replace(context.sampling, rule="exact")
        chances: list[list[Candidate]] = []
        while (depth := len(chances)) < longest:
            if len(self._tokens) == count + depth:
                if not self._pays(context, chance, depth, longest):
                    root_only = replace(root_only, declined=COSTS_MORE)
                    break
                try:
                    self._decode(sampling)
                except LocalspecError:  # NaN or inf: there is no pick
                    self._failed = True
                    break
            pick, level = self._tokens[count + depth], self._candidates[count + depth - self._confirmed]
            if pick >= self._vocabulary:  # its vocabulary is padded beyond the target's
                break
            self._levels.append(level)
            self._drafted.append(pick)
            chances.append(self.calibration.chances(level, depth + 1, self._greedy))
            chance *= dict(chances[-1])[pick]
            if pick in self.small.stop_tokens:
                break
        if self._costs is None:
            pick_chances = [dict(level)[pick] for level, pick in zip(chances, self._drafted, strict=True)]
            return replace(DraftTree.chain([context.root, *self._drafted], SOURCE), chance=[1.0, *pick_chances])
        return caterpillar(context.root, self._drafted, chances, context.nodes, SOURCE) if chances else root_only

    def _rests(self, context: Context) -> bool:
        """Return whether to draft nothing now, because the small model would first have to read too many tokens.

        A reply is assumed to continue for a little longer than it has lasted.
        """
        unread = len(self._tokens) - self._cache.length
        if self._costs is None or context.token_seconds is None or unread <= MANY:
            return False
        if context.covered and context.covered[0] >= FORESEEN:
            return True
        reading = unread / CHUNK * self._costs.at(CHUNK, len(context.committed))
        return reading > SAVED * (REPLY + self._replied) * context.token_seconds

    def _pays(self, context: Context, chance: float, depth: int, longest: int) -> bool:
        """Return whether further picks should save time; `chance` is the chance that all picks so far are right.

        Several numbers of further picks are tried, because row cost rises in steps: the first row of a block costs as
        much as the whole block. Phrases already propose some of the picks (`context.covered`), so only the others save
        time. The time to read a prompt is not counted, because later drafts need the reading, too.
        """
        if self._costs is None or context.token_seconds is None:
            return True
        unread = min(len(self._tokens) - self._cache.length, UNREAD)
        # A window needs its rows in each forward, phrases only if they match: the fewest are always paid.
        rows = max(unread, min(self._rows, default=1))
        forward = self._costs.at(rows, len(context.committed)) + host_time.STEP
        verified, tokens = context.verify_seconds(depth + 1), 0.0
        for further in range(1, longest - depth + 1):
            chance *= self._right
            covered = context.covered[depth + further - 1] if depth + further <= len(context.covered) else 0.0
            tokens += chance * (1 - covered * covered)
            seconds = max(further / self._pace, 1.0) * forward + context.verify_seconds(depth + further + 1) - verified
            if tokens * context.token_seconds > seconds:
                return True
        if depth == 0:
            self._right += (PRIOR - self._right) / UNUSED
        return False

    def _follow_text(self, committed: Sequence[int]) -> None:
        """Add the new committed text. Keep the part of the draft that agrees with this text."""
        fresh = self._known(committed[self._confirmed :])
        same = common_prefix(self._tokens[self._confirmed :], fresh)
        if same < len(fresh):
            self._truncate(self._confirmed + same)
            self._tokens += fresh[same:]
        del self._candidates[: len(fresh)]
        self._confirmed = len(committed)
        # The last token is always read again, for the pick after it.
        self._cache.truncate(min(self._cache.length, len(self._tokens) - 1))

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens for the small model, with 0 in place of ids that it does not have."""
        return [token if token < self.small.vocab_size else 0 for token in tokens]

    def _truncate(self, length: int) -> None:
        del self._tokens[length:]
        del self._candidates[max(length - self._confirmed, 0) :]
        self._cache.truncate(min(self._cache.length, length))
        self.inner.rewind(length)

    def _decode(self, sampling: Sampling) -> None:
        """Read the tokens that the small model has not read, and draft at least one more token."""
        unread = self._tokens[self._cache.length :]
        self._cache.reserve(len(self._tokens) + self._budget.most + self.small.row_multiple)
        if len(unread) == 1:
            step = decode_step(self.small, self._cache, self.inner, self._tokens, self._budget, sampling)
            self._rows.append(step.tree.size if step.tree else 1)
            self.forwards[self._rows[-1]] += 1
            self._pace += (len(step.committed) - self._pace) / REMEMBERED
            if not step.hidden.finite():
                raise LocalspecError("The draft model computed NaN; fetch it again, or use another drafter.")
            self._propose(step, step.path, step.committed, sampling)
            return
        self.inner.rewind(self._cache.length)
        while unread:
            chunk, unread = unread[:CHUNK], unread[CHUNK:]
            step = prefill_step(self.small, self._cache, self.inner, chunk, sampling, last=not unread)
            self.forwards[len(chunk)] += 1
        self._propose(step, [0], step.committed[-1:], sampling)

    def _propose(self, step: Step, rows: Sequence[int], picks: Sequence[int], sampling: Sampling) -> None:
        """Add picks to the draft, each with its siblings: other candidates from the same row of logits."""
        assert step.logits is not None
        places = range(len(self._tokens), len(self._tokens) + len(picks))
        logits = step.logits if list(rows) == list(range(len(step.logits))) else step.logits.take(rows)
        levels = logits.candidates(places, 1 if self._costs is None else WIDTH, sampling)
        for pick, level in zip(picks, levels, strict=True):
            # A pick is its likeliest candidate, except for ties and for ids that truncation leaves out.
            level = level if any(token == pick for token, _ in level) else [(pick, 0.5), *level[1:]]
            self._candidates.append([pair for pair in level if pair[0] < self._vocabulary or pair[0] == pick])
        self._tokens += picks


def build(ingredients: Ingredients) -> DraftModel:
    """Build the draft model. If phrases will lengthen its drafts, phrases also speed up its own decoding."""
    small, vocabulary, costs = ingredients.small, ingredients.target.vocab_size, ingredients.costs
    assert small is not None
    if costs is None or ingredients.fixed or not ingredients.with_phrases:
        deciding = None if ingredients.fixed else costs
        return DraftModel(small, vocabulary, Autoregressive(), Budget(0), costs=deciding)
    phrases = WithPhrases(Autoregressive(), ingredients.pool, read_only=True)
    return DraftModel(small, vocabulary, phrases, Budget(AHEAD, costs, small.branches), costs=costs)
