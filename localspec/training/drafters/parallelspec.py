"""Trains ParallelSpec drafters, which predict several tokens at once from mask tokens (§4)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from localspec.drafters.parallelspec import Drafter, ParallelSpecOptions, layers_of
from localspec.models.drafter_cards import RANKS
from localspec.models.small_model import impossible_ids
from localspec.nn.losses import DepthLoss, Guess, Head, cross_entropies
from localspec.nn.small_model import copied_layers, from_config, read_masked, rotary_embedding
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer
from localspec.training.trainable import Batch, GradientWork, LossOutput, TrainableDrafter

ROWS = 2048  # of one text in training, masks included; or twice the text's
MIN_GROUP_SHARE = 0.2  # of the groups that have a mask, however deep it is (PARD)
FEATURE_WEIGHT, TOKEN_WEIGHT = 1.0, 0.1  # of the two parts of EAGLE's loss


@dataclass(frozen=True)
class Group:
    """The rows that the drafter computes for one training text: a row for each token, and masks after some of them.

    A token that has masks is an anchor. `anchor` [rows] is the position of a row's token, or of its anchor. `depth`
    [rows] is 0 for a token, and d for the anchor's d-th mask, whose position is anchor + d (figure 3).
    """

    anchor: torch.Tensor
    depth: torch.Tensor

    @property
    def positions(self) -> torch.Tensor:
        return self.anchor + self.depth

    @property
    def mask(self) -> torch.Tensor:
        """The attention mask, bool [rows, rows]. A row sees the text up to its anchor, and the anchor's masks up to
        itself."""
        real, same = self.depth == 0, self.anchor[:, None] == self.anchor
        return torch.where(real, self.anchor[:, None] >= self.anchor, same & (self.depth[:, None] >= self.depth))


class Correction(nn.Module):
    """A correction of a mask's hidden state s, once the token at its position is known: s + B SiLU(N e + b + F s).

    e is that token's embedding. B starts at zero, so that nothing is corrected.
    """

    def __init__(self, width: int, rank: int, device: str) -> None:
        super().__init__()
        with torch.device(device):
            self.near, self.far = nn.Linear(width, rank), nn.Linear(width, rank, bias=False)
            self.out = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, embeddings: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return states [rows, hidden_size], corrected by the embeddings [rows, hidden_size] of the known tokens."""
        x = F.rms_norm(embeddings.to(states.dtype), states.shape[-1:])
        changed: torch.Tensor = self.out(F.silu(self.near(x) + self.far(states)))
        return states + changed


class Trainable(TrainableDrafter):
    """A ParallelSpec drafter in training: layers, their final norm, and the embeddings of mask tokens.

    The form 'eagle' also has a matrix that joins the target's hidden states with embeddings. The target's embedding and
    head are shared and do not change, but the form 'model' trains its own.
    """

    Drafter = Drafter
    options: ParallelSpecOptions
    never: torch.Tensor  # bool [vocab_size]: tokens that the form 'model' must not propose

    def __init__(self, target: Target, options: ParallelSpecOptions) -> None:
        """Build the drafter. Raises the errors of reading the small language model of the form 'model'."""
        super().__init__(target, options)
        shape, device = target.transformer.config, target.device
        options = self.options = replace(options, vocabulary=options.tokens(shape.vocab_size))
        self.draft_from(options.vocabulary)
        if options.form != "model":
            layers_config = layers_of(shape, options)
            begun = {"last": shape.attending[-options.layers :], "first": shape.attending[: options.layers]}
            weights = copied_layers(target.transformer, layers_config, begun.get(options.begin, ()))
            self.model = Transformer(layers_config, target.transformer.rotary, weights)
            self.model.norm.data = target.transformer.norm.detach().float().clone()  # for the head that it feeds
            masks = torch.randn(options.masks, shape.hidden_size, device=device)
            self.masks = nn.Parameter(
                masks * target.transformer.scaled(target.transformer.embed_tokens.detach().float().std())
            )
            if options.form == "eagle":
                self.joined = nn.Linear(2 * shape.hidden_size, shape.hidden_size, device=device)
            if options.rank:
                self.correction = Correction(shape.hidden_size, options.rank, device)
        else:
            if options.config:
                self.model, token = from_config(options.config, target)
                never = torch.zeros(shape.vocab_size, dtype=torch.bool, device=device)
            else:
                small, token = read_masked(Path(options.model), target)
                self.model = small.transformer
                unknown = impossible_ids(small.tokenizer, token, target.tokenizer, target.vocab_size)
                never = torch.from_numpy(unknown).to(device)
                self.model.rotary = rotary_embedding(small.config, target)
                config = {**small.config.content, "tie_word_embeddings": self.model.config.tied}
                self.options = replace(options, model="", config=json.dumps(config, sort_keys=True))
            self.masks = nn.Parameter(self.model.scaled(self.model.embed_tokens.detach()[token : token + 1]).clone())
            self.register_buffer("never", never)
        self.model.requires_grad_(True)

    @property
    def depth(self) -> int:
        """The number of tokens of a draft."""
        return self.options.masks + 1

    def gradient_work(self, length: int) -> GradientWork:
        """Return the work that needs gradients: the drafter's own layers, over a text's tokens and masks."""
        return GradientWork(min(self.depth, max(ROWS / length, 2)), len(self.model.layers))

    @property
    def transformers(self) -> Sequence[Transformer]:
        """The drafter's own transformer, because no gradients flow through the target's layers."""
        return [self.model]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save. The target's embedding, and a head that equals the embedding, are left out."""
        shared = {"model.embedding"} if self.options.form != "model" else set()
        if self.model.config.tied:
            shared.add("model.head.weight")
        return {name: tensor for name, tensor in super().tensors().items() if name not in shared}

    def _embed(self, tokens: torch.Tensor, masks: torch.Tensor, features: torch.Tensor | None) -> torch.Tensor:
        """Return the input [1, n + m, hidden_size] from embeddings of n tokens and m masks, and the tokens' features.

        A token's feature is the target's hidden state one position earlier; masks have zeros (eq. 5). `masks` [m,
        hidden_size] are embeddings, and `features` are [n, hidden_size].
        """
        if self.options.form == "model":
            largest = len(self.model.embed_tokens) - 1
            real = self.model.embed(tokens.clamp(max=largest))  # ids that no tokenizer gives
        else:
            real = self.target.embed(tokens)
        x = torch.cat([real.to(masks.dtype), masks])
        if features is not None:
            padded = F.pad(features.to(masks.dtype), (0, 0, 0, len(masks)))
            x = self.joined(torch.cat([padded, x], -1))
        return x[None]

    def _masks(self) -> torch.Tensor:
        """Return the masks' embeddings [k, hidden_size]. In a small language model, all masks have the same one."""
        return self.masks.expand(self.options.masks, -1)

    def _head(self, states: torch.Tensor, shared: Head | None = None) -> torch.Tensor:
        """Return logits for hidden states [rows, hidden_size], for the ids that both the drafter and the target have.

        `shared` is the target's head, or a part of it for some tokens.
        """
        if self.options.form != "model":
            return (shared or self.shared)(states.to(self.target.transformer.computes_in))
        logits: torch.Tensor = self.model.head(states)
        return logits[:, : self.target.transformer.config.vocab_size]

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, the target's vocab_size], with -inf for tokens that must not be drafted."""
        logits = self._head(states)
        if self.options.form != "model":
            return logits
        return F.pad(logits, (0, len(self.never) - logits.shape[1])).masked_fill(self.never, float("-inf"))

    def loss(self, batch: Batch) -> LossOutput:
        """Return the loss of eq. 3: each token of the text, and each mask, predicts the token after its position.

        The losses at depth d are averaged and weighted by λᵈ, the option `decay`. The paper has no λ, which is decay =
        1. In the form 'eagle', a row's loss is 1.0 SmoothL1(feature) + 0.1 cross-entropy (eq. 4, with weights of
        EAGLE).
        """
        states: list[list[torch.Tensor]] = [[] for _ in range(self.depth)]
        places: list[list[torch.Tensor]] = [[] for _ in range(self.depth)]  # of those states in all texts, end to end
        n = batch.tokens.shape[1]
        for text, loss_mask in enumerate(batch.loss_mask):
            end = int(loss_mask.nonzero().max()) + 1 if loss_mask.any() else 0
            if end < 2:
                continue
            group = self.group(loss_mask[:end], batch.generator)
            of_text, positions = self.states(batch.tokens[text, :end], batch.hidden[text, :end], group), group.positions
            of_text = self._corrected(of_text, group, batch.tokens[text])
            has_label = (positions + 1 < end) & loss_mask[(positions + 1).clamp(max=end - 1)]
            for depth in range(self.depth):
                rows = has_label & (group.depth == depth)
                states[depth].append(of_text[rows])
                places[depth].append(text * n + positions[rows])
        total = self.masks.sum() * 0  # a batch without a label must have a gradient, too
        if not states[0]:
            return LossOutput(total, [DepthLoss(total, torch.zeros(RANKS, dtype=torch.long), 0)] * self.depth)
        guesses = [
            Guess(torch.cat(parts), self._head, torch.cat(labels)) for parts, labels in zip(states, places, strict=True)
        ]
        depth_losses = self._depth_losses(guesses, batch)
        for depth, (guess, depth_loss) in enumerate(zip(guesses, depth_losses, strict=True)):
            loss = depth_loss.loss / max(depth_loss.count, 1)
            if self.options.form == "eagle" and depth_loss.count:
                features = batch.hidden.flatten(0, 1)[guess.labels].float()
                loss = TOKEN_WEIGHT * loss + FEATURE_WEIGHT * F.smooth_l1_loss(guess.states.float(), features)
            total = total + self.options.decay**depth * loss
        return LossOutput(total, depth_losses)

    def _corrected(self, states: torch.Tensor, group: Group, tokens: torch.Tensor) -> torch.Tensor:
        """Return states [rows, hidden_size], where masks' states are corrected by the text's tokens at their
        positions."""
        if not self.options.rank:
            return states
        real = int((group.depth == 0).sum())
        embedded = self.target.embed(tokens[group.positions[real:].clamp(max=len(tokens) - 1)])
        return torch.cat([states[:real], self.correction(embedded, states[real:])])

    @property
    def uses_readings(self) -> bool:
        """Whether saved outputs of the target are enough for training. The form 'eagle' needs states of whole texts."""
        return self.options.form != "eagle"

    def _depth_losses(self, guesses: Sequence[Guess], batch: Batch) -> list[DepthLoss]:
        """Return the loss at each depth. The labels in `guesses` are positions, counted through all texts."""
        vocab_size = self.model.config.vocab_size  # 0 if the head is the target's
        truncated = 0 < vocab_size < self.target.transformer.config.vocab_size
        ids = torch.arange(vocab_size, device=batch.tokens.device) if truncated else self.kept
        if batch.places is None:
            labels = batch.hidden if batch.distill else batch.tokens.roll(-1, 1)  # of each place, what follows it
            return cross_entropies(guesses, labels.flatten(0, 1), self.target.head if batch.distill else None, ids)
        head: Head = self._head
        if not vocab_size:
            shared, ids, _ = self.candidates(batch.places.labels)
            head = partial(self._head, shared=shared)
        reading = F.pad(batch.loss_mask[:, 1:], (0, 1)).flatten().cumsum(0) - 1  # of each place in the loss
        guesses = [Guess(guess.states, head, reading[guess.labels]) for guess in guesses]
        return cross_entropies(guesses, batch.places.labels, None, ids)

    def group(self, loss_mask: torch.Tensor, generator: torch.Generator) -> Group:
        """Return the rows for a text with this loss_mask [n]: its tokens, and masks after random anchors.

        There are at most about max(ROWS, 2 n) rows. An anchor's mask d needs all masks before it, and a token in the
        text that it can predict.
        """
        n, device = len(loss_mask), loss_mask.device
        anchors = loss_mask[2:].nonzero()[:, 0]
        shares = [max((1 - self.options.drop) ** depth, MIN_GROUP_SHARE) for depth in range(1, self.depth)]
        room = (max(ROWS, 2 * n) - n) / sum(shares)
        shuffled = anchors[torch.randperm(len(anchors), generator=generator).to(device)]
        by_depth = [shuffled[: round(min(len(shuffled), room) * share)] for share in shares]
        by_depth = [some[some + depth + 1 < n] for depth, some in enumerate(by_depth, start=1)]
        depths = [torch.full_like(some, depth) for depth, some in enumerate(by_depth, start=1)]
        real = torch.arange(n, device=device)
        return Group(torch.cat([real, *by_depth]), torch.cat([torch.zeros_like(real), *depths]))

    def states(self, tokens: torch.Tensor, hidden: torch.Tensor, group: Group) -> torch.Tensor:
        """Return the drafter's hidden states [rows, hidden_size] of a text [n] and its masks. `hidden` is the
        target's."""
        features = F.pad(hidden[:-1], (0, 0, 1, 0)) if self.options.form == "eagle" else None
        masks = self._masks()[group.depth[len(tokens) :] - 1]
        states: torch.Tensor = self.model(self._embed(tokens, masks, features), group.positions, group.mask)[0]
        return states
