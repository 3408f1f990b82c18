"""The self-test behind the promise that speculation changes no bit of what the target says.

A row's logits, keys and values must not depend on how many rows stand beside it, on what they are, on the slots of its
ancestors, on how many masked slots attention looks at, or on the number of threads. Whether that holds is a matter of
kernels, shapes and precision, so it is measured.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from localspec.decoding.tree import DraftTree
from localspec.machine.hardware import physical_cores
from localspec.nn.cache import KVCache
from localspec.nn.linear import Int8Linear, Linear, QuantizedLinear
from localspec.nn.target import Target
from localspec.policy.prediction import BUCKET

MULTIPLES = (1, 4, 8, 16)  # rows to fill up to, the cheapest first
ALWAYS = 17  # rows: every width up to here is tried in the invariant form, and of wider ones these
WIDE = (24, 32, 33, 48, 64, 65)
SPLIT = (1, 5, 17)  # rows: these are tried with every number of threads
DEPTH = 6  # tokens of the path that is compared where a chain of all rows is not


@dataclass(frozen=True)
class Exactness:
    """What the self-test found for trees of up to `widest` rows, root included.

    `bitwise`: no bit differed, with rows filled up to a multiple of `multiple`. Else `largest` is the largest
    difference of a logit that was seen, relative to the largest logit.
    """

    bitwise: bool
    widest: int
    multiple: int = 1
    largest: float = 0.0

    def apply(self, target: Target) -> None:
        """Lets the target fill its rows up as this was measured."""
        target.row_multiple = self.multiple

    def as_json(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "Exactness | None":
        """What `as_json` gave; None for anything else."""
        types = {"bitwise": bool, "widest": int, "multiple": int, "largest": float}
        if not isinstance(value, dict) or {name: type(field) for name, field in value.items()} != types:
            return None
        found = cls(**value)
        return found if found.widest > 1 and found.multiple in MULTIPLES and 0 <= found.largest < math.inf else None


def measure(target: Target, widest: int, exact: bool) -> Exactness:
    """Compares trees with plain decoding, row by row; sets `target.row_multiple` to what `bitwise` needs.

    In the invariant form (`exact`) rows are filled up to the smallest multiple that gives every bit, the same whatever
    the width of a run, for plain and speculative runs must agree on it. The fastest form is taken as it is.
    """
    always = {*range(2, ALWAYS + 1), *WIDE} if exact else set()
    widths = sorted({*range(1, widest + 1), *always})
    found, threads = Exactness(True, widest), torch.get_num_threads()
    try:
        # Any other rounds one row otherwise than several, in bf16 so seldom that no short text is sure to show it.
        least = 0 if isinstance(target.transformer.lm_head, Int8Linear) else 1
        for multiple in MULTIPLES[least:] if exact else (1,):
            target.row_multiple = multiple
            largest = _largest_difference(target, widths)
            found = replace(found, bitwise=largest == 0.0, multiple=multiple, largest=largest)
            if found.bitwise:
                break
    finally:
        torch.set_num_threads(threads)
    return found


@torch.inference_mode()
def _largest_difference(target: Target, widths: Sequence[int]) -> float:
    """0.0 where all bits are the same; stops at the first width where one is not."""
    made = torch.Generator().manual_seed(0)
    path = torch.randint(target.transformer.config.vocab_size, (max(*widths, DEPTH),), generator=made).tolist()
    # Just before the end of a bucket wide trees see more slots than a single row; and before that of a page.
    contexts = [2 * BUCKET - DEPTH - target.row_multiple + 1, BUCKET - DEPTH]
    if target.exact:
        contexts.append(-(-2 * BUCKET // target.page) * target.page - DEPTH // 2)
    all_cores = physical_cores()
    some = range(2, all_cores)  # where other programs are busy, a chat takes as many as are left
    for place, context in enumerate(contexts):
        cache = target.cache(context + 2 * len(path))
        cache.fill(made)
        torch.set_num_threads(all_cores)
        alone = _plain(target, cache, context, path)
        for width in widths:
            chain, branch = 0, max(0, min(3, width - 2), width - DEPTH)  # decoys between the root and its path
            trials = {(chain, all_cores), (chain, 1), (branch, all_cores)}
            if place:  # what depends on the width alone has been seen
                trials = {(chain, 1) if width % 2 else (branch, all_cores)} if width <= ALWAYS else set()
            elif width in SPLIT:
                trials |= {(chain, threads) for threads in some}
            worst = 0.0
            for aside, threads in trials:
                torch.set_num_threads(threads)
                worst = max(worst, _difference(target, cache, context, path, width, aside, alone, made))
            if worst:
                return worst
        path = path[:DEPTH]
    return 0.0


Rows = list[torch.Tensor]  # of some nodes, [nodes, …] each: what `_forward` gives


def _plain(target: Target, cache: KVCache, context: int, path: Sequence[int]) -> Rows:
    cache.length, rows = context, []
    for token in path:
        rows.append(_forward(target, cache, DraftTree.chain([token]), [0]))
        cache.keep([0])
    cache.truncate(context)
    return [torch.cat(parts) for parts in zip(*rows, strict=True)]


def _difference(
    target: Target,
    cache: KVCache,
    context: int,
    path: Sequence[int],
    width: int,
    aside: int,
    alone: Rows,
    made: torch.Generator,
) -> float:
    """A tree of `width` rows: the root, so many decoys below it, the path, and decoys below the root again."""
    depth = min(len(path), width - aside)
    below = list(range(1 + aside, depth + aside))  # where the path stands behind the root
    tokens = torch.randint(target.transformer.config.vocab_size, (width,), generator=made).tolist()
    parents = [-1, *[0] * (width - 1)]
    for node, (token, parent) in zip([0, *below], zip(path, [-1, 0, *below], strict=False), strict=False):
        tokens[node], parents[node] = token, parent
    tree, nodes = target.aligned(DraftTree(tokens, parents), context), [0]
    for token in path[1:]:
        if (child := tree.children[nodes[-1]].get(token)) is None:
            break
        nodes.append(child)
    cache.length = context
    rows, expected = _forward(target, cache, tree, nodes), [part[: len(nodes)] for part in alone]
    if all(torch.equal(ours, theirs) for ours, theirs in zip(rows, expected, strict=True)):
        return 0.0
    largest = float((rows[0].float() - expected[0].float()).abs().max() / alone[0].float().abs().max())
    return max(torch.finfo(torch.float32).tiny, largest)  # in this order: no logit differs, or by NaN


def _forward(target: Target, cache: KVCache, tree: DraftTree, nodes: Sequence[int]) -> Rows:
    """Logits of these nodes, their keys and values, and what each linear layer was given for them.

    A packed one rounds most of what differs before it away, and what is seldom seen here would be seen in a long text.
    """
    device, given = target.device, []
    positions = cache.length + torch.tensor(tree.depth, device=device)

    def look(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        given.append(inputs[0].flatten(0, -2)[nodes])

    layers = [layer for layer in target.transformer.modules() if isinstance(layer, Linear | QuantizedLinear)]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        logits = target.forward(torch.tensor(tree.tokens, device=device), positions, tree.mask.to(device), cache).logits
    finally:
        for hook in hooks:
            hook.remove()
    return [logits[nodes], cache.rows(nodes).movedim(3, 0), *given]
