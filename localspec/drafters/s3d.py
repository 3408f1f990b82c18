"""S3D: the target drafts with its own outer layers and mask tokens, several tokens in one pass (S3D, §4)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from reprlib import repr as shortened
from typing import Any

import torch
from torch import nn

from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.s3d_timing import head_weight, timings
from localspec.drafters.trained import Batch, LossOutput, ParallelDrafter, PreviousRun
from localspec.errors import UsageMistake
from localspec.models.s3d_prediction import Acceptance, beside, fit, propose, share, symmetric
from localspec.nn.adapters import MOST_RANK, WHICH, Adapters
from localspec.nn.cache import FrozenPrefix, KVCache
from localspec.nn.losses import cross_entropy
from localspec.nn.target import Target

MAX_DEPTH = 64  # no tree has more nodes
LAYERS_LR_SCALE = 0.03  # of the usual 1e-3, the learning rate of the target's own layers: the paper's 3e-5
SHARE = 0.15  # of a text: the positions that are anchors, and in the full form the tokens that are masked (appendix A)


@dataclass(frozen=True)
class S3DOptions:
    """`depth` is the number of tokens of a draft (γ). Layers count from 0: `skip` is the first and the last layer that
    are skipped, as in "2-5"; `kept` lists the layers that are not, as in "0,1,6,7"; with neither the middle half is
    skipped.

    `adapters` act only while drafting: on "all" linear layers, on "vko" (values, keys, output; appendix B) or "none".
    `full` trains the kept layers themselves instead, which makes another target. Raises UsageMistake for impossible
    values.
    """

    depth: int = 4
    skip: str = ""
    kept: str = ""
    adapters: str = ""  # all, or in the full form none
    rank: int = 16
    alpha: float = 32.0
    full: bool = False

    def __post_init__(self) -> None:
        for name, fine, hint in (
            ("depth", 1 <= self.depth <= MAX_DEPTH, f"1 to {MAX_DEPTH}"),
            ("rank", 1 <= self.rank <= MOST_RANK, f"1 to {MOST_RANK}"),
            ("alpha", 0 < self.alpha < float("inf"), "a number above 0"),
            ("adapters", self.adapters in ("", "none", *WHICH), f"{', '.join(WHICH)} or none"),
            ("skip", not self.skip or len(_numbers(self.skip, "-")) == 2, "the first and the last layer, as in 2-5"),
            ("kept", not self.kept or _numbers(self.kept, ","), "layers in ascending order, as in 0,1,6,7"),
        ):
            if not fine:
                raise UsageMistake(f"{name} = {shortened(getattr(self, name))} of s3d is not possible; give {hint}.")
        if self.skip and self.kept:
            raise UsageMistake(f"skip = {self.skip!r} and kept = {self.kept!r} of s3d say the same; give one of them.")
        if self.full and self.adapters in WHICH:
            raise UsageMistake(
                f"adapters = {self.adapters!r} of s3d has no effect with full, which trains the layers themselves; "
                "give one of them."
            )

    @property
    def which(self) -> str:
        """What is adapted: "all", "vko" or "none"."""
        return self.adapters or ("none" if self.full else "all")

    def layers(self, count: int) -> tuple[int, ...]:
        """Returns the layers that draft, of `count`. Raises UsageMistake where one does not exist or none is left."""
        if not (self.skip or self.kept):
            return symmetric(count, max(1, count // 2))
        named = _numbers(self.skip, "-") or _numbers(self.kept, ",")
        kept = [layer for layer in range(count) if not named[0] <= layer <= named[1]] if self.skip else named
        if not kept or named[-1] >= count:
            given = f"skip = {self.skip!r}" if self.skip else f"kept = {self.kept!r}"
            raise UsageMistake(
                f"{given} of s3d does not fit this model, whose layers are 0 to {count - 1}; keep one of them or more."
            )
        return tuple(kept)


def _first(accuracies: Sequence[Sequence[float]]) -> list[float]:
    """Returns how often the likeliest token was right, by depth: on held-out text this stands for acceptance."""
    return [level[0] for level in accuracies]


def _listed(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))


def _numbers(text: str, between: str) -> list[int]:
    """Returns the numbers of a text where they ascend; an empty list where it says anything else."""
    parts = [part.strip() for part in text.split(between)]
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 5]
    rising = all(one <= two if between == "-" else one < two for one, two in pairwise(numbers))
    return numbers if rising and len(numbers) == len(parts) else []


class Drafter(ParallelDrafter):
    """Skippy simultaneous speculative decoding (S3D, §4, eqs. 5 to 8): the target drafts with part of its layers.

    The root and `depth` - 1 mask tokens [depth, hidden_size] go through the kept layers in one pass, whose row d gives
    logits [vocab_size] of the token d + 1 positions after the root. The rows see the text through the target's own
    cache. The mask token is an embedding and has no id.
    """

    kind, gradient_share = "s3d", 0.5
    Options = S3DOptions
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
    def nbytes(self) -> int:
        """Bytes that the drafter holds beside the target, whose layers are not counted."""
        return self.mask.nbytes + (self.adapters.nbytes if self.adapters else 0)

    @property
    def beta(self) -> float:
        """β: the share of the target's weights that a draft reads."""
        return share(len(self.target.transformer.layers), len(self.kept), head_weight(self.target))

    # -- drafting -----------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Calibrates the last draft."""
        self.calibrate(step)

    def rewind(self, length: int) -> None:
        """Forgets the last draft; the drafter holds no text."""
        self.forget_draft()

    def draft(self, context: Context) -> DraftTree:
        """Runs one pass of the kept layers (eqs. 5 to 8) and returns the likeliest tree of what its rows predict."""
        logits = self._predict(context)
        return DraftTree((context.root,), (-1,)) if logits is None else self.build_tree(context, logits)

    @torch.inference_mode()
    def _predict(self, context: Context) -> torch.Tensor | None:
        """Returns logits [rows, vocab_size] of the tokens after the root; None where none can be predicted.

        The rows are written to the cache after the committed tokens, and verification overwrites them.
        """
        target, cache = self.target, context.cache
        assert isinstance(cache, KVCache)  # the target's own: the draft is written into it
        rows = min(self.depth, context.nodes, target.context - len(context.committed))
        if rows < 1:
            return None
        cache.reserve(cache.length + rows)
        root = torch.tensor([context.root], device=target.device)
        embeddings = torch.cat([target.embed(root), self.mask.expand(rows - 1, -1)])
        positions = torch.arange(cache.length, cache.length + rows, device=target.device)
        causal = torch.ones(rows, rows, dtype=torch.bool, device=target.device).tril_()
        states = target.transformer(embeddings[None], positions, causal, cache, self.kept, self.adapters or {})
        logits = target.head(states[0])
        if logits.isfinite().all():
            return logits
        # A masked slot has the weight 0, but 0 times infinity is NaN and would reach the target.
        shape = target.transformer.config
        zeros = torch.zeros(shape.num_kv_heads, rows, shape.head_dim, device=target.device)
        for layer in self.kept:
            cache.write(layer, zeros, zeros)
        return None

    # -- training -----------------------------------------------------------------------------------------------------

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

    # -- files --------------------------------------------------------------------------------------------------------

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

    # -- before and after training ------------------------------------------------------------------------------------

    @classmethod
    def propose(cls, target: Target, previous: Sequence[PreviousRun] = ()) -> tuple[dict[str, Any], str] | None:
        """Returns the options that should be fastest on this machine (§5.3), and why, in a sentence.

        U and the discount are fitted to previous drafters of this model, else they are the paper's. What a draft and
        its verification cost is measured on this machine, with adapters, for some shares of the layers.
        """
        layers, head = len(target.transformer.layers), head_weight(target)
        costs = timings(target, lambda kept: cls(target, S3DOptions(kept=_listed(kept))))
        measured = []
        for one in previous:
            with suppress(UsageMistake):  # an edited file, or one of another version
                kept = cls.parse_options(one.options).layers(layers)
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
        (timing,) = timings(self.target, lambda _: self, [len(self.kept)])
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
