"""A dense layer on an NVIDIA card, in whose product the bits of a row do not depend on how many rows are beside it."""

import torch
import torch.nn.functional as F

from localspec.nn import own_kernels, row_kernels
from localspec.nn.linear import Adapter, Linear
from localspec.nn.states import AT_ONCE

# Rows of every product: libraries choose a kernel by their number, and each rounds in its own way.
ROWS = 16


class InvariantLinear(Linear):
    """y = x Wᵀ + b with W [out, in]; a prompt of more than 128 rows is read by the library, and the same each time."""

    def forward(self, x: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if x.requires_grad or not 0 < len(rows) <= AT_ONCE:
            return super().forward(x, adapter)
        if own_kernels.serve(rows, self.weight) and row_kernels.multiplies(rows) and rows.dtype == self.weight.dtype:
            y = row_kernels.dense(rows, self.weight, self.bias)
        else:
            y = torch.cat([self._of_part(part) for part in torch.split(rows, ROWS)])
        y = y.view(*x.shape[:-1], -1)
        return y if adapter is None else y + adapter(x).to(y.dtype)

    def _of_part(self, rows: torch.Tensor) -> torch.Tensor:
        filled = F.pad(rows, (0, 0, 0, ROWS - len(rows)))
        return F.linear(filled, self.weight, self.bias)[: len(rows)]

    def rows(self, channels: torch.Tensor) -> "Linear":
        return InvariantLinear(self.weight.detach()[channels])
