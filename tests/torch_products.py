"""Whether torch's matrix products on this processor keep what the invariant form of attention and layers rests on."""

import pytest
import torch

from localspec.nn.attention import LEAST_ROWS, LEAST_SLOTS, page_size

ROWS = (LEAST_ROWS, 5, 9, 24)
SHAPES = ((2, 24), (4, 64), (16, 96))


@torch.inference_mode()
def in_order() -> bool:
    """Whether slots are added up in pages of one size, in each row as if it were alone. Torch itself is asked."""
    threads, generator = torch.get_num_threads(), torch.Generator().manual_seed(0)
    torch.set_num_threads(1)
    try:
        for heads, width in SHAPES:
            if any(page_size(heads, width, rows, torch.device("cpu")) == 1 for rows in ROWS):
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


# The kernels for some processors add up in several places at once. There the self-test says so, and the torch engine
# promises no bits (the compiled engine does, on any processor).
needs_order = pytest.mark.skipif(not in_order(), reason="torch's products do not add up in order on this processor")
