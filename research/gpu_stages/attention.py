"""Measures attention with a tree's mask, in torch's backends and in localspec's invariant form: seconds and bits."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from figures import table
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_stages.aims import failed
from gpu_stages.invented import LLAMA2, LLAMA3, SHAPES, SMALL_SHAPES
from gpu_stages.products import COMPARED, bits, cell
from gpu_stages.record import Record, failure
from gpu_stages.request import Request
from gpu_stages.timing import captured_seconds_each, seconds_each
from localspec.models.shape import Shape
from localspec.nn.attention import Attention, fastest, invariant
from localspec.nn.target import ancestor_mask

ROWS = (1, 8, 16, 32)
SLOTS = 2048
LAYERS = 8  # layers whose keys and values take turns
BACKENDS: Mapping[str, SDPBackend | None] = {
    "as torch chooses": None, "math": SDPBackend.MATH, "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
}  # fmt: skip
INVARIANT = "our invariant form"
MODELS = (LLAMA2, LLAMA3)  # a key head for each query head, and one for four


def run(record: Record, request: Request) -> None:
    """Measure every backend with both arrangements of attention heads."""
    for name in MODELS:
        shape, slots = (SMALL_SHAPES[name], 128) if request.small else (SHAPES[name], SLOTS)
        for way in (*BACKENDS, INVARIANT):
            record.measured(f"attention {name}, {way}", partial(measured, way, shape, slots, request.device))


@torch.no_grad()
def measured(way: str, shape: Shape, slots: int, device: str) -> dict[str, Any]:
    """Return the μs of one layer's attention by number of rows, and for which numbers of rows a row's bits change."""
    torch.manual_seed(0)
    attend: Attention = invariant if way == INVARIANT else fastest
    backend = BACKENDS.get(way)
    kv, group, width = shape.num_kv_heads, shape.num_heads // shape.num_kv_heads, shape.head_dim
    layers = [torch.randn(2, 1, kv, slots, width, device=device, dtype=torch.bfloat16) for _ in range(LAYERS)]
    queries = torch.randn(kv, group, max(COMPARED), width, device=device, dtype=torch.bfloat16)

    def grouped(rows: Sequence[int]) -> torch.Tensor:
        return queries[:, :, list(rows)].reshape(1, kv, group * len(rows), width)

    def of(layer: torch.Tensor, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend) if backend else nullcontext():
            return attend(x, layer[0], layer[1], mask)

    result: dict[str, Any] = {"us": {}, "captured": {}}
    for count in ROWS:
        x, mask = grouped(range(count)), tree_mask(count, slots, group, device)
        works = [partial(of, layer, x, mask) for layer in layers]
        result["us"][str(count)] = 1e6 * seconds_each(works, device)
        graph = captured_seconds_each(works, device)
        result["captured"][str(count)] = 1e6 * graph if isinstance(graph, float) else graph
    result["differing"] = differing(partial(of, layers[0]), grouped, slots, group, device)
    return result


def differing(
    of: Callable[..., torch.Tensor],
    grouped: Callable[[Sequence[int]], torch.Tensor],
    slots: int,
    group: int,
    device: str,
) -> list[int]:
    """Return for which numbers of rows a row has other bits than when it is computed by itself."""
    counts = []
    for count in COMPARED:
        every = torch.zeros(group * count, slots, device=device, dtype=torch.bfloat16)
        batched = by_row(of(grouped(range(count)), every), count)
        for row in range(count):
            alone = by_row(of(grouped([row]), every[:group]), 1)
            if not torch.equal(batched[:, :, :, row], alone[:, :, :, 0]):
                counts.append(count)
                break
    return counts


def by_row(mixed: torch.Tensor, rows: int) -> torch.Tensor:
    """Reshape [1, heads, group * rows, width] to [1, heads, group, rows, width]."""
    return mixed.reshape(1, mixed.shape[1], -1, rows, mixed.shape[3])


def tree_mask(rows: int, slots: int, group: int, device: str) -> torch.Tensor:
    """Return an additive mask [group * rows, slots] for a binary tree, after a text that fills almost all slots."""
    visible, committed = torch.zeros(rows, slots, dtype=torch.bool), slots - 2 * rows
    visible[:, :committed] = True
    visible[:, committed : committed + rows] = ancestor_mask([-1, *[(node - 1) // 2 for node in range(1, rows)]])
    additive = torch.zeros(rows, slots, dtype=torch.bfloat16).masked_fill_(~visible, float("-inf"))
    return additive.repeat(group, 1).to(device)


def section(figures: Mapping[str, Any]) -> list[str]:
    results = {
        name.removeprefix("attention "): result for name, result in figures.items() if name.startswith("attention ")
    }
    good = {name: result for name, result in results.items() if not failure(result)}
    if not good:
        return failed(results)
    lines = [[name, *(cell(result, count) for count in ROWS), bits(result)] for name, result in good.items()]
    caption = f"Attention of a layer over {SLOTS} slots with a tree's mask, μs: captured, and in brackets as Python starts it."
    return [
        caption,
        table(["heads and backend", *(f"{n} rows" for n in ROWS), "bits of a row"], lines),
        *failed(results),
    ]
