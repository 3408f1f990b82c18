"""A mixture of experts in place of an MLP. It is computed expert by expert, or on GPUs row by row for drafts.

Row by row, the operations for a row do not depend on the other rows. So a CUDA graph can repeat them, and a row's
result is always the same, bit for bit.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from localspec.families.family import MixtureSizes as Sizes
from localspec.nn.linear import Linear, QuantizedLinear
from localspec.nn.states import AT_ONCE


def chosen_experts(logits: torch.Tensor, sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the experts of each row and their weights, both [rows, used], for a router's logits [rows, experts].

    The experts with the largest logits are chosen; at equal logits, the first expert. The weights are a softmax over
    the chosen experts if `sizes.normalised`, else over all experts.
    """
    ordered, experts = logits.float().sort(dim=-1, descending=True, stable=True)
    chosen = ordered[:, : sizes.used]
    weights = chosen.softmax(-1) if sizes.normalised else ordered.softmax(-1)[:, : sizes.used]
    return experts[:, : sizes.used], weights


class Experts(nn.Module):
    """The mixture of experts of a layer.

    `gate_up_proj` stacks the gate matrices of all experts, then the up matrices of all experts; `down_proj` stacks the
    down matrices. `gated` is the activation (gate, up) -> product. On a GPU, and with `exact` on a CPU, up to AT_ONCE
    rows are computed row by row.
    """

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
        """Return the weighted sum of the chosen experts' outputs for states `h` [..., hidden_size].

        `logits` [..., experts] are the router's. `scale` [experts] multiplies the weights of each expert.
        """
        rows = h.reshape(-1, h.shape[-1])
        chosen, weights = chosen_experts(logits.reshape(len(rows), -1), self.sizes)
        weights = weights if scale is None else weights * scale[chosen].to(weights.dtype)
        if (self.exact or rows.is_cuda) and len(rows) <= AT_ONCE and not rows.requires_grad:
            mixed = [self._of_row(*inputs) for inputs in zip(rows, chosen, weights.to(rows.dtype), strict=True)]
            return torch.stack(mixed).view(h.shape)
        gates_and_ups, downs = (
            self._by_expert(linear, parts) for linear, parts in ((self.gate_up_proj, 2), (self.down_proj, 1))
        )
        outputs = rows.new_zeros(*chosen.shape, rows.shape[-1])  # [rows, used, hidden_size]
        for expert in sorted({*chosen.flatten().tolist()}):
            row, choice = torch.where(chosen == expert)
            gate, up = (F.linear(rows[row], *layer) for layer in gates_and_ups[expert])
            outputs = outputs.index_put((row, choice), F.linear(self.gated(gate, up), *downs[expert][0]))
        return (outputs * weights[..., None].to(outputs.dtype)).sum(1).view(h.shape)

    def _of_row(self, row: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum for one `row` [hidden_size], with copies of the matrices of its `chosen` experts
        [used]."""
        count = self.sizes.count
        gate_up = self.gate_up_proj.weight.view(2, count, -1, len(row))[:, chosen] @ row  # [2, used, size]
        if self.gate_up_proj.bias is not None:
            gate_up = gate_up + self.gate_up_proj.bias.view(2, count, -1)[:, chosen]
        outputs = (self.down_proj.weight.view(count, len(row), -1)[chosen] @ self.gated(*gate_up)[..., None])[..., 0]
        if self.down_proj.bias is not None:
            outputs = outputs + self.down_proj.bias.view(count, -1)[chosen]
        return (outputs * weights[:, None]).sum(0)

    def _by_expert(
        self, layer: Linear | QuantizedLinear, parts: int
    ) -> list[list[tuple[torch.Tensor, torch.Tensor | None]]]:
        """Split a layer that stacks the matrices of all experts into (weight, bias), as [expert][part].

        `parts` is 2 for a layer with gates and ups, and 1 for a layer with downs.
        """
        count, weight = self.sizes.count, layer.weight
        rows = weight.shape[0] // parts // count
        weights = weight.view(parts, count, rows, -1)
        biases = None if layer.bias is None else layer.bias.view(parts, count, rows)
        return [
            [(weights[part, expert], None if biases is None else biases[part, expert]) for part in range(parts)]
            for expert in range(count)
        ]


def experts_together(tensors: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Return `tensors` of the Hugging Face layout with the matrices of each layer's `count` experts in two tensors.

    `experts.gate_up_proj` is [experts, gates and then ups, hidden_size], and `experts.down_proj` is [experts,
    hidden_size, size].
    """
    first = ".experts.0."  # each layer with experts has this one
    merged = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in {name.partition(first)[0] for name in tensors if first in name}:

        def every(part: str, prefix: str = f"{layer}.experts.") -> torch.Tensor:
            return torch.stack([tensors[f"{prefix}{expert}.{part}_proj.weight"] for expert in range(count)])

        merged[f"{layer}.experts.gate_up_proj"] = torch.cat([every("gate"), every("up")], 1)
        merged[f"{layer}.experts.down_proj"] = every("down")
    return merged
