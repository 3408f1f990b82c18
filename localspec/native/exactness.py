"""The self-test of the compiled library: is a row in a tree the same, bit for bit, as in plain decoding?

The library is built so that rows cannot meet. That this holds here, with this CPU's instructions, is looked at all the
same when a model is loaded for the first time.
"""

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from localspec.decoding.exactness import Exactness
from localspec.decoding.tree import DraftTree
from localspec.machine.hardware import physical_cores
from localspec.native.cache import NativeCache
from localspec.native.target import NativeTarget

CONTEXT = 37  # tokens before the tree: within a block of slots, so that branches lie across its border
DEPTH = 6  # tokens of the path that is compared
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 33, 64, 65)  # rows: within and across what is computed at once
Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]  # logits and states of some nodes


def measure(target: NativeTarget, widest: int) -> Exactness:
    """Compares logits and states in trees of up to `widest` rows with those of tokens that are read one by one."""
    generator, threads = random.Random(0), target.model.threads.count  # noqa: S311  # any tokens do
    tokens = [generator.randrange(target.vocab_size) for _ in range(CONTEXT + DEPTH)]
    cache = target.cache(CONTEXT + max(WIDTHS))
    target.forward(DraftTree.chain(tokens[:CONTEXT]), cache, last=True)
    cache.keep(range(CONTEXT))
    path, largest = tokens[CONTEXT:], 0.0
    try:
        target.set_threads(1)
        plain = _one_by_one(target, cache, path)
        for width in (width for width in WIDTHS if width <= widest):
            for decoys in sorted({0, max(0, min(3, width - 2)), max(0, width - DEPTH)}):
                target.set_threads(physical_cores() if decoys else 1 + width % 2)
                largest = max(largest, _difference(target, cache, plain, _tree(path, width, decoys, target.vocab_size)))
    finally:
        target.set_threads(threads)
    return Exactness(largest == 0.0, widest, largest=largest)


def _one_by_one(target: NativeTarget, cache: NativeCache, path: Sequence[int]) -> Rows:
    rows = []
    for token in path:
        output = target.forward(DraftTree.chain([token]), cache)
        rows.append((output.logits.numpy()[0], output.hidden.rows[0]))
        cache.keep([0])
    cache.truncate(CONTEXT)
    logits, states = zip(*rows, strict=True)
    return np.stack(logits), np.stack(states)


def _tree(path: Sequence[int], width: int, decoys: int, vocab_size: int) -> tuple[DraftTree, list[int]]:
    """Returns a tree of the root, decoys below it, the rest of the path, and decoys again; and the path's nodes."""
    depth = min(len(path), width - decoys)
    tokens, parents = [(7 * row + 1) % vocab_size for row in range(width)], [-1, *[0] * (width - 1)]
    nodes = [0, *range(1 + decoys, depth + decoys)]
    for node, token, parent in zip(nodes, path, [-1, *nodes], strict=False):
        tokens[node], parents[node] = token, parent
    return DraftTree(tokens, parents), nodes


def _difference(target: NativeTarget, cache: NativeCache, plain: Rows, tried: tuple[DraftTree, list[int]]) -> float:
    """Returns 0.0 where all bits are the same, else the largest difference of a logit relative to the largest logit."""
    tree, nodes = tried
    output = target.forward(tree, cache)
    ours = output.logits.numpy()[nodes], output.hidden.rows[nodes]
    theirs = plain[0][: len(nodes)], plain[1][: len(nodes)]
    if all(np.array_equal(one.view(np.uint32), other.view(np.uint32)) for one, other in zip(ours, theirs, strict=True)):
        return 0.0
    largest = float(np.abs(ours[0] - theirs[0]).max() / np.abs(plain[0]).max())
    return max(float(np.finfo(np.float32).tiny), largest)  # in this order, where only NaN or a state differs
