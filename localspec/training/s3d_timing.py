"""Times a draft by part of a target's layers, its verification and a plain step on this machine (S3D, §5.3)."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from localspec.decoding.drafter import Context, Drafter
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.models.adapter_names import LINEARS
from localspec.models.s3d_prediction import Timing, share, symmetric
from localspec.nn.target import Target

SHARES = (0.25, 0.5, 0.75)  # of the layers
RUNS = 5
CONTEXT, ROWS = 256, 17  # tokens before the tree, and rows of it


@torch.inference_mode()
def timings(
    target: Target, make: Callable[[Sequence[int]], Drafter], counts: Sequence[int] | None = None
) -> list[Timing]:
    """Times the drafters that `make` returns for the layers they keep: `counts` of them, else some shares of all.

    Neither weights nor text change the times.
    """
    layers, room = len(target.transformer.layers), min(CONTEXT, max(1, target.context - ROWS))
    cache = target.cache(room + ROWS)
    cache.assume(room)
    context = Context([0] * (room + 1), cache, ROWS - 1, Sampling())

    def forward(rows: int) -> float:
        tree = DraftTree.chain([0] * rows)

        def run() -> list[int]:
            return target.forward(tree, cache).logits.argmax()  # which waits for the device

        return _seconds(run)

    def draft(kept: int) -> float:
        drafter = make(symmetric(layers, kept))
        return _seconds(lambda: drafter.draft(context))

    plain, verify, head = forward(1), forward(ROWS), head_weight(target)
    counts = counts or sorted({max(1, round(layers * part)) for part in SHARES})
    return [Timing(share(layers, kept, head), draft(kept), verify, plain) for kept in counts]


def head_weight(target: Target) -> float:
    """Returns how many layers have as many weights as the head."""
    shape, layer = target.transformer.config, target.transformer.layers[0]
    numbers: int = sum(getattr(layer, name).shape.numel() for name in LINEARS)
    return shape.vocab_size * shape.hidden_size / numbers


def _seconds(run: Callable[[], object]) -> float:
    """Returns the median seconds of a few runs; the first one, which prepares much, is not counted."""
    times = []
    for _ in range(RUNS + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return median(times[1:])
