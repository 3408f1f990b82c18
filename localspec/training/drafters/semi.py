"""Trains the tiny model and head of semi-autoregressive drafting, by themselves or together with the target."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from localspec.drafters.semi import CHANGING, JOINT, Drafter, SemiOptions, Widths
from localspec.models.drafter_cards import RANKS
from localspec.nn.adapters import Adapters
from localspec.nn.losses import DepthLoss, Guess, cross_entropies, cross_entropy
from localspec.nn.target import Target
from localspec.training.trainable import Batch, GradientWork, LossOutput, TrainableDrafter


class Averaged(nn.Module):
    """The simplified transformer, eq. 6: h_q = Σ α_l MLP(e_l) / Σ α_l over the recent tokens, α learned in (0, 1).

    The state of a node, [rows, hidden_size / 2], is the numerator.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width // 2), nn.Linear(width // 2, width // 2)
        for layer in (self.inner, self.outer):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        # α is its sigmoid: ½ at first for the last place and half as much for each one before it, so that the newest
        # token outweighs all others together and can be distinguished from them.
        self.free = nn.Parameter(torch.logit(0.5 ** torch.arange(depth, 0, -1)))
        self.width = self.state_size = width // 2

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states after one more token, and h_q [rows, self.width].

        x [rows, hidden_size] are embeddings of the tokens `depth` positions after the text's last token; `state` [rows,
        self.state_size] are the states before these tokens.
        """
        alpha = self.free.sigmoid().to(x.dtype)
        x = F.silu(_linear(F.silu(_linear(x, self.inner)), self.outer))
        state = torch.addcmul(state, x, alpha[depth])
        return state, state / alpha[: depth + 1].sum()


class Recurrent(nn.Module):
    """The LSTM of two layers, eq. 7. The state of a node, [rows, 2 hidden_size], is hidden state and cell of both."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width // 2
        self.state_size = 4 * self.width
        self.first, self.second = nn.LSTMCell(width, self.width), nn.LSTMCell(self.width, self.width)

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states after one more token, and h_q [rows, self.width], as `Averaged.forward` does."""
        below, below_cell, above, above_cell = state.chunk(4, -1)
        below, below_cell = _cell(x, below, below_cell, self.first)
        above, above_cell = _cell(below, above, above_cell, self.second)
        return torch.cat([below, below_cell, above, above_cell], -1), above


class Last(nn.Module):
    """The tiny model "none": only the embedding of the last token (§6.1, zero layers). Nodes have no state."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width, self.state_size = width, 0

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the empty state and the embeddings x [rows, hidden_size] themselves."""
        return state, x


RECENT_MODELS: dict[str, type[Averaged] | type[Recurrent] | type[Last]] = {
    "transformer": Averaged,
    "lstm": Recurrent,
    "none": Last,
}


class Change(nn.Module):
    """A change U D of a matrix [out, in] that is not trained itself. It begins with zero."""

    def __init__(self, weight: torch.Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        rank = min(rank, outputs, inputs)
        self.down = nn.Parameter(torch.randn(rank, inputs, device=weight.device) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the change of a layer's output [rows, out], for its input [rows, in]."""
        return F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))

    def product(self) -> torch.Tensor:
        """Return U D [out, in]."""
        return self.up @ self.down


def learn_by_rank(module: nn.Module, rank: int) -> None:
    """Replace the training of all matrices in a module by the training of changes of this rank.

    Each layer gets an attribute `changes`.
    """
    for layer in [child for child in module.modules() if isinstance(child, nn.Linear | nn.LSTMCell)]:
        matrices = {name: matrix for name, matrix in layer.named_parameters() if matrix.ndim == 2}
        for matrix in matrices.values():
            matrix.requires_grad_(False)
        layer.changes = nn.ModuleDict({name: Change(matrix, rank) for name, matrix in matrices.items()})


class Trainable(TrainableDrafter):
    """The tiny model, and the layers that lead from it and the target's state to logits.

    Separate training, the default, leaves the target unchanged, or trains the target on the text first. Joint training
    trains both at once. `loss` then runs the target with `adapters`, which are merged into it at the end.
    """

    Drafter = Drafter
    options: SemiOptions
    JOINT = ("joint", "first", *JOINT, *CHANGING)

    def __init__(self, target: Target, options: SemiOptions) -> None:
        shape = target.transformer.config
        options = options.settled(shape.vocab_size)
        super().__init__(target, options)
        widths = Widths.of(shape, options)
        wide = widths.wide
        with torch.device(target.device):
            self.recent: Averaged | Recurrent | Last = RECENT_MODELS[options.recent](shape.hidden_size, options.depth)
            self.far = nn.Linear(shape.hidden_size, wide)  # its bias is the first half of b
            self.near = nn.Linear(self.recent.width, wide)
            self.mixed = nn.Linear(2 * wide, 2 * wide) if options.layers == 2 else None
            self.out = nn.Linear(2 * wide, widths.outputs, bias=False)
        if options.draft_rank:
            learn_by_rank(self, options.draft_rank)
        if options.joint or options.first:
            layers = range(shape.num_layers)
            self.adapters = Adapters(target.transformer, layers, options.rank, 2.0 * options.rank, head=options.lm_head)
        self.draft_from(options.vocabulary)

    def gradient_work(self, length: int) -> GradientWork:
        """Return the work of the tiny model, in rows and layers that gradients pass.

        The LSTM has the most work: its gates, and the states of two layers.
        """
        return GradientWork(float(self.depth), vectors=16)

    # -- the model ----------------------------------------------------------------------------------------------------

    def _initial_state(self, rows: int) -> torch.Tensor:
        """Return the tiny model's states [rows, state_size] before any token."""
        return torch.zeros((rows, self.recent.state_size), dtype=self._dtype, device=self.target.device)

    def _read(
        self, tokens: torch.Tensor, far: torch.Tensor, state: torch.Tensor, depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read one more token [rows], `depth` positions after the text's last token, the root of the draft.

        far [rows or 1, wide] is the product with the target's state, W_p h_p. Return the new states of the tiny model,
        and the input of the head, σ([W_p h_p, W_q h_q] + b) [rows, 2 wide].
        """
        # Normalised, because with embeddings as small as those of many targets the tiny model would learn very slowly.
        x = F.rms_norm(self.target.embed(tokens).to(self._dtype), (self.target.transformer.config.hidden_size,))
        state, recent = self.recent(x, state, depth)
        near = _linear(recent, self.near)
        return state, F.silu(torch.cat([far.expand_as(near), near], -1))

    def _head(
        self, x: torch.Tensor, shared: Callable[..., torch.Tensor] | None = None, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return logits [rows, draft vocabulary] of x [rows, 2 wide], or only some of their `columns`.

        With `columns`, `shared` is the target's head of these tokens.
        """
        if self.mixed is not None:
            x = x + F.silu(_linear(x, self.mixed))
        if not self.options.shared and columns is not None:
            return F.linear(x, self.out.weight[columns].to(x.dtype))
        x, shared = _linear(x, self.out), shared or self.shared
        if not self.options.shared:
            return x
        return shared(x) if self.adapters is None else shared(x, self.adapters.head)

    @property
    def _dtype(self) -> torch.dtype:
        return self.target.transformer.computes_in

    def loss(self, batch: Batch) -> LossOutput:
        """Return the loss of eq. 8: the mean of -log q_0(w_{i+1+j} | h_p(w_≤i), h_q(w_{i+1} … w_{i+j})), j ≤ depth.

        The first recent token w_{i+1} stands for the last token before a draft. All tokens after it must be in the loss
        mask, as in a drafted reply. Labels are the text or the target's distribution.

        In joint training gradients flow through h_p. The loss is then λ times this mean plus (1 - λ) times the target's
        own loss with the same labels. If the target learns first, the loss is only the target's (λ = 0), with the text
        as label. After that the target is frozen (λ = 1) and is the teacher.
        """
        options, places, teacher = self.options, batch.places, None
        states = batch.hidden.to(self._dtype)
        if places is None:
            target_only = self.progress < options.first  # only the target learns
            if self.adapters is not None:
                self.adapters.requires_grad_(target_only or options.joint)
                states = self.adapted_states(batch.tokens)
            if target_only and self.training:
                target_loss, nothing = self._target_loss(batch, states, False), torch.zeros(RANKS, dtype=torch.long)
                return LossOutput(target_loss, [DepthLoss(torch.zeros(()), nothing, 0)] * self.depth)
            teacher_states = states if options.first else batch.hidden.to(self._dtype)
            places = batch.read_places(self.depth, states, teacher_states)
            teacher = self.adapted_head if options.first else self.target.head
        indices, valid = places.following(self.depth)
        anchors = valid[:, 0].nonzero().flatten()
        if options.share < 1:
            chosen = torch.rand(len(anchors), generator=batch.generator) < options.share
            anchors = anchors[chosen.to(anchors.device)]
        indices, valid = indices[anchors], valid[anchors].cumprod(1).bool()
        shared, ids, columns = self.candidates(places.labels)
        far, state = _linear(places.states[anchors].to(self._dtype), self.far), self._initial_state(len(anchors))
        guesses, tokens = [], places.roots[anchors]
        for depth in range(self.depth):
            state, x = self._read(tokens, far, state, depth)
            head, label = partial(self._head, shared=shared, columns=columns), valid[:, depth]
            guesses.append(Guess(x[label], head, indices[label, depth]))
            tokens = places.roots[indices[:, depth]]
        losses = cross_entropies(guesses, places.labels, teacher if batch.distill else None, ids)
        # The sum of no states is zero and has a gradient: a batch may have no token in its mask.
        total = sum((depth_loss.loss for depth_loss in losses), start=0.0 * far.sum())
        loss = total / max(sum(depth_loss.count for depth_loss in losses), 1)
        if options.joint:
            loss = options.balance * loss + (1 - options.balance) * self._target_loss(batch, states, batch.distill)
        return LossOutput(loss, losses)

    @property
    def uses_readings(self) -> bool:
        """Whether training uses saved outputs of the target. If the target also learns, its outputs change."""
        return not (self.options.joint or self.options.first)

    def _target_loss(self, batch: Batch, states: torch.Tensor, distill: bool) -> torch.Tensor:
        """Return the mean loss of the target's own predictions from `states`, computed with adapters.

        With `distill` the labels are the distributions of the target without adapters.
        """
        counted = batch.loss_mask[:, 1:]
        label = batch.hidden[:, :-1][counted].to(self._dtype) if distill else batch.tokens[:, 1:][counted]
        teacher = self.target.head if distill else None
        loss_sum = cross_entropy(states[:, :-1][counted], self.adapted_head, label, teacher)
        return loss_sum.loss / max(loss_sum.count, 1)

    # -- weights ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the saved tensors: the drafter's matrices with their changes."""
        tensors = {name: tensor for name, tensor in super().tensors().items() if ".changes." not in name}
        for name, module in self.named_modules():
            if isinstance(module, Change):
                layer, matrix = name.split(".changes.")
                tensors[f"{layer}.{matrix}"] = tensors[f"{layer}.{matrix}"] + module.product().detach()
        return tensors


def _change(layer: nn.Module, matrix: str) -> Change | None:
    """Return the low-rank change of a layer's matrix; None if the matrix itself is trained."""
    changes = getattr(layer, "changes", None)
    change = changes[matrix] if isinstance(changes, nn.ModuleDict) else None
    assert change is None or isinstance(change, Change)
    return change


def _linear(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """Apply a layer with fp32 weights in the precision of x."""
    y = F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))
    change = _change(layer, "weight")
    return y if change is None else y + change(x)


def _cell(
    x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, layer: nn.LSTMCell
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = []
    for matrix, weight in (("weight_ih", layer.weight_ih), ("weight_hh", layer.weight_hh)):
        change = _change(layer, matrix)
        weights.append(weight if change is None else weight + change.product())
    return torch.lstm_cell(x, (hidden, cell), *(part.to(x.dtype) for part in (*weights, layer.bias_ih, layer.bias_hh)))
