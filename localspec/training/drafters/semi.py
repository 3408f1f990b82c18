"""Trains semi-autoregressive drafters, a tiny model with a head, by themselves or together with the target model."""

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
    """The simplified transformer of eq. 6, a weighted mean over recent tokens: h_q = Σ α_l MLP(e_l) / Σ α_l.

    e_l are embeddings. The weights α in (0, 1) are learned. The state [rows, hidden_size / 2] is Σ α_l MLP(e_l).
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
        """Return the state after one more token, and h_q [rows, self.width].

        x [rows, hidden_size] is the embedding of the token that is `depth` positions after the text's last token.
        `state` [rows, self.state_size] is the state before this token.
        """
        alpha = self.free.sigmoid().to(x.dtype)
        x = F.silu(_linear(F.silu(_linear(x, self.inner)), self.outer))
        state = torch.addcmul(state, x, alpha[depth])
        return state, state / alpha[: depth + 1].sum()


class Recurrent(nn.Module):
    """The LSTM of eq. 7, with two layers. The state [rows, 2 hidden_size] is hidden state and cell of both layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width // 2
        self.state_size = 4 * self.width
        self.first, self.second = nn.LSTMCell(width, self.width), nn.LSTMCell(self.width, self.width)

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the state after one more token, and h_q [rows, self.width], as `Averaged.forward` does."""
        below, below_cell, above, above_cell = state.chunk(4, -1)
        below, below_cell = _cell(x, below, below_cell, self.first)
        above, above_cell = _cell(below, above, above_cell, self.second)
        return torch.cat([below, below_cell, above, above_cell], -1), above


class Last(nn.Module):
    """The tiny model "none", which has no layers (§6.1): only the embedding of the last token. Its state is empty."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width, self.state_size = width, 0

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the empty state, and the embeddings x [rows, hidden_size] unchanged."""
        return state, x


RECENT_MODELS: dict[str, type[Averaged] | type[Recurrent] | type[Last]] = {
    "transformer": Averaged,
    "lstm": Recurrent,
    "none": Last,
}


class Change(nn.Module):
    """A trained low-rank change (up · down) of a matrix [out, in], which itself stays as it is. It starts at zero."""

    def __init__(self, weight: torch.Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        rank = min(rank, outputs, inputs)
        self.down = nn.Parameter(torch.randn(rank, inputs, device=weight.device) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the change adds to a layer's output [rows, out], for the input x [rows, in]."""
        return F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))

    def product(self) -> torch.Tensor:
        """Return the change as a matrix [out, in]."""
        return self.up @ self.down


def learn_by_rank(module: nn.Module, rank: int) -> None:
    """Freeze all matrices in a module, and train low-rank changes of them instead.

    Each layer gets them as an attribute `changes`.
    """
    for layer in [child for child in module.modules() if isinstance(child, nn.Linear | nn.LSTMCell)]:
        matrices = {name: matrix for name, matrix in layer.named_parameters() if matrix.ndim == 2}
        for matrix in matrices.values():
            matrix.requires_grad_(False)
        layer.changes = nn.ModuleDict({name: Change(matrix, rank) for name, matrix in matrices.items()})


class Trainable(TrainableDrafter):
    """A semi-autoregressive drafter in training: the tiny model, and the layers that compute logits from its output.

    These layers also read the target's hidden state. By default the target is left unchanged, or is trained on the text
    first. Joint training trains both at once: `loss` then runs the target with `adapters`, which are merged at the end.
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
        """Return the work that needs gradients: one row per depth, through the tiny model only.

        A row keeps at most 16 vectors for the backward pass: an LSTM needs that many, for its gates and the states of
        its two layers.
        """
        return GradientWork(float(self.depth), vectors=16)

    # -- the model ----------------------------------------------------------------------------------------------------

    def _initial_state(self, rows: int) -> torch.Tensor:
        """Return the tiny model's state [rows, state_size] before the first token."""
        return torch.zeros((rows, self.recent.state_size), dtype=self._dtype, device=self.target.device)

    def _read(
        self, tokens: torch.Tensor, far: torch.Tensor, state: torch.Tensor, depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the tiny model on one more token [rows], `depth` positions after the root, which is the text's last
        token.

        `far` [rows or 1, wide] is W_p h_p, computed from the target's hidden state. Return the new state of the tiny
        model, and the head's input σ([W_p h_p, W_q h_q] + b) [rows, 2 wide].
        """
        # Normalised, because with embeddings as small as those of many targets the tiny model would learn very slowly.
        x = F.rms_norm(self.target.embed(tokens).to(self._dtype), (self.target.transformer.config.hidden_size,))
        state, recent = self.recent(x, state, depth)
        near = _linear(recent, self.near)
        return state, F.silu(torch.cat([far.expand_as(near), near], -1))

    def _head(
        self, x: torch.Tensor, shared: Callable[..., torch.Tensor] | None = None, columns: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return logits [rows, draft vocabulary] for x [rows, 2 wide], or only those in `columns`.

        With `columns`, the function `shared` computes the target's logits for these tokens only.
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

        w_{i+1} plays the part of the text's last token, after which a draft begins. The tokens after it must be in the
        loss mask, as in a reply. Labels are the text's tokens or the target's probabilities.

        In joint training, gradients flow through h_p, and the loss is λ times this mean plus (1 - λ) times the target's
        own loss with the same labels. If the target learns first, λ is 0 at first, and the labels are the text's
        tokens. After that the target is frozen, teaches the drafter, and λ is 1.
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
        """Whether training uses saved outputs of the target. If the target is trained, too, its outputs change."""
        return not (self.options.joint or self.options.first)

    def _target_loss(self, batch: Batch, states: torch.Tensor, distill: bool) -> torch.Tensor:
        """Return the mean loss of the target's own predictions. `states` are its hidden states, computed with adapters.

        With `distill`, the labels are the probabilities of the target without adapters.
        """
        counted = batch.loss_mask[:, 1:]
        label = batch.hidden[:, :-1][counted].to(self._dtype) if distill else batch.tokens[:, 1:][counted]
        teacher = self.target.head if distill else None
        loss_sum = cross_entropy(states[:, :-1][counted], self.adapted_head, label, teacher)
        return loss_sum.loss / max(loss_sum.count, 1)

    # -- weights ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save: the drafter's matrices with their low-rank changes added."""
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
    """Apply a linear layer with fp32 weights, and its low-rank change if it has one, in the precision of x."""
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
