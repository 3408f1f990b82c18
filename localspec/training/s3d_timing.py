"""Times drafts by part of a model's layers, their verification, and a plain step, in the engine that decodes."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from localspec.decoding.drafter import Context
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.s3d import Drafter, S3DOptions
from localspec.engine.backends import Target
from localspec.models.s3d_prediction import Timing, share, symmetric
from localspec.models.shape import Shape

SHARES = (0.25, 0.5, 0.75)  # of the layers
RUNS = 5
CONTEXT, ROWS = 256, (2, 4, 8, 16)  # tokens before the tree, and rows of it: those that the decoder chooses among


def timings(target: Target, forms: Sequence[S3DOptions] = (), rows: int = ROWS[-1]) -> list[Timing]:
    """Time drafters of these `forms`, or of some shares of the layers, and verifications of up to `rows` rows.

    The target is loaded as for replies. Weights and text do not affect the times.
    """
    layers, room = target.compute.target.sizes.num_layers, min(CONTEXT, max(1, target.context - rows))
    cache, head = target.cache(room + rows), head_weight(target)
    cache.assume(room)
    context = Context([0] * (room + 1), cache, rows - 1, Sampling())

    def forward(count: int) -> float:
        tree = DraftTree.chain([0] * count)

        def run() -> list[int]:
            return target.forward(tree, cache).logits.argmax()  # which waits for the device

        return _seconds(run)

    def draft(form: S3DOptions) -> float:
        specs = Drafter.tensor_specs(target, form)
        untrained = Drafter(target, form, {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()})
        return _seconds(lambda: untrained.draft(context))

    counts = sorted({max(1, round(layers * part)) for part in SHARES})
    forms = forms or [S3DOptions(kept=",".join(map(str, symmetric(layers, count)))) for count in counts]
    plain, verify = forward(1), forward(rows)
    return [Timing(share(layers, len(form.layers(layers)), head), draft(form), verify, plain) for form in forms]


def head_weight(target: Target) -> float:
    """Return the size of the head, in layers."""
    shape = Shape.of(target.config.content)
    assert shape is not None
    return shape.embedding / shape.layer


def _seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of a few runs. The first run is left out, because it prepares a lot."""
    times = []
    for _ in range(RUNS + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return median(times[1:])
