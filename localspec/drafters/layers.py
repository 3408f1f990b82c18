"""S3D without training: the target drafts one token after another with some of its layers, which a search has found."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from localspec.choosing.fit import CHUNK
from localspec.decoding.calibration import Calibration
from localspec.decoding.compute import DraftableModel
from localspec.decoding.drafter import Context, Step, Textless
from localspec.decoding.logits import Candidate
from localspec.decoding.measuring import Measuring, MeasuringProgress, finished
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree, grow_tree
from localspec.models.drafter_cards import RANKS
from localspec.models.s3d_prediction import MeasuredLayers, symmetric

KIND = "layers"
LONGEST = 16  # tokens of a draft
FIXED = 4  # tokens of a draft in a tree of a fixed size, if its ranks can fill it
REMEMBERED = 24  # drafts in the averages of accuracy and seconds


class Layers(Textless):
    """A drafter that runs some of the target's own layers (Zhang et al. 2023; S3D, §2.2) on the target's cache.

    Each draft forward reads one row and adds the likeliest next tokens to the tree. The next forward continues from the
    likeliest of them. Drafting ends if another forward is expected to take more time than its tokens save:

        root ─ a ─ b ─ c      reads root, a, b       a, a', a'' are candidates after the root, a the likeliest
             ├ a'  └ b'
             └ a''

    Times are averages over recent drafts and verifications. If `fixed`, a draft always fills the tree, whose size is
    fixed. The drafter has no weights and stores no text. `measured` lists the layers that it runs, and how often their
    guesses were right.
    """

    def __init__(self, target: DraftableModel[Any], measured: MeasuredLayers, fixed: bool = False) -> None:
        self.target, self.compute = target, target.compute
        self.calibration = Calibration()
        self._fixed = fixed
        self.take(measured)
        self._step_seconds: deque[float] = deque(maxlen=REMEMBERED)  # per token of the text, at most a plain step
        self._levels: list[Sequence[Candidate]] = []  # of the last draft, by depth: (token, confidence)
        self._chain: list[Candidate] = []  # and (token, chance) of the likeliest of each
        self._greedy = True

    def take(self, measured: MeasuredLayers) -> None:
        """Use these layers from the next draft on."""
        self.kept_layers, self._agreement = measured.layers, measured.agreement
        # The price of a draft forward, in tokens that could be committed in its time.
        self._price = len(self.kept_layers) / self.compute.target.sizes.num_layers
        self._draft_seconds: deque[float] = deque(maxlen=REMEMBERED)  # of one draft forward

    def observe(self, step: Step) -> None:
        """Judge the last draft by the committed tokens, and update the measured cost of a draft forward."""
        if step.tree is None:
            return
        drafted = zip(self._levels, self._chain, step.committed, strict=False)
        for depth, (level, (likeliest, _), token) in enumerate(drafted, start=1):
            self.calibration.learn(level, depth, self._greedy, token)
            right = likeliest == token
            self._agreement += (right - self._agreement) / REMEMBERED
            if not right:  # the rest was drafted after another token
                break
        self._forget_draft()
        seconds = (step.draft_seconds + step.verify_seconds) / len(step.committed)
        self._step_seconds.append(min(seconds, step.verify_seconds))
        if self._draft_seconds and (worth := median(self._step_seconds)) > 0:
            self._price = median(self._draft_seconds) / worth

    def rewind(self, length: int) -> None:
        """Discard the last draft; the drafter holds no text."""
        self._forget_draft()

    def _forget_draft(self) -> None:
        self._levels, self._chain = [], []

    def draft(self, context: Context) -> DraftTree:
        """Return a tree along the likeliest chain. The cache stays unchanged: verification overwrites the rows of
        the draft."""
        cache, start, count = context.cache, context.cache.length, len(context.committed)
        longest = max(FIXED, -(-context.nodes // RANKS)) if self._fixed else LONGEST
        depth = min(context.nodes, longest, self.target.context - count)
        self._forget_draft()
        self._greedy = context.sampling.greedy
        if depth < 1:
            return DraftTree((context.root,), (-1,))
        reached = 1.0  # the chance that the target reaches the chain's end

        def expand(parents: Sequence[int], tokens: Sequence[int], level: int) -> Sequence[Sequence[Candidate]]:
            nonlocal reached
            children: list[Sequence[Candidate]] = [() for _ in tokens]
            if level:
                reached *= self._chain[-1][1]
                pays = self._fixed or reached * self._agreement > self._price
                if not pays or tokens[0] in self.target.stop_tokens:
                    return children
                cache.keep([0])  # for the length of this draft
            if candidates := self._next(context, tokens[0], level):
                self._levels.append(candidates)
                children[0] = self.calibration.chances(candidates, level + 1, self._greedy)
                self._chain.append(children[0][0])
            return children

        try:
            return grow_tree(context.root, expand, context.nodes, depth, KIND)
        finally:
            cache.truncate(start)

    def _next(self, context: Context, token: int, level: int) -> Sequence[Candidate]:
        """Read one row after the cache; return (token, confidence) of possible next tokens, the likeliest first.

        Return nothing if the logits are NaN or inf.
        """
        began, model = time.perf_counter(), self.compute.target
        states = model.read_rows(model.embed([token]), context.cache, self.kept_layers)
        logits = self.compute.logits(model.head(states))
        if not logits.finite():
            model.forget_rows(context.cache, 1, self.kept_layers)
            return ()
        position = len(context.committed) + level
        (candidates,) = logits.candidates([position], min(context.nodes, RANKS), context.sampling)
        self._draft_seconds.append(time.perf_counter() - began)
        return candidates


ROWS = 8  # tokens read at once: on a CPU they take little longer than one
PROBED_RANKS = 4  # of candidates
TRIED = 6  # layers whose removal is measured after each layer was tried once: those that mattered least
LEAST = 4  # at least a quarter of the layers is kept
LEAST_READS = 4  # reads that compare two sets of layers
NO_BOUND = 2**31  # reads

Text = tuple[Sequence[int], Sequence[int]]  # a prompt, and the target's greedy reply to it


def probe(
    target: DraftableModel[Any],
    replies: Sequence[Text],
    progress: Callable[[float], None] = lambda _: None,
    most: int | None = None,
) -> list[MeasuredLayers]:
    """Return the best layers to keep for decreasing numbers of layers, down to a quarter of the layers.

    Layers are removed in rounds. A round leaves out one layer at a time, and measures how often the others' first
    candidate is the target's next token. It then removes the layer that is needed least, or several if `most`, about
    the largest number of forwards, is small. If only the outer layers would be as good, they are kept instead.
    `progress` is called with the finished share of the work.
    """
    return finished(probing_layers(target, replies, most), lambda step: progress(step.share))


def schedule(layers: int, most: int, available: int) -> tuple[int, int, int]:
    """Return the most thorough schedule of a search for layers with at most `most` reads.

    A read is a forward of up to `ROWS` tokens; the replies are long enough for `available` reads. The schedule is the
    number of sets of layers to try in total, the number of layers that each round removes, and the number of reads for
    each set.
    """
    for together in range(1, layers + 1):
        counts = range(layers, max(1, layers // LEAST), -together)  # numbers of layers at the beginning of each round
        tries = sum(min(count, layers if count == layers else TRIED) + 1 + (together > 1) for count in counts)
        if tries * LEAST_READS <= most:
            break
    return tries, together, max(1, min(available, most // tries))


def reads_in(replies: Sequence[Text]) -> int:
    """Return the number of reads, of up to `ROWS` tokens each, that cover the replies."""
    return sum(-(-max(len(reply) - 1, 0) // ROWS) for _, reply in replies)


def probing_layers(
    target: DraftableModel[Any], replies: Sequence[Text], most: int | None = None
) -> Measuring[list[MeasuredLayers]]:
    """Search like `probe` and return the best layers. Yield the progress after each forward through a set of layers."""
    count = target.compute.target.sizes.num_layers
    least, available = max(1, count // LEAST), reads_in(replies)
    tries, together, reads = schedule(count, NO_BOUND if most is None else most, available)
    replies, done = _first_reads(replies, reads), 0
    work = max(1, tries * reads_in(replies))
    subset: tuple[int, ...] = tuple(range(count))
    order, results = list(subset), []

    def measured(subsets: Sequence[Sequence[int]]) -> Measuring[list[MeasuredLayers]]:
        nonlocal done
        measuring = agreeing(target, replies, subsets)
        while True:
            try:
                next(measuring)
            except StopIteration as end:
                result: list[MeasuredLayers] = end.value
                return result
            done += 1
            yield MeasuringProgress(done, max(work, done), min(1.0, done / work))

    while len(subset) > least:
        tried = order if len(subset) == count else order[:TRIED]
        going = min(together, len(subset) - least)
        without = {layer: tuple(other for other in subset if other != layer) for layer in tried}
        trials = yield from measured([*without.values()])
        agreements = [trial.agreement for trial in trials]
        order = sorted(tried, key=lambda layer: -agreements[tried.index(layer)]) + [
            layer for layer in order if layer not in tried
        ]
        several = tuple(layer for layer in subset if layer not in order[:going])
        outer = symmetric(count, len(subset) - going)
        if going == 1:
            best = trials[::-1][int(np.argmax(agreements[::-1]))]  # of equal layers, the last
            (other,) = yield from measured([outer])
        else:
            best, other = yield from measured([several, outer])
        results.append(other if other.agreement >= best.agreement else best)  # of equal ones, the set with outer layers
        subset = results[-1].layers
        order = [layer for layer in order if layer in subset] + [layer for layer in subset if layer not in order]
    return results


def _first_reads(replies: Sequence[Text], reads: int) -> list[Text]:
    """Return the first replies that `reads` forwards can read; the last reply may be cut."""
    texts: list[Text] = []
    for prompt, reply in replies:
        if (remaining := reads - reads_in(texts)) <= 0:
            break
        texts.append((prompt, reply[: remaining * ROWS + 1]))
    return texts


def agreeing(
    target: DraftableModel[Any], replies: Sequence[Text], subsets: Sequence[Sequence[int]]
) -> Measuring[list[MeasuredLayers]]:
    """Measure how often the tokens that each set of layers ranks first, second, … are a reply's next token.

    Up to `ROWS` tokens of a reply are read at once, as if all had been drafted correctly. The first row sees the text
    with the keys and values of all layers. Row d also sees the d rows before it, with keys and values of the set's
    layers.
    """
    model, greedy = target.compute.target, Sampling()
    hits, total, reads = np.zeros((len(subsets), PROBED_RANKS)), 0, 0
    for prompt, reply in replies:
        cache = target.cache(len(prompt) + len(reply) + ROWS)
        for start in range(0, len(prompt), CHUNK):
            part = prompt[start : start + CHUNK]
            target.forward(DraftTree.chain(part), cache, last=True)
            cache.keep(range(len(part)))
        for start in range(0, len(reply) - 1, ROWS):
            tokens, labels = reply[start : start + ROWS], reply[start + 1 : start + 1 + ROWS]
            tokens = tokens[: len(labels)]
            total += len(labels)
            for index, layers in enumerate(subsets):
                states = model.read_rows(model.embed(tokens), cache, layers)
                logits = target.compute.logits(model.head(states))
                positions = range(len(labels))  # matter only to sampled tokens
                for row, candidates in enumerate(logits.candidates(positions, PROBED_RANKS, greedy)):
                    hits[index] += [token == labels[row] for token, _ in candidates]
                reads += 1
                yield MeasuringProgress(reads, len(subsets) * reads_in(replies), 0.0)
            target.forward(DraftTree.chain(tokens), cache)
            cache.keep(range(len(tokens)))
    shares = (hits / max(total, 1)).round(4).tolist()
    return [MeasuredLayers(tuple(layers), tuple(by_rank)) for layers, by_rank in zip(subsets, shares, strict=True)]
