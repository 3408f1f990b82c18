"""Trains Medusa's heads (Cai et al. 2024, §3.2), with the target model unchanged or trained together with them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from localspec.decoding.compute import EPS
from localspec.drafters.medusa import JOINT, SOFT_BALANCE, TEXT_BALANCE, Drafter, MedusaOptions
from localspec.drafters.trained import draft_vocabulary
from localspec.machine.memory import free_memory
from localspec.nn.adapters import Adapters
from localspec.nn.linear import Linear, QuantizedLinear
from localspec.nn.losses import DepthLoss, Guess, Head, Likeliest, cross_entropies, cross_entropy
from localspec.nn.target import Target
from localspec.training.readings import Places
from localspec.training.trainable import (
    COMMON,
    Batch,
    LossOutput,
    Proposed,
    TrainableDrafter,
    predicting_next,
)

SHARE = 0.1  # of the model's weights: most that separate vocabulary matrices may take
TRAINED_BYTES = 16  # of a number that is trained: itself, its gradient and two moments
PATH_RATE = 0.2  # the learning rate of the least-squares path, as a share of the others'
RIDGE = 300.0  # added to the squares of inputs, which are 1 on average, so that a few rows are not trusted
FITTED = 65_536  # places for least squares, at most


class ResidualBlocks(nn.Module):
    """A residual block of each head, x + SiLU(W x + b) (§3.1.1). It starts with zeros, so that it returns x.

    weight [heads, hidden_size, read], where `read` is the size of the input, and bias [heads, hidden_size]. If the
    input is larger than hidden_size, `path` maps it to the x that is added.
    """

    def __init__(self, heads: int, width: int, read: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, width, read, device=device))
        self.bias = nn.Parameter(torch.zeros(heads, width, device=device))

    def forward(self, x: torch.Tensor, heads: slice, path: "LinearPath | None" = None) -> torch.Tensor:
        """Return the outputs [heads, rows, hidden_size] of some heads' blocks, selected by the slice `heads`.

        x [heads, rows, read] is their input.
        """
        base = x if path is None else _linears(x, path.weight[heads], path.bias[heads])
        return base + F.silu(_linears(x, self.weight[heads], self.bias[heads]))


class LinearPath(nn.Module):
    """A linear map for each head, from a hidden state and the next token's embedding to a later hidden state.

    At first it returns the given state. weight [heads, hidden_size, 2 hidden_size], bias [heads, hidden_size].
    """

    def __init__(self, heads: int, width: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width, 2 * width, device=device).repeat(heads, 1, 1))
        self.bias = nn.Parameter(torch.zeros(heads, width, device=device))

    @torch.no_grad()
    def fit(self, parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Set weights and biases by least squares, unless there are too few rows.

        `parts` are pairs: inputs [rows, 2 hidden_size], and the hidden states to predict [heads, rows, hidden_size].
        """
        heads, width, read = self.weight.shape
        square = torch.zeros(read + 1, read + 1, device=self.weight.device)
        products = torch.zeros(heads, read + 1, width, device=self.weight.device)
        for x, follow in parts:
            x = F.pad(x, (0, 1), value=1.0)
            square += x.T @ x
            products += x.T @ follow
        if square[-1, -1] < read:
            return
        square.diagonal().add_(RIDGE)
        solution = torch.cholesky_solve(products.transpose(0, 1).flatten(1), torch.linalg.cholesky(square))
        solution = solution.view(read + 1, heads, width).permute(1, 2, 0)
        self.weight.copy_(solution[..., :-1])
        self.bias.copy_(solution[..., -1])


class LowRankChange(nn.Module):
    """A low-rank change (up · down) of the shared vocabulary matrix, a different one for each head. It starts at zero.

    down [heads, rank, hidden_size], up [heads, draft vocabulary, rank].
    """

    def __init__(self, heads: int, rank: int, width: int, vocabulary: int, device: str) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(heads, rank, width, device=device) * width**-0.5)
        self.up = nn.Parameter(torch.zeros(heads, vocabulary, rank, device=device))

    def forward(
        self, x: torch.Tensor, heads: slice, logits: torch.Tensor, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return `logits` [heads, rows, tokens], changed for these heads and x [heads, rows, hidden_size]."""
        ups = self.up[heads] if columns is None else self.up[heads][:, columns]
        down, up = (part.to(x.dtype).transpose(1, 2) for part in (self.down[heads], ups))
        return torch.baddbmm(logits, torch.bmm(x, down), up)


class Trainable(TrainableDrafter):
    """Medusa heads in training. Medusa-1 trains only the heads, with the target unchanged.

    Medusa-2 also trains `adapters` of the target, which are merged into it at the end. Its heads have the same form as
    in Medusa-1, but belong to the changed target.
    """

    Drafter = Drafter
    options: MedusaOptions
    JOINT = ("joint", *JOINT)
    linears: nn.Parameter | None

    def __init__(self, target: Target, options: MedusaOptions) -> None:
        super().__init__(target, options)
        transformer = target.transformer
        width = transformer.config.hidden_size
        shape = transformer.config
        options = self.options = replace(options, vocabulary=draft_vocabulary(options.vocabulary, shape.vocab_size))
        tokens = options.vocabulary or shape.vocab_size
        self.draft_from(options.vocabulary)
        self.blocks = nn.ModuleList(
            ResidualBlocks(options.heads, width, 2 * width if options.linear and not index else width, target.device)
            for index in range(options.layers)
        )
        if options.linear:
            self.path = LinearPath(options.heads, width, target.device)
        self.linears = None
        if options.private:
            self.linears = nn.Parameter(self._target_rows().repeat(options.heads, 1, 1))
        if rank := options.change_rank:
            self.own = LowRankChange(options.heads, rank, shape.hidden_size, tokens, target.device)
        if options.joint:
            layers = range(len(transformer.layers))
            self.adapters = Adapters(
                transformer, layers, options.rank, options.alpha, head=options.lm_head, dropout=options.dropout
            )

    def _target_rows(self) -> torch.Tensor:
        """Return the rows of the target's head for the tokens in the draft vocabulary, in fp32."""
        transformer = self.target.transformer
        head = transformer.lm_head.weight.detach().float() * transformer.config.logit_scale
        return head if self.kept is None else head[self.kept]

    @classmethod
    def propose(cls, target: Target, *_: Any, **__: Any) -> Proposed | None:
        """Propose a separate vocabulary matrix for each head, as in the paper, if the matrices are small.

        They must be small relative to the target's weights and to free memory.
        """
        shape, defaults = target.transformer.config, MedusaOptions()
        # Also with a draft vocabulary, because the matrices learn slowly.
        private = defaults.heads * shape.vocab_size * shape.hidden_size
        matrices = (part for part in target.transformer.layers.modules() if isinstance(part, Linear | QuantizedLinear))
        weights = sum(math.prod(part.shape) for part in matrices)
        if private > SHARE * weights or TRAINED_BYTES * private > free_memory(str(target.device)) / 2:
            return None
        return Proposed(
            {"private": True},
            (
                f"each head gets its own vocabulary matrix, together {100 * private / weights:.0f} % of the model's "
                "weights; give -O private=false to let the heads share the model's matrix."
            ),
        )

    @property
    def depth(self) -> int:
        """The number of heads, which is the number of tokens that they predict."""
        return self.options.heads

    @property
    def uses_readings(self) -> bool:
        """Whether training uses saved outputs of the target. Joint training does not, because it needs gradients."""
        return not self.options.joint

    @property
    def starts_fitted(self) -> bool:
        """Whether `fit` computes the linear map by least squares before the first step."""
        return self.uses_readings and self.options.linear

    def begin_training(self, frequencies: torch.Tensor) -> None:
        """Choose the draft vocabulary. If heads have separate vocabulary matrices, copy the target's rows into them."""
        super().begin_training(frequencies)
        if self.kept is not None and self.linears is not None:
            self.linears.data.copy_(self._target_rows())

    def fit(self, parts: Iterable[Places]) -> None:
        """Set each head's linear map by least squares, from a hidden state and the next token to a later hidden
        state."""
        if not self.options.linear:
            return

        def rows() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            count = 0
            for places in parts:
                index, valid = places.following(self.depth)
                whole = valid.all(1)
                yield self._read(places.states[whole], places.roots[whole]), places.states[index[whole]].transpose(0, 1)
                if (count := count + int(whole.sum())) >= FITTED:
                    return

        self.path.fit(rows())

    @property
    def weights_passed(self) -> int:
        """The number of weights that a token is multiplied by; in vocabulary matrices, only the rows of candidates."""
        shape, options = self.target.transformer.config, self.options
        if not self.uses_readings:
            return super().weights_passed
        blocks = sum(value.numel() for name, value in self.named_parameters() if name.startswith(("blocks.", "path.")))
        return blocks + options.heads * 2 * COMMON * (shape.hidden_size + options.change_rank)

    def _read(self, states: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
        """Return the heads' input from hidden states [rows, hidden_size] and the tokens after them, `roots` [rows]."""
        if not self.options.linear:
            return states
        parts = (states, self.target.embed(roots).to(states.dtype))
        return torch.cat([F.rms_norm(part, part.shape[-1:], eps=EPS) for part in parts], -1)

    def _logits(
        self, x: torch.Tensor, heads: slice, shared: Head | None = None, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return logits [heads, rows, tokens] of the heads in the slice `heads`, for the input x [heads, rows, read].

        The tokens are the draft vocabulary, or only its entries at the indices `columns`. If the heads share a
        vocabulary matrix, the function `shared` applies it; by default that is the target's head.
        """
        for index, blocks in enumerate(self.blocks):
            x = blocks(x, heads, self.path if self.options.linear and not index else None)
        if self.linears is None:
            logits = (shared or self.shared)(x)
            return self.own(x, heads, logits, columns) if self.options.change_rank else logits
        matrices = self.linears[heads] if columns is None else self.linears[heads][:, columns]
        # In this order a single row takes the path for vectors, which reads the matrices twice as fast.
        return torch.bmm(matrices.to(x.dtype), x.transpose(1, 2)).transpose(1, 2).contiguous()

    def loss(self, batch: Batch) -> LossOutput:
        """Return the loss of Medusa-1 (§3.2.1, eq. 1), or in joint training of Medusa-2 (§3.2.2, eq. 2).

        Head k predicts the token at t + 1 + k, from the target's hidden state at t and the token at t + 1.

        Joint training begins as Medusa-1, while the heads warm up. Then the heads read hidden states of the target with
        its adapters, and share its head, also with its adapter. The teacher is the target without adapters (§3.3.2).
        The factor λ₀ weakens the heads' effect on the target. It scales only the gradient that flows from the heads'
        loss into the target. The heads' own gradient is not scaled, because Adam remembers the larger gradients of the
        warm-up, and would make too small steps.

        With saved outputs of the target, a step compares only candidates from the draft vocabulary: the likeliest next
        tokens at the step's positions, and the most frequent tokens.
        """
        places = batch.places or batch.read_places(self.depth, batch.hidden, batch.hidden)
        adapted = self.adapters is not None and self.progress >= self.options.warmup
        states = places.states
        shared, ids, columns = self.candidates(places.labels)
        if adapted:
            balance = self._balance(batch.distill)
            own_states = self.adapted_states(batch.tokens)[predicting_next(batch.loss_mask)]
            states, shared = scaled_gradient(own_states, balance), self._balanced_head(balance)
        read = self._read(states, places.roots)
        index, valid = places.following(self.depth)
        guesses = [
            Guess(read[valid[:, depth]], self._head(depth, shared, columns), index[valid[:, depth], depth])
            for depth in range(self.depth)
        ]
        teacher = None if isinstance(places.labels, Likeliest) or not batch.distill else self.target.head
        depth_losses = cross_entropies(guesses, places.labels, teacher, ids)
        loss = torch.stack(
            [_mean(depth_loss) * self.options.decay**ahead for ahead, depth_loss in enumerate(depth_losses, start=1)]
        ).sum()
        if adapted:
            loss = loss + _mean(cross_entropy(own_states, self.adapted_head, places.labels, teacher))
        return LossOutput(loss, depth_losses)

    def _head(self, depth: int, shared: Head, columns: torch.Tensor | None) -> Head:
        """Return a function that computes the logits of the head at `depth` for rows of its input."""
        return lambda rows: self._logits(rows[None], slice(depth, depth + 1), shared, columns)[0]

    def _balanced_head(self, balance: float) -> Head:
        """Return the target's head with its trained adapter. The adapter's gradient is scaled by λ₀ (`balance`)."""
        assert self.adapters is not None
        if (adapter := self.adapters.head) is None:
            return self.shared

        def weaker(x: torch.Tensor, channels: torch.Tensor | None = None) -> torch.Tensor:
            weights = {name: scaled_gradient(parameter, balance) for name, parameter in adapter.named_parameters()}
            changed: torch.Tensor = torch.func.functional_call(adapter, weights, (x, channels))
            return changed

        return lambda hidden: self.shared(hidden, weaker)

    def _balance(self, distill: bool) -> float:
        """Return λ₀ at this point of the joint training (§3.2.2)."""
        options = self.options
        highest = options.balance or (SOFT_BALANCE if distill else TEXT_BALANCE)
        if options.schedule == "constant":
            return highest
        return highest * math.sin(math.pi / 2 * (self.progress - options.warmup) / (1 - options.warmup))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trained weights in three groups with different learning rates: heads, linear maps and adapters."""
        adapters = [] if self.adapters is None else list(self.adapters.parameters())
        path = list(self.path.parameters()) if self.options.linear else []
        others = {id(parameter) for parameter in (*adapters, *path)}
        heads = [parameter for parameter in self.parameters() if id(parameter) not in others]
        groups = ((heads, 1.0), (path, PATH_RATE), (adapters, self.options.rate))
        return [{"params": some, "lr_scale": scale} for some, scale in groups if some]


def _linears(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.baddbmm(bias.to(x.dtype)[:, None], x, weight.to(x.dtype).transpose(1, 2))


def scaled_gradient(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return x, whose gradient is multiplied by `scale`."""
    return x.detach() + scale * (x - x.detach())


def _mean(depth_loss: DepthLoss) -> torch.Tensor:
    return depth_loss.loss / max(depth_loss.count, 1)
