"""Two forms of attention over cached keys, and of activations: the fastest, and one whose rows are independent.

queries [1, num_kv_heads, rows, head_dim]; keys and values [1, num_kv_heads, slots, head_dim]; the mask is additive,
[rows, slots]; scores are multiplied by `scale`, by default one over the root of head_dim.
"""

from collections.abc import Callable, Mapping
from functools import cache

import torch
import torch.nn.functional as F

from localspec.nn import own_kernels, row_kernels

Attention = Callable[..., torch.Tensor]  # of queries, keys, values, mask and scale
Activation = Callable[[torch.Tensor], torch.Tensor]

# With fewer, matrix multiplication takes another path and rounds differently.
LEAST_ROWS = 4
LEAST_SLOTS = 512
COLUMNS = 16  # of ones: with a single one the product would take another path
# Elements. On a CPU a larger operation is split among threads at any element, and the last few of a part are rounded
# differently; so transcendental functions are computed in parts this small, each of whole vectors. GPUs compute each
# element for itself, and would take longer to be told of the parts than to compute them.
SERIAL = 16384


def fastest(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Computes attention as torch does, whose rounding depends on the number of rows and on the ancestors' slots."""
    rows, queries, dtype = queries.shape[2], queries.to(keys.dtype), queries.dtype
    if rows == 1 and keys.dtype == torch.bfloat16 and keys.device.type == "cpu":  # two rows take half the time of one
        queries, mask = queries.expand(-1, -1, 2, -1), mask.expand(2, -1)
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
    return mixed[:, :, :rows].to(dtype)


def invariant(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Computes attention so that a row's result is the same to the bit alone and in any tree, at any slots.

    Two fp32 matrix products add up slot after slot, so masked slots add exact zeros wherever they are. The sum of the
    weights must be taken in the same order, so it is one more product, with ones. The products sum page by page,
    though, and then add the pages' sums: every ancestor must be in the page where it is in plain decoding
    (`DraftTree.aligned`).
    """
    if own_kernels.serve(keys, queries, values) and row_kernels.attends(queries, keys, values):
        return row_kernels.attention(queries, keys, values, mask, scale).to(queries.dtype)
    rows = queries.shape[2]
    scores_mask = mask.float()
    scaled = queries.float() * (queries.shape[-1] ** -0.5 if scale is None else scale)
    if rows < LEAST_ROWS:
        scaled = F.pad(scaled, (0, 0, 0, LEAST_ROWS - rows))
        scores_mask = F.pad(scores_mask, (0, 0, 0, LEAST_ROWS - rows))
    weights = (scaled @ keys.float().transpose(2, 3)).add_(scores_mask)
    weights = weights.sub_(weights.amax(-1, keepdim=True))
    for part in torch.split(weights.view(-1), SERIAL) if weights.device.type == "cpu" else [weights]:
        part.exp_()
    sums = (weights @ weights.new_ones(weights.shape[-1], COLUMNS))[..., :1]
    mixed: torch.Tensor = (weights @ values.float()) / sums
    return mixed[:, :, :rows].to(queries.dtype)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU by tanh."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Activation] = {"silu": F.silu, "gelu": gelu}


def in_parts(activation: Activation, x: torch.Tensor) -> torch.Tensor:
    """Computes it of [batch, rows, channels] so that a row is the same for any number of rows and threads."""
    rows, channels = max(1, SERIAL // x.shape[-1]), x.shape[-1]
    if x.device.type != "cpu":
        return activation(x)
    if x.shape[1] <= rows and channels <= SERIAL:
        return activation(x)
    alike = (
        torch.cat([activation(one) for one in torch.split(part, SERIAL, -1)], -1) for part in torch.split(x, rows, 1)
    )
    return torch.cat(list(alike), 1)


@cache
@torch.inference_mode()
def page_size(num_kv_heads: int, head_dim: int, rows: int, device: torch.device) -> int:
    """Returns how many slots `invariant` sums in one go before it adds that sum to the others, for `rows` queries.

    Our own kernels say it, others themselves are asked, for both products with the weights. Where pages are not
    regular, or differ between the two products, it is 1, which no branch of a tree can satisfy.
    """
    if row_kernels.heads_fit(head_dim) and own_kernels.trouble(device) is None:
        return row_kernels.PAGE
    slots, rows = 4 * LEAST_SLOTS, max(rows, LEAST_ROWS)
    weights = torch.ones(1, num_kv_heads, rows, slots, device=device)
    values = torch.zeros(1, num_kv_heads, slots, head_dim, device=device)
    ones = torch.zeros(slots, COLUMNS, device=device)
    # A product that sums all slots in one page agrees with any other.
    sizes = {_product_page_size(weights, values), _product_page_size(weights, ones)} - {slots}
    return 1 if len(sizes) > 1 else sizes.pop() if sizes else slots


def _product_page_size(weights: torch.Tensor, values: torch.Tensor) -> int:
    """Returns the page size of `weights @ values`, found by what fp32 rounds away.

    With 2²⁴ in slot 0 and ones in two neighbouring slots, each one is lost when it is added to 2²⁴ alone. If both are
    in a later page than slot 0, their sum of two is taken first, and it is not lost. So a sum above 2²⁴ tells that two
    slots share a page other than the first. Each column of the product tries one pair of slots.
    """
    slots, width = values.shape[-2:]
    heads = values.view(-1, slots, width)
    heads[:, 0] = 2.0**24
    paired: list[int] = []  # slots that share a page with the next slot, the first page left out
    for first in range(1, slots - 1, len(heads) * width):
        tried = torch.arange(first, min(first + len(heads) * width, slots - 1), device=values.device)
        head, column = (tried - first) // width, (tried - first) % width
        heads[head, tried, column] = heads[head, tried + 1, column] = 1.0
        shared = (weights @ values)[0, head, :, column] > 2.0**24
        heads[head, tried, column] = heads[head, tried + 1, column] = 0.0
        if (shared != shared[:, :1]).any():  # rows differ
            return 1
        paired += tried[shared[:, 0]].tolist()
    size = paired[0] if paired else slots
    regular = [slot for slot in range(size, slots - 1) if (slot + 1) % size]
    return size if paired == regular else 1
