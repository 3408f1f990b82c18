"""Gated DeltaNet (Yang et al. 2024): a layer whose tokens read and change a state, instead of attention.

Each value head has keys k and queries q of length one, values v, and for each token numbers α and β in (0, 1):

    S ← α S;   S ← S + k βᵀ(v − Sᵀk);   o = Sᵀq / √(channels of a key)

Tokens are read one after another, so a row's result does not depend on its neighbours. Many rows are computed in
chunks.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from localspec.families.family import DeltaNet
from localspec.nn.linear import LayerClass
from localspec.nn.placed_rows import PlacedChain
from localspec.nn.states import State, StateCache

CHUNK = 64  # rows of a chunk
EPS = 1e-6  # of the lengths of queries and keys

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class GatedDeltaNet(nn.Module):
    """A Gated DeltaNet: the part of a layer between its norm and the residual sum.

    With `exact`, a few rows are computed one by one, so that they do not affect each other's rounding.
    """

    def __init__(
        self, sizes: DeltaNet, eps: float, weights: Mapping[str, Any], name: str, linear_class: LayerClass, exact: bool
    ) -> None:
        """Build the layer. `weights` have localspec's names; those of this layer begin with `name`."""
        super().__init__()
        self.sizes, self.eps, self.exact = sizes, eps, exact

        def parameter(suffix: str) -> nn.Parameter:
            return nn.Parameter(weights[name + suffix], requires_grad=False)

        self.in_proj, self.out_proj = (
            linear_class(weights[f"{name}{part}.weight"]) for part in ("in_proj", "out_proj")
        )
        self.conv, self.value_norm = parameter("conv"), parameter("value_norm")
        self.dt_bias, self.A_log = parameter("dt_bias"), parameter("A_log")

    def forward(self, h: torch.Tensor, cache: StateCache | PlacedChain | None, layer: int) -> torch.Tensor:
        """Return the layer's output for rows [batch, n, hidden_size] after the tokens of the cache."""
        sizes = self.sizes
        read, gate = torch.split(self.in_proj(h), [sizes.read, sizes.values], -1)
        if cache is not None:
            values = cache.read(layer, read[0], self.advance)[None]
        else:
            values = torch.stack([self.advance(self._initial_state(rows), rows, False)[0] for rows in read])
        normed = F.rms_norm(
            values.view(*values.shape[:-1], -1, sizes.value_dim).float(),
            (sizes.value_dim,),
            self.value_norm.float(),
            self.eps,
        )
        gate = F.silu(gate.float())
        outputs: torch.Tensor = self.out_proj((normed.view(gate.shape) * gate).to(h.dtype))
        return outputs

    def advance(
        self, state: State, rows: torch.Tensor, one_by_one: bool, real: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, State]:
        """Read rows [n, channels + 2 * value_heads] after a state. Return values [n, value_heads * value_dim], and the
        state after the rows.

        `real`, an int64 scalar tensor, is the number of rows that change the state. Later rows are padding.
        """
        sizes, count = self.sizes, len(rows)
        mixed, beta, alpha = torch.split(rows, [sizes.channels, sizes.value_heads, sizes.value_heads], -1)
        window = torch.cat([state.tail, mixed])
        if one_by_one and self.exact:  # a function of several rows may round the last of them differently
            each = [
                self._inputs(window[row : row + sizes.taps], beta[row : row + 1], alpha[row : row + 1])
                for row in range(count)
            ]
            q, k, v, decay, beta = (torch.cat(parts) for parts in zip(*each, strict=True))
        else:
            q, k, v, decay, beta = self._inputs(window, beta, alpha)
        tail = window[count:].clone()
        if real is not None:  # S · exp(0) + k 0ᵀ is S
            spare = torch.arange(count, device=rows.device)[:, None] >= real
            decay, beta = decay.masked_fill(spare, 0), beta.masked_fill(spare, 0)
            tail = window.index_select(0, torch.arange(sizes.taps - 1, device=rows.device) + real)
        compute = _one_by_one if one_by_one else _in_chunks
        values, matrices = compute((q, k, v, decay, beta), state.matrices)
        return values.reshape(count, -1).to(rows.dtype), State(state.length + count, matrices, tail)

    def _initial_state(self, rows: torch.Tensor) -> State:
        sizes = self.sizes
        matrices = rows.new_zeros(sizes.value_heads, sizes.key_dim, sizes.value_dim, dtype=torch.float32)
        return State(0, matrices, rows.new_zeros(sizes.taps - 1, sizes.channels))

    def _inputs(self, window: torch.Tensor, beta: torch.Tensor, alpha: torch.Tensor) -> Inputs:
        """Return q, k [n, value heads, key_dim], v [n, value heads, value_dim], log α and β [n, value heads].

        `window` [taps - 1 + n, channels] is the input of the convolution: `taps - 1` earlier rows, and n rows.
        """
        sizes, count, taps = self.sizes, len(beta), self.conv[:, 0].float()
        mixed = sum(window[tap : tap + count].float() * taps[:, tap] for tap in range(sizes.taps))
        assert isinstance(mixed, torch.Tensor)
        mixed = F.silu(mixed).to(window.dtype).float()
        keys, values = (sizes.key_heads, sizes.key_dim), (sizes.value_heads, sizes.value_dim)
        q, k, v = torch.split(mixed, [sizes.keys, sizes.keys, sizes.values], -1)
        shared = sizes.value_heads // sizes.key_heads
        q, k = (_unit_vectors(part.view(count, *keys)) for part in (q, k))
        q, k = (part.repeat(1, shared, 1) if sizes.tiled else part.repeat_interleave(shared, 1) for part in (q, k))
        decay = -self.A_log.float().exp() * F.softplus(alpha.float() + self.dt_bias.float())
        return q * sizes.key_dim**-0.5, k, v.view(count, *values), decay, beta.sigmoid().float()


def _unit_vectors(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)


def _one_by_one(inputs: Inputs, matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs [n, value heads, value_dim] and the last state, computed token by token."""
    values = []
    for q, k, v, decay, beta in zip(*inputs, strict=True):
        matrices = matrices * decay.exp()[:, None, None]
        change = (v - (matrices * k[..., None]).sum(-2)) * beta[:, None]
        matrices = matrices + k[..., None] * change[:, None]
        values.append((matrices * q[..., None]).sum(-2))
    return torch.stack(values), matrices


def _in_chunks(inputs: Inputs, matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the result of `_one_by_one` chunk by chunk, by matrix products (Yang et al. 2024, §3.3).

    Each row's change of the state depends on the changes by earlier rows, so each chunk takes one triangular system.
    """
    count = len(inputs[0])
    padding = -count % CHUNK
    # [chunks, value heads, rows, …]
    q, k, v, decay, beta = (
        F.pad(x, (0, 0) * (x.ndim - 1) + (0, padding)).view(-1, CHUNK, *x.shape[1:]).transpose(1, 2) for x in inputs
    )
    total = decay.cumsum(-1)
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    system = (k * beta[..., None]) @ k.transpose(-1, -2) * between
    base = torch.linalg.solve_triangular(system, v * beta[..., None], upper=False, unitriangular=True)
    projected = k * (beta * total.exp())[..., None]
    projected = torch.linalg.solve_triangular(system, projected, upper=False, unitriangular=True)
    attention = (q @ k.transpose(-1, -2)) * between
    q, k = q * total.exp()[..., None], k * (total[..., -1:] - total).exp()[..., None]
    values = []
    for chunk in range(len(q)):
        change = base[chunk] - projected[chunk] @ matrices
        values.append(q[chunk] @ matrices + attention[chunk] @ change)
        matrices = matrices * total[chunk, :, -1].exp()[:, None, None] + k[chunk].transpose(-1, -2) @ change
    return torch.stack(values).transpose(1, 2).flatten(0, 1)[:count], matrices
