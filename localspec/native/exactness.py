"""The self-test of the compiled library: whether a row in a tree is bit-identical to the same row in plain decoding.

The library is built so that rows do not affect each other. The self-test checks that this holds with this CPU's
instructions, when a model is loaded for the first time. Recurrent layers read only chains; for them half of a chain is
discarded and read again.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from localspec.decoding.exactness import Exactness
from localspec.decoding.measuring import WEIGHT_ROWS, Measuring, MeasuringProgress
from localspec.decoding.tree import DraftTree
from localspec.machine.hardware import physical_cores
from localspec.native.cache import NativeCache
from localspec.native.target import NativeTarget

CONTEXT = 37  # tokens before the tree: not a whole number of blocks of slots, so that branches cross a border
DEPTH = 6  # tokens of the compared path
# Numbers of rows: fewer and more than are computed at once.
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 33, 64, 65)
Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]  # logits and states of some nodes


def measuring(target: NativeTarget, widest: int) -> Measuring[Exactness]:
    """Compare logits and states in trees of up to `widest` rows with those of tokens read one by one.

    Yield after each comparison; the target may answer a prompt in between.
    """
    generator, threads = random.Random(0), target.model.threads.count  # noqa: S311  # any tokens do
    tokens = [generator.randrange(target.vocab_size) for _ in range(CONTEXT + DEPTH)]
    cache = target.cache(CONTEXT + max(WIDTHS))
    target.forward(DraftTree.chain(tokens[:CONTEXT]), cache, last=True)
    cache.keep(range(CONTEXT))
    path, largest = tokens[CONTEXT:], 0.0
    target.set_threads(1)
    plain = _one_by_one(target, cache, path)
    target.set_threads(threads)
    trials = [(width, *trial) for width in WIDTHS if width <= widest for trial in _trials(target, cache, path, width)]
    work, done = sum(WEIGHT_ROWS + width for width, *_ in trials), 0
    for number, (width, threads_now, read) in enumerate(trials, start=1):
        target.set_threads(threads_now)
        try:
            largest = max(largest, _difference(plain, read()))
        finally:
            target.set_threads(threads)
        done += WEIGHT_ROWS + width
        yield MeasuringProgress(number, len(trials), done / work)
    return Exactness(largest == 0.0, widest, largest=largest)


def _trials(
    target: NativeTarget, cache: NativeCache, path: Sequence[int], width: int
) -> Iterator[tuple[int, Callable[[], Rows]]]:
    """Yield (number of threads, function) for each trial. The function reads the tokens `path` as part of trees
    or chains of `width` rows, and returns their logits and states."""
    if not target.branches:
        for threads, committed in ((1 + width % 2, 0), (physical_cores(), min(width, len(path)) // 2)):
            yield threads, partial(_in_a_chain, target, cache, path, width, committed)
        return
    for decoys in sorted({0, max(0, min(3, width - 2)), max(0, width - DEPTH)}):
        yield physical_cores() if decoys else 1 + width % 2, partial(_in_a_tree, target, cache, path, width, decoys)


def _one_by_one(target: NativeTarget, cache: NativeCache, path: Sequence[int]) -> Rows:
    rows = []
    for token in path:
        rows.append(_rows(target, cache, DraftTree.chain([token]), [0]))
        cache.keep([0])
    cache.truncate(CONTEXT)
    return _together(rows)


def _in_a_tree(target: NativeTarget, cache: NativeCache, path: Sequence[int], width: int, decoys: int) -> Rows:
    """Read the path as nodes of a tree, among decoys: other nodes that must not change the path's results."""
    depth = min(len(path), width - decoys)
    tokens, parents = [(7 * row + 1) % target.vocab_size for row in range(width)], [-1, *[0] * (width - 1)]
    nodes = [0, *range(1 + decoys, depth + decoys)]
    for node, token, parent in zip(nodes, path, [-1, *nodes], strict=False):
        tokens[node], parents[node] = token, parent
    return _rows(target, cache, DraftTree(tokens, parents), nodes)


def _in_a_chain(target: NativeTarget, cache: NativeCache, path: Sequence[int], width: int, committed: int) -> Rows:
    """Read the path followed by decoys, commit `committed` rows, and read the rest of the path again."""
    prefix = list(path[:width])
    decoys = [(7 * row + 1) % target.vocab_size for row in range(width - len(prefix))]
    first = _rows(target, cache, DraftTree.chain([*prefix, *decoys]), range(committed))
    cache.keep(range(committed))
    second = _rows(target, cache, DraftTree.chain([*prefix[committed:], *decoys]), range(len(prefix) - committed))
    cache.truncate(CONTEXT)
    return _together([first, second])


def _rows(target: NativeTarget, cache: NativeCache, tree: DraftTree, nodes: Sequence[int]) -> Rows:
    output = target.forward(tree, cache)
    return output.logits.numpy()[list(nodes)], output.hidden.rows[list(nodes)]


def _together(rows: Sequence[Rows]) -> Rows:
    logits, states = zip(*rows, strict=True)
    return np.concatenate(logits), np.concatenate(states)


def _difference(plain: Rows, rows: Rows) -> float:
    """Return 0.0 if all bits are equal, else the largest difference of a logit relative to the largest logit."""
    expected = plain[0][: len(rows[0])], plain[1][: len(rows[0])]
    if all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in zip(rows, expected, strict=True)):
        return 0.0
    largest = float(np.abs(rows[0] - expected[0]).max() / np.abs(plain[0]).max())
    return max(float(np.finfo(np.float32).tiny), largest)  # `tiny` first: it is the result for NaN
