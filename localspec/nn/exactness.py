"""A self-test of whether speculative decoding gives the same bits as plain decoding, so that the text never changes.

A row's logits, keys and values must not depend on the number or content of other rows, on the slots of its ancestors,
on how many masked slots attention reads, or on the number of threads. Whether that holds depends on kernels, shapes and
precision, so it is measured.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from localspec.choosing.fit import BUCKET
from localspec.decoding.exactness import MULTIPLES, Exactness
from localspec.decoding.tree import DraftTree
from localspec.machine.hardware import physical_cores
from localspec.nn.cache import KVCache
from localspec.nn.linear import Linear, QuantizedLinear
from localspec.nn.logits import TorchLogits
from localspec.nn.target import Target

ALWAYS = 17  # rows: in the invariant form every width up to this is tried, and the wider ones below
WIDE = (24, 32, 33, 48, 64, 65)
SPLIT = (1, 5, 17)  # rows: these widths are tried with every number of threads
AGAIN = 2  # further paths in the fastest form: in bf16, one path missed a difference in two of twelve trials
DEPTH = 6  # tokens of the path that is compared if it is not a chain of all rows


def measure(target: Target, widest: int, exact: bool) -> Exactness:
    """Compare trees of up to `widest` rows with plain decoding. Set `target.row_multiple` to the padding of rows.

    In the invariant form (`exact`), the number of rows is padded to a multiple of the smallest number for which all
    bits are equal. It does not depend on `widest`, because plain and speculative decoding must use the same padding.
    The fastest form is not padded.
    """
    always = {*range(2, ALWAYS + 1), *WIDE} if exact else set()
    widths = sorted({*range(1, widest + 1), *always})
    exactness, threads, form = Exactness(True, widest), torch.get_num_threads(), target.step_form
    if form == "captured":  # a recording cannot be inspected; its bits are those of the static form
        target.use_step_form("static")
    try:
        # One row is rounded differently than several, in bf16 so rarely that a short text may not show it.
        for multiple in MULTIPLES[1:] if exact else MULTIPLES[:1]:
            target.row_multiple = multiple
            largest = _largest_difference(target, widths)
            exactness = replace(exactness, bitwise=largest == 0.0, multiple=multiple, largest=largest)
            if exactness.bitwise:
                break
    finally:
        torch.set_num_threads(threads)
        if target.step_form != form:
            target.use_step_form(form)
    return exactness


@torch.inference_mode()
def _largest_difference(target: Target, widths: Sequence[int]) -> float:
    """Return 0.0 if trees of all `widths` give the bits of plain decoding, else the largest difference of logits at the
    first width that does not."""
    generator = torch.Generator().manual_seed(0)
    vocab_size = target.vocab_size
    paths = torch.randint(vocab_size, (1 + AGAIN, max(*widths, DEPTH)), generator=generator).tolist()
    # Just before the end of a bucket, wide trees see more slots than a single row; the same before the end of a page.
    contexts = [2 * BUCKET - DEPTH - target.row_multiple + 1, BUCKET - DEPTH]
    if target.exact:
        contexts.append(-(-2 * BUCKET // target.page) * target.page - DEPTH // 2)
    all_cores = physical_cores()
    some_cores = range(2, all_cores)  # if other programs are busy, a chat uses only the remaining cores
    for index, context in enumerate(contexts):
        torch.set_num_threads(all_cores)
        comparison = _Comparison(target, context, paths[0] if index == 0 else paths[0][:DEPTH], generator)
        for width in widths:
            chain, branch = 0, max(0, min(3, width - 2), width - DEPTH)  # decoys between the root and its path
            branch = branch if target.branches else chain
            trials = {(chain, all_cores), (chain, 1), (branch, all_cores)}
            if index:  # the first context has shown effects of the width
                trials = {(chain, 1) if width % 2 else (branch, all_cores)} if width <= ALWAYS else set()
            elif width in SPLIT:
                trials |= {(chain, threads) for threads in some_cores}
            worst = 0.0
            for decoys, threads in trials:
                torch.set_num_threads(threads)
                worst = max(worst, comparison.difference(width, decoys))
            if worst:
                return worst
    for path in [] if target.exact else paths[1:]:
        if worst := _Comparison(target, contexts[0], path, generator).difference(max(widths), 0):
            return worst
    return 0.0


Rows = list[torch.Tensor]  # the result of `tree_rows`, [nodes, …] each


class _Comparison:
    """A path of tokens after `context` random tokens, computed both by plain decoding and as part of trees."""

    def __init__(self, target: Target, context: int, path: Sequence[int], generator: torch.Generator) -> None:
        self.target, self.context, self.path, self.generator = target, context, path, generator
        self.cache = target.cache(context + 2 * len(path))
        self.cache.fill(generator)
        self.cache.assume(context)
        self.plain = plain_rows(target, self.cache, context, path)

    def difference(self, width: int, decoys: int) -> float:
        """Compare plain decoding with a tree of `width` rows: the root, other nodes (decoys), the path, more decoys.

        Return 0.0 if all bits are equal, else the largest difference of a logit, relative to the largest logit.
        """
        tree, nodes = self._tree(width, decoys)
        rows = tree_rows(self.target, self.cache, tree, nodes)
        plain = [part[: len(nodes)] for part in self.plain]
        if all(torch.equal(tree_part, plain_part) for tree_part, plain_part in zip(rows, plain, strict=True)):
            return 0.0
        largest = float((rows[0].float() - plain[0].float()).abs().max() / self.plain[0].float().abs().max())
        return max(torch.finfo(torch.float32).tiny, largest)  # `tiny` first: it is the result for NaN

    def _tree(self, width: int, decoys: int) -> tuple[DraftTree, list[int]]:
        """Return a tree of `width` rows, reduced by `aligned`, and the indices of its nodes that are on the path."""
        depth = min(len(self.path), width - decoys)
        vocab_size = self.target.vocab_size
        tokens = torch.randint(vocab_size, (width,), generator=self.generator).tolist()
        parents = [-1, *[0] * (width - 1)]
        path_nodes = [0, *range(1 + decoys, depth + decoys)]
        for node, token, parent in zip(path_nodes, self.path, [-1, *path_nodes], strict=False):
            tokens[node], parents[node] = token, parent
        tree, nodes = self.target.aligned(DraftTree(tokens, parents), self.context), [0]
        for token in self.path[1:]:
            if (child := tree.children[nodes[-1]].get(token)) is None:
                break
            nodes.append(child)
        return tree, nodes


def plain_rows(target: Target, cache: KVCache, context: int, path: Sequence[int]) -> Rows:
    """Read the tokens `path` one by one after `context` tokens, as plain decoding does. Return their `Rows`."""
    cache.assume(context)
    rows = []
    for token in path:
        rows.append(tree_rows(target, cache, DraftTree.chain([token]), [0]))
        cache.keep([0])
    cache.truncate(context)
    assert cache.length == context
    return [torch.cat(parts) for parts in zip(*rows, strict=True)]


def tree_rows(target: Target, cache: KVCache, tree: DraftTree, nodes: Sequence[int]) -> Rows:
    """Read a tree. Return the logits, keys and values of some nodes, and their inputs to each linear layer.

    The inputs are compared, too, because a quantized layer rounds most of their differences away. The remaining ones
    change long texts, but rarely the few rows of this test.
    """
    inputs_seen = []

    def look(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        inputs_seen.append(inputs[0].flatten(0, -2)[nodes])

    layers = [layer for layer in target.transformer.modules() if isinstance(layer, Linear | QuantizedLinear)]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        logits = target.forward(tree, cache).logits
        assert isinstance(logits, TorchLogits)
    finally:
        for hook in hooks:
            hook.remove()
    return [logits.rows[nodes], cache.rows(nodes), *inputs_seen]
