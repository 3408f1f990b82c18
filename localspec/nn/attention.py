"""Two forms of attention over cached keys: the fastest one, and one for GPUs in which rows do not affect each other.

queries [1, num_kv_heads, rows, head_dim]; keys and values [1, num_kv_heads, slots, head_dim]; the mask is additive,
[rows, slots]; scores are multiplied by `scale`, by default one over the root of head_dim.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from localspec.nn import kernel_checks, row_kernels

Attention = Callable[..., torch.Tensor]  # of queries, keys, values, mask and scale
Activation = Callable[[torch.Tensor], torch.Tensor]

# With fewer rows, matrix multiplication takes another path and rounds differently.
LEAST_ROWS = 4
LEAST_SLOTS = 512
COLUMNS = 16  # of ones: a single one would take another path of the product


def fastest(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Compute attention with torch's function. The last bits of a row's result may depend on the number of rows, and on
    the cache slots of its ancestors."""
    rows, queries, dtype = queries.shape[2], queries.to(keys.dtype), queries.dtype
    if rows == 1 and keys.dtype == torch.bfloat16 and keys.device.type == "cpu":  # two rows take half the time of one
        queries, mask = queries.expand(-1, -1, 2, -1), mask.expand(2, -1)
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
    return mixed[:, :, :rows].to(dtype)


def invariant(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Compute attention so that a row's result has the same bits in any tree, whatever slots its ancestors have.

    Both products are summed in fp32 slot after slot, so masked slots add exact zeros wherever they are. The softmax's
    sum is a product with ones, so it has the same order. localspec's own kernels, if used, sum within pages, and then
    add the sums of the pages. Every ancestor must then be in the same page as in plain decoding (`DraftTree.aligned`).
    """
    if kernel_checks.serve(keys, queries, values) and row_kernels.attends(queries, keys, values):
        return row_kernels.attention(queries, keys, values, mask, scale).to(queries.dtype)
    rows, scores_mask = queries.shape[2], mask.float()
    scaled = queries.float() * (queries.shape[-1] ** -0.5 if scale is None else scale)
    if rows < LEAST_ROWS:
        scaled = F.pad(scaled, (0, 0, 0, LEAST_ROWS - rows))
        scores_mask = F.pad(scores_mask, (0, 0, 0, LEAST_ROWS - rows))
    weights = (scaled @ keys.float().transpose(2, 3)).add_(scores_mask)
    weights = weights.sub_(weights.amax(-1, keepdim=True)).exp_()
    sums = (weights @ weights.new_ones(weights.shape[-1], COLUMNS))[..., :1]
    mixed: torch.Tensor = (weights @ values.float()) / sums
    return mixed[:, :, :rows].to(queries.dtype)


def with_sinks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None,
    sinks: torch.Tensor,
) -> torch.Tensor:
    """Compute attention with `sinks` [num_kv_heads, rows]: one more score per query, only in the sum of the softmax.

    Rows do not affect each other, as in `invariant`.
    """
    rows = queries.shape[2]
    scaled = queries.float() * (queries.shape[-1] ** -0.5 if scale is None else scale)
    padding = max(0, LEAST_ROWS - rows)
    scores = F.pad(scaled, (0, 0, 0, padding)) @ keys.float().transpose(2, 3) + F.pad(mask.float(), (0, 0, 0, padding))
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest).exp()
    sums = (weights @ weights.new_ones(weights.shape[-1], COLUMNS))[..., :1]
    sums = sums + (F.pad(sinks.float(), (0, padding))[..., None] - largest).exp()
    mixed: torch.Tensor = (weights @ values.float()) / sums
    return mixed[:, :, :rows].to(queries.dtype)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU by its tanh approximation."""
    return F.gelu(x, approximate="tanh")


def clamped_gate(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """Return the gated product of gpt-oss: (up + 1) · gate · σ(1.702 · gate), after both parts were clamped."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(1.702 * gate))


ACTIVATIONS: Mapping[str, Activation] = {"silu": F.silu, "gelu": gelu}
