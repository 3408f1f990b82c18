"""Two forms of attention over cached keys: the fastest, and one whose rows never depend on each other. And of SiLU.

queries [1, num_kv_heads, rows, width]; keys and values [1, num_kv_heads, slots, width]; mask additive [rows, slots].
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# With fewer, matrix multiplication takes another path and rounds otherwise.
LEAST_ROWS = 4
LEAST_SLOTS = 512
COLUMNS = 16  # of ones: with a single one the product would take another path
# Elements. Larger operations are split among threads at any of them, and the few at the end of a part are rounded
# otherwise; so transcendental functions are computed in parts this small, of whole vectors.
SERIAL = 16384


def fastest(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What torch has; its rounding depends on the number of rows, and on which slots a row's ancestors have."""
    rows, queries, dtype = queries.shape[2], queries.to(keys.dtype), queries.dtype
    if rows == 1 and keys.dtype == torch.bfloat16 and keys.device.type == "cpu":  # two rows take half the time of one
        queries, mask = queries.expand(-1, -1, 2, -1), mask.expand(2, -1)
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return mixed[:, :, :rows].to(dtype)


def invariant(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A row's result is bit for bit the same alone and in any tree, at any slots, with any number of masked ones.

    Two fp32 matrix products add up slot after slot, so what is masked adds exact zeros wherever it lies. The sum of the
    weights must be made in the same order: it is one more product, with ones. They do so page by page, though, and add
    the sums of pages: no ancestor may lie in another page than in plain decoding (`DraftTree.aligned`).
    """
    rows = queries.shape[2]
    scores_mask = mask.float()
    scaled = queries.float() * queries.shape[-1] ** -0.5
    if rows < LEAST_ROWS:
        scaled = F.pad(scaled, (0, 0, 0, LEAST_ROWS - rows))
        scores_mask = F.pad(scores_mask, (0, 0, 0, LEAST_ROWS - rows))
    weights = (scaled @ keys.float().transpose(2, 3)).add_(scores_mask)
    weights = weights.sub_(weights.amax(-1, keepdim=True))
    for part in torch.split(weights.view(-1), SERIAL):
        part.exp_()
    sums = (weights @ weights.new_ones(weights.shape[-1], COLUMNS))[..., :1]
    mixed: torch.Tensor = (weights @ values.float()) / sums
    return mixed[:, :, :rows].to(queries.dtype)


def silu(x: torch.Tensor) -> torch.Tensor:
    """F.silu of [batch, rows, channels], row by row the same for any number of rows and threads."""
    rows = max(1, SERIAL // x.shape[-1])
    if x.shape[1] <= rows:
        return F.silu(x)
    return torch.cat([F.silu(part) for part in torch.split(x, rows, 1)], 1)


@cache
@torch.inference_mode()
def page(num_kv_heads: int, width: int, rows: int, device: torch.device) -> int:
    """How many slots `invariant` adds up in one go before it adds that sum to the others, for `rows` packed rows.

    Asked of the kernels themselves, for both products with the weights. 1, which no branch of a tree can satisfy, where
    pages are not regular, or others in the one than in the other.
    """
    slots, rows = 4 * LEAST_SLOTS, max(rows, LEAST_ROWS)
    weights = torch.ones(1, num_kv_heads, rows, slots, device=device)
    values, ones = (torch.zeros(*shape, device=device) for shape in ((1, num_kv_heads, slots, width), (slots, COLUMNS)))
    sizes = {_page(weights, values), _page(weights, ones)} - {slots}  # one page for all goes with any other
    return 1 if len(sizes) > 1 else sizes.pop() if sizes else slots


def _page(weights: torch.Tensor, values: torch.Tensor) -> int:
    """Behind 2²⁴ in slot 0 a one is lost by rounding, and so is a second one; but two in another page are a two first.

    Each column of the product tries two neighbouring slots.
    """
    slots, width = values.shape[-2:]
    heads = values.view(-1, slots, width)
    heads[:, 0] = 2.0**24
    together = []  # slots that are in one page with the next, and that is not the first
    for first in range(1, slots - 1, len(heads) * width):
        places = torch.arange(first, min(first + len(heads) * width, slots - 1), device=values.device)
        head, column = (places - first) // width, (places - first) % width
        heads[head, places, column] = heads[head, places + 1, column] = 1.0
        found = (weights @ values)[0, head, :, column] > 2.0**24
        heads[head, places, column] = heads[head, places + 1, column] = 0.0
        if (found != found[:, :1]).any():  # not for all rows alike
            return 1
        together += places[found[:, 0]].tolist()
    size = together[0] if together else slots
    return size if together == [place for place in range(size, slots - 1) if (place + 1) % size] else 1
