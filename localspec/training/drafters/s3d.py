"""Trains S3D drafters (S3D, §4 and §5.3), in which some of the target's layers draft several tokens from mask tokens.

A mask token and adapters are trained. The full form trains the layers themselves, which changes the target.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from localspec.choosing import drafters
from localspec.decoding.drafter import Context
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.layers import probe
from localspec.drafters.s3d import Drafter, S3DOptions
from localspec.drafters.trained import draft_vocabulary
from localspec.engine.assemble import greedy_replies
from localspec.engine.backends import Target as DecodingTarget
from localspec.errors import UsageMistake
from localspec.models.drafter_cards import DrafterCard
from localspec.models.s3d_prediction import (
    MeasuredAcceptance,
    MeasuredLayers,
    Proposal,
    Timing,
    compared,
    fit,
    propose,
    share,
    symmetric,
)
from localspec.models.shape import Shape
from localspec.nn.adapters import Adapters
from localspec.nn.cache import TextPrefix
from localspec.nn.losses import cross_entropy
from localspec.nn.target import Target
from localspec.quantities import counted
from localspec.training.trainable import (
    PROBE_SECONDS,
    Batch,
    GradientWork,
    LossOutput,
    Proposed,
    TrainableDrafter,
)

SHARES = (0.25, 0.5, 0.75)  # of the layers
RUNS = 5
CONTEXT, ROWS = 256, (2, 4, 8, 16)  # tokens before the tree, and rows of it: those that the decoder chooses among


def timings(target: DecodingTarget, forms: Sequence[S3DOptions] = (), rows: int = ROWS[-1]) -> list[Timing]:
    """Return measured times for each of `forms`: of a draft, of a forward pass over `rows` rows, and of a single row.

    A form says which layers draft. Without `forms`, a quarter, half and three quarters of the layers are timed. The
    target is loaded as for replies. Text and trained weights are zeros, because their values do not affect the times.
    """
    layers, room = target.compute.target.sizes.num_layers, min(CONTEXT, max(1, target.context - rows))
    cache, head = target.cache(room + rows), head_weight(target)
    cache.assume(room)
    context = Context([0] * (room + 1), cache, rows - 1, Sampling())

    def forward(count: int) -> float:
        tree = DraftTree.chain([0] * count)

        def run() -> list[int]:
            return target.forward(tree, cache).logits.argmax()  # which waits for the device

        return _seconds(run)

    def draft(form: S3DOptions) -> float:
        specs = Drafter.tensor_specs(target, form)
        untrained = Drafter(target, form, {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()})
        return _seconds(lambda: untrained.draft(context))

    counts = sorted({max(1, round(layers * part)) for part in SHARES})
    forms = forms or [S3DOptions(kept=",".join(map(str, symmetric(layers, count)))) for count in counts]
    plain, verify = forward(1), forward(rows)
    return [Timing(share(layers, len(form.layers(layers)), head), draft(form), verify, plain) for form in forms]


def head_weight(target: DecodingTarget) -> float:
    """Return the number of weights in the target's head, divided by the number in one layer."""
    shape = Shape.of(target.config.content)
    assert shape is not None
    return shape.embedding / shape.layer


def _seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of a few runs. The first run does not count, because it includes preparation."""
    times = []
    for _ in range(RUNS + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return median(times[1:])


LAYERS_LR_SCALE = 0.03  # of the usual 1e-3, the learning rate of the target's own layers: the paper's 3e-5
SHARE = 0.15  # of a text: the positions that are anchors (appendix A masks this share of tokens)
BECOMING_LR_SCALE = 0.25  # the learning rate of adapters that become part of layers in few bits: Medusa-2's (§4.0.1)
OWN = 1.0  # weight of the target's own prediction in the full form's loss


def _verified(levels: Sequence[Sequence[float]], nodes: int) -> float:
    """Return the expected tokens per decode step with the best draft tree of `nodes` tokens.

    `levels` [depth][rank] has the probability that a candidate is right.
    """
    return drafters.Acceptance.tree(levels, nodes, "").length(nodes)


def _listed(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))


class Trainable(TrainableDrafter):
    """An S3D drafter in training: a mask token, and adapters of the layers that draft.

    The full form trains these layers themselves, which changes the target. If they are packed in few bits, it trains
    adapters that are always active, and merges them into the layers at the end.
    """

    Drafter = Drafter
    PROBES = True
    options: S3DOptions

    def __init__(self, target: Target, options: S3DOptions) -> None:
        """Build the drafter. Raises UsageMistake for layers that the target does not have."""
        super().__init__(target, options)
        transformer = target.transformer
        transformer.config.need_layers_alone("s3d")
        self.kept_layers = options.layers(len(transformer.layers))
        vocabulary = draft_vocabulary(options.vocabulary, transformer.config.vocab_size)
        self.options = replace(options, vocabulary=vocabulary)
        self.draft_from(vocabulary)
        self.mask = nn.Parameter(transformer.scaled(transformer.embed_tokens.detach().mean(0, dtype=torch.float32)))
        if options.which != "none":
            self.adapters = Adapters(transformer, self.kept_layers, options.rank, options.alpha, options.which)
        elif options.full and transformer.packed:
            self.adapters = Adapters(transformer, self.kept_layers, options.rank, options.alpha)
        self.layers = nn.ModuleList()
        if options.full and not transformer.packed:
            # They are trained and part of a training's checkpoints, but saved with the target.
            self.layers = nn.ModuleList(transformer.layers[layer] for layer in self.kept_layers)
            if self._trainable:
                self.layers.requires_grad_(True)

    @property
    def changes_target(self) -> bool:
        """Whether training changes the target; only the full form does."""
        return self.options.full

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trained weights: the drafter's, and the target's layers at a low learning rate (appendix A).

        Adapters that will be merged into packed layers also have a low rate.
        """
        layers = list(self.layers.parameters())
        becoming = list(self.adapters.parameters()) if self.adapters and self.options.which == "none" else []
        target_ids = {id(parameter) for parameter in (*layers, *becoming)}
        drafter = [parameter for parameter in self.parameters() if id(parameter) not in target_ids]
        groups = ((drafter, 1.0), (layers, LAYERS_LR_SCALE), (becoming, BECOMING_LR_SCALE))
        return [{"params": some, "lr_scale": scale} for some, scale in groups if some]

    @property
    def beta(self) -> float:
        """β: the share of the target's weights that a draft reads."""
        return share(len(self.target.transformer.layers), len(self.kept_layers), head_weight(self.target))

    def reads_states(self, distill: bool) -> bool:
        """Return whether the loss reads the target's final hidden states: only with `distill`, for the labels."""
        return distill

    @property
    def gradient_share(self) -> float:
        """The share of the target's weights through which gradients flow: about half.

        In the full form it is 1, because the target also reads the text with gradients.
        """
        return 1.0 if self.changes_target else 0.5

    def gradient_work(self, length: int) -> GradientWork:
        """Return the work that needs gradients: the drafting layers, over some tokens of a text and their masks."""
        return GradientWork(SHARE * self.depth, len(self.kept_layers))

    @property
    def reads_layers(self) -> Sequence[int]:
        """The layers that draft. It is empty in the full form, where `loss` itself runs the target, with gradients."""
        return () if self.changes_target else self.kept_layers

    def loss(self, batch: Batch) -> LossOutput:
        """Return the loss of eq. 9 over groups of an anchor (a token of the text) and `depth` - 1 masks after it.

        In the full form, gradients also flow through the text's keys and values. The loss then includes the target's
        own prediction of the text, so that the target does not become worse. Raises UsageMistake for the full form in
        fp16, which is too coarse for small changes.
        """
        if len(self.layers) and not self._trainable:
            raise UsageMistake(
                "The full form of s3d trains the target's own weights, which cannot learn in fp16; use --dtype "
                "bf16 or fp32, or leave -O full out."
            )
        target_loss, prefix = None, batch.prefix
        if self.changes_target:
            target_loss, prefix = self._target_loss(batch)
        anchors, real = self._anchors(batch.loss_mask, batch.generator)
        states = self._groups(batch.tokens, anchors, prefix)
        teacher, depth_losses = self.target.head if batch.distill else None, []
        reached, chains = real, []  # drafts that were right so far
        text = torch.arange(len(anchors), device=anchors.device)[:, None]
        for depth in range(self.depth):
            label = anchors + depth + 1
            inside = label < batch.tokens.shape[1]
            label = label.where(inside, 0)
            has_label = real & inside & batch.loss_mask[text, label]
            texts, positions = text.expand_as(label)[has_label], label[has_label]
            right = batch.hidden[texts, positions - 1] if batch.distill else batch.tokens[texts, positions]
            depth_losses.append(cross_entropy(states[has_label][:, depth], self.shared, right, teacher, self.kept))
            judged, reached = reached & has_label, torch.zeros_like(real)
            reached[has_label] = depth_losses[-1].first
            reached &= judged
            chains.append(torch.stack([reached.sum(), judged.sum()]))
        count = sum(depth_loss.count for depth_loss in depth_losses)
        loss = torch.stack([depth_loss.loss for depth_loss in depth_losses]).sum() / max(count, 1)
        if not count:  # no label in this batch, but several processes must agree on which tensors have a gradient
            loss = loss + sum(parameter.sum() * 0 for parameter in self.parameters())
        if target_loss is not None:
            loss = loss + OWN * target_loss
        return LossOutput(loss, depth_losses, torch.stack(chains))

    def _target_loss(self, batch: Batch) -> tuple[torch.Tensor, TextPrefix]:
        """Run the target over the texts with gradients. Return the mean loss of its predictions, its keys and values.

        With adapters, the labels can be the probabilities of the target without them.
        """
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        causal, prefix = positions[:, None] >= positions, TextPrefix(self.kept_layers)
        states = self.target.transformer(batch.tokens, positions, causal, prefix, adapters=self.adapters or {})
        counted = batch.loss_mask[:, 1:]
        soft = batch.distill and self.adapters is not None
        label, teacher = (batch.hidden[:, :-1], self.target.head) if soft else (batch.tokens[:, 1:], None)
        loss_sum = cross_entropy(states[:, :-1][counted], self.target.head, label[counted], teacher)
        return loss_sum.loss / max(loss_sum.count, 1), prefix.closed()

    def _anchors(self, loss_mask: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random positions [texts, anchors] at which groups begin, and bool [texts, anchors], False for padding.

        The token after an anchor is in the loss_mask [texts, n].
        """
        chosen = []
        for possible in (mask[1:].nonzero().flatten() for mask in loss_mask):
            order = possible[torch.randperm(len(possible), generator=generator).to(possible.device)]
            chosen.append(order[: max(1, round(SHARE * len(order)))].sort().values)
        count = torch.tensor([len(positions) for positions in chosen], device=loss_mask.device)
        anchors = pad_sequence(chosen, batch_first=True)
        return anchors, torch.arange(anchors.shape[1], device=loss_mask.device) < count[:, None]

    def _groups(self, tokens: torch.Tensor, anchors: torch.Tensor, text: TextPrefix | None = None) -> torch.Tensor:
        """Return the hidden states [texts, anchors, depth, hidden_size] of all groups, computed in a single pass.

        A row sees the text before its anchor, with the target's own keys and values (eq. 6), and its group up to
        itself:

            text  a b c d e      group of b  b M M      b sees a, b     the first M a, b, M     and so on
        """
        texts, count = anchors.shape
        offset = torch.arange(self.depth, device=tokens.device)
        group = torch.arange(count, device=tokens.device).repeat_interleave(self.depth)
        positions = (anchors[..., None] + offset).flatten(1)
        in_text = torch.arange(tokens.shape[1], device=tokens.device) < anchors[:, group, None]
        in_group = (group[:, None] == group) & (offset.repeat(count)[:, None] >= offset.repeat(count))
        roots = self.target.embed(tokens.gather(1, anchors))
        masks = self.mask.expand(texts, count, self.depth - 1, -1)
        states: torch.Tensor = self.target.transformer(
            torch.cat([roots[:, :, None].to(masks.dtype), masks], 2).flatten(1, 2),
            positions,
            torch.cat([in_text, in_group.expand(texts, -1, -1)], 2),
            text or self._read(tokens),
            self.kept_layers,
            self.adapters or {},
        )
        return states.view(texts, count, self.depth, states.shape[-1])

    @torch.no_grad()
    def _read(self, tokens: torch.Tensor) -> TextPrefix:
        """Return the keys and values of texts [texts, n], computed by the target without adapters."""
        positions, prefix = torch.arange(tokens.shape[1], device=tokens.device), TextPrefix(self.kept_layers)
        layers = range(max(self.kept_layers) + 1)
        self.target.transformer(tokens, positions, positions[:, None] >= positions, prefix, layers)
        return prefix.closed()

    @property
    def _trainable(self) -> bool:
        return self.target.dtype in (torch.float32, torch.bfloat16)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save: adapters by peft's names, mask token, draft vocabulary; no layers of the
        target."""
        adapters = self.adapters if self.options.which != "none" else None
        vocabulary = {} if self.kept is None else {"kept": self.kept}
        return {**(adapters.tensors() if adapters else {}), "mask": self.mask.detach(), **vocabulary}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load tensors that `tensors()` returned. Raises the errors of `check_tensors`."""
        self.check_tensors(tensors)
        self.mask.copy_(tensors["mask"])
        if self.kept is not None:
            self.kept.copy_(tensors["kept"])
            self.copy_head_rows()
        if self.adapters and self.options.which != "none":
            self.adapters.load_tensors(tensors)

    @classmethod
    def propose(
        cls,
        target: Target,
        previous: Sequence[DrafterCard] = (),
        decoding: Callable[[], DecodingTarget] | None = None,
        seconds: float = PROBE_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Proposed | None:
        """Return the options that should be fastest on this machine (§5.3), and a sentence that explains them.

        For each number of layers, a probe measures which layers to keep, and how often their drafts are right. The
        acceptance of a draft's later tokens is fitted to earlier drafters of this model, or taken from the paper.
        Drafts and their verification are timed in the engine that decodes, for several numbers of layers and of
        verified rows. If no choice is expected to be faster than plain decoding, at most half of the layers are kept:
        keeping nearly all pays on no machine.
        """
        model = decoding() if decoding else target
        layers, head = len(target.transformer.layers), head_weight(target)
        measured = []
        for card in previous:
            with suppress(UsageMistake):  # an edited file, or one of another version
                layers_used = cls.Drafter.parse_options(card.options).layers(layers)
                if card.right_after_right:
                    measured.append(MeasuredAcceptance(share(layers, len(layers_used), head), card.right_after_right))
        timed = {rows: timings(model, rows=rows) for rows in ROWS}
        priced = {rows: fit(measured, times) for rows, times in timed.items()}
        replies = greedy_replies(model) if layers > 1 else []
        reads = max(1, int(seconds / max(timed[8][-1].verify, 1e-6)))
        probed: list[MeasuredLayers] = []
        if replies:
            probed = probe(model, replies, lambda share: progress(f"trying layers: {100 * share:.0f} %"), reads)

        def fastest(most: int) -> tuple[int, Proposal]:
            few = [subset for subset in probed if len(subset.layers) <= most] or probed[-1:]
            proposals = {
                rows: propose(layers, head, constants, few, partial(_verified, nodes=rows - 1) if few else None, most)
                for rows, constants in priced.items()
            }
            return max(proposals.items(), key=lambda item: item[1].speedup)

        rows, best = fastest(layers)
        rows, chosen = (rows, best) if best.speedup > 1 else fastest(max(1, layers // 2))
        listed, constants = _listed(chosen.layers), priced[rows]
        hopeless = "" if best.speedup > 1 else "No number of layers is expected to make replies faster here. "
        sentence = (
            f"{hopeless}Drafting {counted(chosen.gamma, 'token')} at a time with {len(chosen.layers)} of {layers} "
            f"layers ({listed}) and verifying {rows} rows should reach {chosen.speedup:.2f} times the speed of plain "
            "decoding. This follows from S3D's formula with "
            f"{'the acceptance measured before training' if replies else 'the acceptance that the paper expects'}, "
            f"a discount of {constants.discount:.2f} "
            f"{'as fitted to this model' if measured else 'as in the paper'}, "
            f"and δ = {constants.delta:.2f}, from drafts, their verification and plain steps as timed here in "
            f"{model.precision}."
        )
        return Proposed({"kept": listed, "depth": chosen.gamma}, sentence, best.speedup > 1)

    def outcome(
        self,
        right_after_right: Sequence[float],
        generated: float | None = None,
        decoding: Callable[[], DecodingTarget] | None = None,
    ) -> str:
        """Return a sentence that compares the measured acceptance and speedup with the paper's predictions."""
        if not right_after_right:
            return ""
        (timing,) = timings(decoding() if decoding else self.target, [self.options])
        return compared(fit([], [timing]), MeasuredAcceptance(self.beta, right_after_right), timing, generated)
