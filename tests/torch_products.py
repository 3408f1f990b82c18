"""Whether a row of torch's matrix products has the same bits with and without other rows on this CPU."""

import pytest
import torch

from localspec.nn.attention import LEAST_SLOTS

PAGE = 192  # slots that they add up in one go on most processors

ROWS = (4, 5, 9, 24)
SHAPES = ((2, 24), (4, 64), (16, 96))


@torch.inference_mode()
def in_order() -> bool:
    """Return whether torch adds up the slots of each row in the same order as for a single row."""
    threads, generator = torch.get_num_threads(), torch.Generator().manual_seed(0)
    torch.set_num_threads(1)
    try:
        for heads, width in SHAPES:
            if not _in_pages(heads, width):
                return False
            weights = torch.randn(1, heads, max(ROWS), LEAST_SLOTS, generator=generator)
            values = torch.randn(1, heads, LEAST_SLOTS, width, generator=generator)
            for left, right in ((weights, values), (weights[..., :width].contiguous(), values.transpose(2, 3))):
                whole = left @ right
                if not all(torch.equal(left[:, :, :rows].contiguous() @ right, whole[:, :, :rows]) for rows in ROWS):
                    return False
    finally:
        torch.set_num_threads(threads)
    return True


def _in_pages(heads: int, width: int) -> bool:
    """Return whether two ones are added to 2²⁴ one by one, and lost, only if they are in two pages."""
    for first, lost in ((PAGE - 1, True), (PAGE, False), (2 * PAGE - 1, True), (2 * PAGE, False)):
        values = torch.zeros(1, heads, LEAST_SLOTS, width)
        values[:, :, 0], values[:, :, first : first + 2] = 2.0**24, 1.0
        if bool((torch.ones(1, heads, max(ROWS), LEAST_SLOTS) @ values == 2.0**24).all()) != lost:
            return False
    return True


# The kernels for some CPUs add up in several places at once. There a CPU cannot stand in for a GPU.
needs_order = pytest.mark.skipif(not in_order(), reason="torch's products do not add up in order on this processor")
