"""Finds the layers with which a target foresees itself best, without training (S3D, §5.3)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localspec.decoding.compute import DraftableModel
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.models.s3d_prediction import KeptLayers, symmetric
from localspec.policy.prediction import CHUNK

ROWS = 8  # tokens that are read at once: on a CPU they take little longer than one
RANKS = 4  # of candidates
TRIED = 6  # layers whose removal is measured, once all were tried: those that mattered least before
LEAST = 4  # a quarter of the layers is kept at least

Text = tuple[Sequence[int], Sequence[int]]  # a prompt, and the target's greedy reply to it


def probe(
    target: DraftableModel[Any], replies: Sequence[Text], progress: Callable[[float], None] = lambda _: None
) -> list[KeptLayers]:
    """Returns for each number of layers those that were kept, from all but one down to a quarter.

    One layer is removed after the other: that without which the first guess is most often the token that the target
    itself said next. Where keeping as many outer layers is as good, those are kept. `progress` is told the share that
    is done.
    """
    count = target.compute.target.sizes.num_layers
    kept: tuple[int, ...] = tuple(range(count))
    order, found = list(kept), []
    while len(kept) > max(1, count // LEAST):
        tried = order if len(kept) == count else order[:TRIED]
        without = {layer: tuple(other for other in kept if other != layer) for layer in tried}
        outer = symmetric(count, len(kept) - 1)
        measured = agreement(target, replies, [*without.values(), outer])
        right = [one.agreement for one in measured]
        best = int(np.argmax(right[::-1]))  # of equal ones the last: the outer layers
        found.append(measured[::-1][best])
        order = sorted(tried, key=lambda layer: -right[tried.index(layer)]) + [one for one in order if one not in tried]
        kept = found[-1].layers
        order = [layer for layer in order if layer in kept] + [layer for layer in kept if layer not in order]
        progress(1 - (len(kept) - count // LEAST) / (count - count // LEAST))
    return found


def agreement(
    target: DraftableModel[Any], replies: Sequence[Text], subsets: Sequence[Sequence[int]]
) -> list[KeptLayers]:
    """Measures how often what some layers say after the target's own words is what the target says.

    Replies are read `ROWS` tokens at once, as a draft that was right so far: the first row sees the text with the keys
    and values of all layers, and row d also those that the kept layers made of the d rows before it.
    """
    model, greedy = target.compute.target, Sampling()
    hits, seen = np.zeros((len(subsets), RANKS)), 0
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
                positions = range(len(said))  # which matter to sampled tokens alone
                for row, candidates in enumerate(logits.candidates(positions, RANKS, greedy)):
                    hits[index] += [token == said[row] for token, _ in candidates]
            target.forward(DraftTree.chain(tokens), cache)
            cache.keep(range(len(tokens)))
    shares = (hits / max(seen, 1)).round(4).tolist()
    return [KeptLayers(tuple(layers), tuple(of_it)) for layers, of_it in zip(subsets, shares, strict=True)]
