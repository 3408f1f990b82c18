"""A mixture of experts in the place of an MLP: rows grouped by expert, or on GPUs each row by itself.

A row by itself is the same operations whatever else is read, so that they can be recorded, and change no bit of it.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from localspec.families.experts import Experts as Sizes
from localspec.nn.linear import Linear, QuantizedLinear
from localspec.nn.states import AT_ONCE


def chosen_experts(logits: torch.Tensor, sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the experts of each row and their weights [rows, used], by the logits of a router [rows, experts].

    Of equal logits the first experts are taken. Weights are a softmax over the chosen ones, or over all.
    """
    ordered, numbers = logits.float().sort(dim=-1, descending=True, stable=True)
    chosen = ordered[:, : sizes.used]
    weights = chosen.softmax(-1) if sizes.normalised else ordered.softmax(-1)[:, : sizes.used]
    return numbers[:, : sizes.used], weights


class Experts(nn.Module):
    """The stacked matrices of all experts: gates of all before ups of all."""

    def __init__(
        self,
        sizes: Sizes,
        gate_up_proj: Linear | QuantizedLinear,
        down_proj: Linear | QuantizedLinear,
        gated: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.sizes, self.gate_up_proj, self.down_proj = sizes, gate_up_proj, down_proj
        self.gated, self.exact = gated, exact

    def forward(self, h: torch.Tensor, logits: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """Return what the experts of rows [..., hidden_size] give, each times its weight, by the logits of a router.

        Weights are multiplied by the `scale` of their expert, if there is one.
        """
        rows = h.reshape(-1, h.shape[-1])
        chosen, weights = chosen_experts(logits.reshape(len(rows), -1), self.sizes)
        weights = weights if scale is None else weights * scale[chosen].to(weights.dtype)
        if (self.exact or rows.is_cuda) and len(rows) <= AT_ONCE and not rows.requires_grad:
            mixed = [self._of_row(*one) for one in zip(rows, chosen, weights.to(rows.dtype), strict=True)]
            return torch.stack(mixed).view(h.shape) if mixed else h
        gates_and_ups, downs = (
            self._by_expert(one, parts) for one, parts in ((self.gate_up_proj, 2), (self.down_proj, 1))
        )
        given = rows.new_zeros(*chosen.shape, rows.shape[-1])
        for expert in sorted({*chosen.flatten().tolist()}):
            row, place = torch.where(chosen == expert)
            gate, up = (F.linear(rows[row], *one) for one in gates_and_ups[expert])
            given = given.index_put((row, place), F.linear(self.gated(gate, up), *downs[expert][0]))
        return (given * weights[..., None].to(given.dtype)).sum(1).view(h.shape)

    def _of_row(self, row: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the same of one row [hidden_size], with copies of the matrices of its experts."""
        count = self.sizes.count
        both = self.gate_up_proj.weight.view(2, count, -1, len(row))[:, chosen] @ row
        if self.gate_up_proj.bias is not None:
            both = both + self.gate_up_proj.bias.view(2, count, -1)[:, chosen]
        given = (self.down_proj.weight.view(count, len(row), -1)[chosen] @ self.gated(*both)[..., None])[..., 0]
        if self.down_proj.bias is not None:
            given = given + self.down_proj.bias.view(count, -1)[chosen]
        return (given * weights[:, None]).sum(0)

    def _by_expert(
        self, layer: Linear | QuantizedLinear, parts: int
    ) -> list[list[tuple[torch.Tensor, torch.Tensor | None]]]:
        """Return the weight and the bias of each part of each expert's matrix."""
        count, weight = self.sizes.count, layer.weight
        rows = weight.shape[0] // parts // count
        weights = weight.view(parts, count, rows, -1)
        biases = None if layer.bias is None else layer.bias.view(parts, count, rows)
        return [
            [(weights[part, expert], None if biases is None else biases[part, expert]) for part in range(parts)]
            for expert in range(count)
        ]


def experts_together(tensors: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Return tensors of a directory with one of all `count` experts in the place of those of each: gates before ups."""
    mark = ".experts.0."
    found = {name: one for name, one in tensors.items() if ".experts." not in name}
    for layer in {name.partition(mark)[0] for name in tensors if mark in name}:

        def every(part: str, of: str = f"{layer}.experts.") -> torch.Tensor:
            return torch.stack([tensors[f"{of}{expert}.{part}_proj.weight"] for expert in range(count)])

        found[f"{layer}.experts.gate_up_proj"] = torch.cat([every("gate"), every("up")], 1)
        found[f"{layer}.experts.down_proj"] = every("down")
    return found
