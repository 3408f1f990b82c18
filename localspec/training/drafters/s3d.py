"""Trains S3D's mask token and adapters, or in the full form the target's kept layers (S3D, §4 and §5.3)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from localspec.drafters.s3d import Drafter, S3DOptions
from localspec.errors import UsageMistake
from localspec.models.s3d_prediction import Acceptance, beside, fit, propose, share
from localspec.nn.adapters import Adapters
from localspec.nn.cache import FrozenPrefix
from localspec.nn.losses import cross_entropy
from localspec.nn.target import Target
from localspec.training.s3d_timing import head_weight, timings
from localspec.training.trainable import Batch, LossOutput, PreviousRun, TrainableDrafter

LAYERS_LR_SCALE = 0.03  # of the usual 1e-3, the learning rate of the target's own layers: the paper's 3e-5
SHARE = 0.15  # of a text: the positions that are anchors, and in the full form the tokens that are masked (appendix A)


def _first(accuracies: Sequence[Sequence[float]]) -> list[float]:
    """Returns how often the likeliest token was right, by depth: on held-out text this stands for acceptance."""
    return [level[0] for level in accuracies]


def _listed(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))


class Trainable(TrainableDrafter):
    """The mask token and the adapters; in the full form the target's kept layers, which makes another target."""

    Drafter, gradient_share = Drafter, 0.5
    options: S3DOptions

    def __init__(self, target: Target, options: S3DOptions) -> None:
        """Raises UsageMistake for layers that the target does not have."""
        super().__init__(target, options)
        transformer = target.transformer
        self.kept = options.layers(len(transformer.layers))
        self.mask = nn.Parameter(transformer.embed_tokens.detach().mean(0, dtype=torch.float32))
        if options.which != "none":
            self.adapters = Adapters(transformer, self.kept, options.rank, options.alpha, options.which)
        if options.full:
            # They are trained and part of a training's checkpoints, but saved with the target.
            self.layers = nn.ModuleList(transformer.layers[layer] for layer in self.kept)
            if self._trainable:
                self.layers.requires_grad_(True)

    @property
    def depth(self) -> int:
        return self.options.depth

    @property
    def changes_target(self) -> bool:
        """Whether its training changes the target: only the full form's does."""
        return self.options.full

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Returns the drafter's own group and the target's layers, which have a low learning rate (appendix A)."""
        layers = list(self.layers.parameters()) if self.options.full else []
        theirs = {id(parameter) for parameter in layers}
        own = [parameter for parameter in self.parameters() if id(parameter) not in theirs]
        return [{"params": own, "lr_scale": 1.0}, {"params": layers, "lr_scale": LAYERS_LR_SCALE}]

    @property
    def beta(self) -> float:
        """β: the share of the target's weights that a draft reads."""
        return share(len(self.target.transformer.layers), len(self.kept), head_weight(self.target))

    def loss(self, batch: Batch) -> LossOutput:
        """Returns the loss of eq. 9 over groups of an anchor and `depth` - 1 masks, which see only text before them.

        In the full form the masks replace 15 % of the text, which the rest of the text does not see either, and
        gradients reach the kept layers through keys and values too. Raises UsageMistake for the full form of a target
        that is not in fp32.
        """
        if self.changes_target and not self._trainable:
            raise UsageMistake(
                "The full form of s3d trains the target's own weights, and they are not in fp32; "
                "use --dtype fp32 --quantize none, or leave full out."
            )
        none = torch.zeros(0, self.target.transformer.config.hidden_size, device=self.target.device)
        states = [[none.to(self.target.transformer.computes_in)] for _ in range(self.depth)]
        labels: list[list[torch.Tensor]] = [[] for _ in range(self.depth)]
        for tokens, loss_mask, hidden in zip(batch.tokens, batch.loss_mask, batch.hidden, strict=True):
            end = int(loss_mask.nonzero().max()) + 1 if loss_mask.any() else 0
            anchors, masked = self._anchors(loss_mask[:end], batch.generator)
            if not len(anchors):
                continue
            predicted = self._groups(tokens[:end], anchors, masked)
            for place in range(self.depth):
                label = anchors + place + 1
                has_label = (label < end) & loss_mask[label.clamp_max(end - 1)]
                states[place].append(predicted[has_label, place])
                label = label[has_label]
                labels[place].append(hidden[label - 1] if batch.distill else tokens[label])
        head = self.target.head
        depth_losses = [
            cross_entropy(torch.cat(rows), head, torch.cat(right or rows), head if batch.distill else None)
            for rows, right in zip(states, labels, strict=True)
        ]
        count = sum(found.count for found in depth_losses)
        loss = torch.stack([found.loss for found in depth_losses]).sum() / max(count, 1)
        if not count:  # no label in this batch, and several processes must agree on what has a gradient
            loss = loss + sum(parameter.sum() * 0 for parameter in self.parameters())
        return LossOutput(loss, depth_losses)

    def _anchors(self, loss_mask: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns where groups begin, [anchors], and which tokens are masked, bool [n]: in the full form only.

        The token after an anchor is in the loss_mask [n].
        """
        possible, masked = loss_mask[1:].nonzero().flatten(), torch.zeros_like(loss_mask)
        order = possible[torch.randperm(len(possible), generator=generator).to(possible.device)]
        if not self.changes_target or self.depth == 1:
            return order[: max(1, round(SHARE * len(order)))].sort().values, masked
        count = max(1, round(SHARE * len(order) / (self.depth - 1)))
        found: list[int] = []
        free = [True] * (len(loss_mask) + self.depth)
        for anchor in order.tolist():
            if len(found) < count and all(free[anchor : anchor + self.depth]):
                free[anchor : anchor + self.depth] = [False] * self.depth
                masked[anchor + 1 : anchor + self.depth] = True
                found.append(anchor)
        return torch.tensor(sorted(found), dtype=torch.long, device=loss_mask.device), masked

    def _groups(self, tokens: torch.Tensor, anchors: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        """Returns states after the final norm [anchors, depth, hidden_size] of all groups of a text [n], in one pass.

        A row sees the text before its anchor, masked tokens excepted, and the rows of its own group up to itself:

            text  a b c d e      group of b  b M M      b sees a, b     the first M a, b, M     and so on
        """
        text, count = self._read(tokens, masked), len(anchors)
        place = torch.arange(self.depth, device=tokens.device)
        group = torch.arange(count, device=tokens.device).repeat_interleave(self.depth)
        positions = (anchors[:, None] + place).flatten()
        before = (torch.arange(len(tokens), device=tokens.device) < anchors[group, None]) & ~masked
        own = (group[:, None] == group) & (positions[:, None] >= positions)
        masks = self.mask.expand(count, self.depth - 1, -1)
        embeddings = torch.cat([self.target.embed(tokens[anchors])[:, None].to(masks.dtype), masks], 1)
        states: torch.Tensor = self.target.transformer(
            embeddings.view(1, len(group), -1),
            positions,
            torch.cat([before, own], 1),
            text,
            self.kept,
            self.adapters or {},
        )
        return states.view(count, self.depth, -1)

    def _read(self, tokens: torch.Tensor, masked: torch.Tensor) -> FrozenPrefix:
        """Returns keys and values of a text [n] as the target itself makes them, without adapters (eq. 6)."""
        count = len(tokens)
        positions = torch.arange(count, device=tokens.device)
        itself = torch.eye(count, dtype=torch.bool, device=tokens.device)
        mask = torch.ones_like(itself).tril_() & (~masked | itself)
        layers = range(max(self.kept) + 1)
        if self.changes_target:
            prefix = _TracedPrefix()
            self.target.transformer(tokens[None], positions, mask, prefix, layers)
            prefix.length = count
            return prefix
        cache = self.target.cache(count)
        with torch.no_grad():
            self.target.transformer(tokens[None], positions, mask, cache, layers)
        cache.keep(range(count))
        return cache.prefix()

    @property
    def _trainable(self) -> bool:
        transformer = self.target.transformer
        return not transformer.packed and self.target.dtype == torch.float32

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the adapters under peft's names, and the mask token; the full form's layers are in its target."""
        return {**(self.adapters.tensors() if self.adapters else {}), "mask": self.mask.detach()}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` gave. Raises LocalspecError where one is missing, superfluous or of another shape."""
        self.check_tensors(tensors)
        self.mask.copy_(tensors["mask"])
        if self.adapters:
            self.adapters.load_tensors(tensors)

    @classmethod
    def propose(cls, target: Target, previous: Sequence[PreviousRun] = ()) -> tuple[dict[str, Any], str] | None:
        """Returns the options that should be fastest on this machine (§5.3), and why, in a sentence.

        U and the discount are fitted to previous drafters of this model, else they are the paper's. What a draft and
        its verification cost is measured on this machine, with adapters, for some shares of the layers.
        """
        layers, head = len(target.transformer.layers), head_weight(target)
        costs = timings(target, lambda kept: cls(target, S3DOptions(kept=_listed(kept))).drafter())
        measured = []
        for one in previous:
            with suppress(UsageMistake):  # an edited file, or one of another version
                kept = cls.Drafter.parse_options(one.options).layers(layers)
                measured.append(Acceptance(share(layers, len(kept), head), _first(one.accuracies)))
        constants = fit(measured, costs)
        best = propose(layers, head, constants)
        listed = _listed(best.kept)
        return {"kept": listed, "depth": best.gamma}, (
            f"Drafting {best.gamma} tokens at a time with {len(best.kept)} of {layers} layers ({listed}) should make "
            f"{best.speedup:.2f} times the tokens a second of plain decoding: S3D's formula with "
            f"U = {constants.u:.3g} and a discount of {constants.discount:.2f} "
            f"{'as fitted to this model' if measured else 'as in the paper'}, "
            f"and δ = {constants.delta:.2f} as measured on this machine."
        )

    def outcome(self, accuracies: Sequence[Sequence[float]]) -> str:
        """Returns what the paper's constants predict, beside what was measured on held-out text."""
        (timing,) = timings(self.target, lambda _: self.drafter(), [len(self.kept)])
        return beside(fit([], [timing]), Acceptance(self.beta, _first(accuracies)), timing)


class _TracedPrefix(FrozenPrefix):
    """A text's keys and values, in place of a cache, through which gradients flow."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(0, 2, 0, 0, 0))
        self._read: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the text's keys and values where it is read; later the text's before those of the rows after it."""
        if self.length == 0:
            self._read[layer] = keys, values
            return keys, values
        read_keys, read_values = self._read[layer]
        return torch.cat([read_keys, keys], 1), torch.cat([read_values, values], 1)
