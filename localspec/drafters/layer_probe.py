"""Finds the subsets of a target's layers that predict its text best, without training (S3D, §5.3)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localspec.choosing.fit import CHUNK
from localspec.decoding.compute import DraftableModel
from localspec.decoding.measuring import Measuring, MeasuringProgress, finished
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.models.s3d_prediction import MeasuredLayers, symmetric

ROWS = 8  # tokens read at once: on a CPU they take little longer than one
RANKS = 4  # of candidates
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
    """Return the best layers to keep for each number of layers, from all but one down to a quarter.

    Layers are removed one at a time. Each round removes the layer whose loss hurts least: without it, the first
    candidate most often equals the target's next token. If two layers are equal, the subset with more outer layers
    wins. `progress` is called with the share of the work that is done. `most` is about the largest number of reads.
    """
    return finished(probing_layers(target, replies, most), lambda step: progress(step.share))


def schedule(layers: int, most: int, available: int) -> tuple[int, int, int]:
    """Return the most thorough schedule of a probe with at most `most` reads, each a forward of up to `ROWS` tokens.

    Return the number of comparisons in all rounds, of layers that a round removes, and of reads in a comparison. The
    replies are long enough for `available` reads.
    """
    for together in range(1, layers + 1):
        counts = range(layers, max(1, layers // LEAST), -together)  # numbers of layers at the beginning of each round
        tries = sum(min(kept, layers if kept == layers else TRIED) + 1 + (together > 1) for kept in counts)
        if tries * LEAST_READS <= most:
            break
    return tries, together, max(1, min(available, most // tries))


def reads_in(replies: Sequence[Text]) -> int:
    """Return the number of reads, of up to `ROWS` tokens each, that cover the replies."""
    return sum(-(-max(len(reply) - 1, 0) // ROWS) for _, reply in replies)


def probing_layers(
    target: DraftableModel[Any], replies: Sequence[Text], most: int | None = None
) -> Measuring[list[MeasuredLayers]]:
    """Do the same as `probe`, one forward at a time. Yield after each forward that reads with some of the layers."""
    count = target.compute.target.sizes.num_layers
    least, available = max(1, count // LEAST), reads_in(replies)
    tries, together, reads = schedule(count, NO_BOUND if most is None else most, available)
    replies, done = _first_reads(replies, reads), 0
    work = max(1, tries * reads_in(replies))
    kept: tuple[int, ...] = tuple(range(count))
    order, found = list(kept), []

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

    while len(kept) > least:
        tried = order if len(kept) == count else order[:TRIED]
        going = min(together, len(kept) - least)
        without = {layer: tuple(other for other in kept if other != layer) for layer in tried}
        alone = yield from measured([*without.values()])
        right = [one.agreement for one in alone]
        order = sorted(tried, key=lambda layer: -right[tried.index(layer)]) + [one for one in order if one not in tried]
        several = tuple(layer for layer in kept if layer not in order[:going])
        outer = symmetric(count, len(kept) - going)
        if going == 1:
            best = alone[::-1][int(np.argmax(right[::-1]))]  # of equal layers, the last
            (other,) = yield from measured([outer])
        else:
            best, other = yield from measured([several, outer])
        found.append(other if other.agreement >= best.agreement else best)  # of equal ones, the set with outer layers
        kept = found[-1].layers
        order = [layer for layer in order if layer in kept] + [layer for layer in kept if layer not in order]
    return found


def _first_reads(replies: Sequence[Text], reads: int) -> list[Text]:
    """Return as many of the first replies as this many reads cover; the last one may be cut."""
    taken: list[Text] = []
    for prompt, reply in replies:
        if (left := reads - reads_in(taken)) <= 0:
            break
        taken.append((prompt, reply[: left * ROWS + 1]))
    return taken


def agreeing(
    target: DraftableModel[Any], replies: Sequence[Text], subsets: Sequence[Sequence[int]]
) -> Measuring[list[MeasuredLayers]]:
    """Measure how often some of the layers predict the next token of a reply of the target.

    Replies are read `ROWS` tokens at once, like a draft that was right so far. The first row sees the text with the
    keys and values of all layers. Row d also sees the d rows before it, as the kept layers computed them.
    """
    model, greedy = target.compute.target, Sampling()
    hits, seen, reads = np.zeros((len(subsets), RANKS)), 0, 0
    for prompt, reply in replies:
        cache = target.cache(len(prompt) + len(reply) + ROWS)
        for start in range(0, len(prompt), CHUNK):
            part = prompt[start : start + CHUNK]
            target.forward(DraftTree.chain(part), cache, last=True)
            cache.keep(range(len(part)))
        for start in range(0, len(reply) - 1, ROWS):
            tokens, said = reply[start : start + ROWS], reply[start + 1 : start + 1 + ROWS]
            tokens = tokens[: len(said)]
            seen += len(said)
            for index, layers in enumerate(subsets):
                states = model.read_rows(model.embed(tokens), cache, layers)
                logits = target.compute.logits(model.head(states))
                positions = range(len(said))  # matter only to sampled tokens
                for row, candidates in enumerate(logits.candidates(positions, RANKS, greedy)):
                    hits[index] += [token == said[row] for token, _ in candidates]
                reads += 1
                yield MeasuringProgress(reads, len(subsets) * reads_in(replies), 0.0)
            target.forward(DraftTree.chain(tokens), cache)
            cache.keep(range(len(tokens)))
    shares = (hits / max(seen, 1)).round(4).tolist()
    return [MeasuredLayers(tuple(layers), tuple(of_it)) for layers, of_it in zip(subsets, shares, strict=True)]
