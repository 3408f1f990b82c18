"""ParallelSpec: one small transformer and k mask tokens foresee k + 1 tokens in a single forward.

Behind the root stand the masks; each row foresees the token one place behind it:

    rows        … a b root m1 m2        kept in the drafter's own cache: … a b root, never a mask
    foresees    … b root  +1 +2 +3
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import nn

from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.trained import Batch, LossOutput, ParallelDrafter
from localspec.errors import UsageMistake
from localspec.nn.cache import KVCache
from localspec.nn.losses import RANKS, DepthLoss, cross_entropy
from localspec.nn.small_model import described, fresh_weights, impossible, read_masked, rotary
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer
from localspec.policy.prediction import CHUNK

FORMS = ("medusa", "eagle", "model")
ROWS = 2048  # of one text in training, masks included, or twice the text
LEAST_KEPT = 0.2  # of the groups, however deep the mask (PARD)
FEATURE, TOKEN = 1.0, 0.1  # what the two parts of EAGLE's loss weigh
MODEL_MASKS = 7  # what published models of this form were trained with: groups of eight


@dataclass(frozen=True)
class ParallelSpecOptions:
    """`masks` is k; the group has one token more. `form` says what goes in: tokens as in Medusa's integration (eq. 3),
    the target's features and tokens as in EAGLE's (eq. 5), or tokens into a small language `model` of its own.

    `layers` are those of a drafter that is no model. Row d of a group weighs `decay`ᵈ in training (λ, eq. 3); a mask d
    is left out of a share 1 - (1 - `drop`)ᵈ of the groups (PARD's conditional drop). `model` is the directory that a
    small language model is read from once, and `config` what its config.json said. Raises UsageMistake for values that
    mean nothing.
    """

    masks: int = 4
    form: str = "medusa"
    layers: int = 1
    decay: float = 0.8
    drop: float = 0.0
    model: str = ""
    config: str = ""

    def __post_init__(self) -> None:
        for name, fine, hint in (
            ("masks", 1 <= self.masks <= 32, "1 to 32"),
            ("form", self.form in FORMS, f"one out of {', '.join(FORMS)}"),
            ("layers", 1 <= self.layers <= 8, "1 to 8"),
            ("decay", 0 < self.decay <= 1, "above 0 and at most 1"),
            ("drop", 0 <= self.drop < 1, "0 or more and below 1"),
        ):
            if not fine:
                raise UsageMistake(f"{name} = {getattr(self, name)!r} of parallelspec is not possible; give {hint}.")
        of_model = self.form == "model"
        if of_model and not (self.model or self.config):
            raise UsageMistake("The form 'model' of parallelspec needs a small language model; give model = DIRECTORY.")
        if not of_model and (self.model or self.config):
            raise UsageMistake(
                f"A model has no effect with the form {self.form!r}; leave it out, or give form = model."
            )
        if of_model and self.layers != 1:
            raise UsageMistake(f"layers = {self.layers} has no effect with the form 'model', which has its own.")


@dataclass(frozen=True)
class Group:
    """Rows of one training text, [rows] each: first the text, a row a token, then masks of the chosen anchors.

    `depth` 0 is the text's own row at `anchor`; mask d of an anchor stands d places behind it (figure 3).
    """

    anchor: torch.Tensor
    depth: torch.Tensor

    @property
    def positions(self) -> torch.Tensor:
        return self.anchor + self.depth

    @property
    def mask(self) -> torch.Tensor:
        """bool [rows, rows]: real tokens up to the anchor, and the masks of the own group up to oneself."""
        real, same = self.depth == 0, self.anchor[:, None] == self.anchor
        return torch.where(real, self.anchor[:, None] >= self.anchor, same & (self.depth[:, None] >= self.depth))


class Drafter(ParallelDrafter):
    """Trained: the layers, their final norm, the masks, and in the form 'eagle' what joins features and embeddings.

    The target's embedding and head are shared and stay as they are; the form 'model' has its own, and trains them too.
    """

    kind = "parallelspec"
    Options = ParallelSpecOptions
    options: ParallelSpecOptions
    never: torch.Tensor  # bool [vocabulary]: what the form 'model' does not propose

    def __init__(self, target: Target, options: ParallelSpecOptions, small: Target | None = None) -> None:
        """`small` is the language model of the form 'model', where it was read already. Raises what reading it may."""
        super().__init__(target, options)
        shape, device = target.transformer.config, target.device
        if options.form != "model":
            own = replace(shape, vocab_size=0, tied=True, sliding_windows=shape.sliding_windows[-1:] * options.layers)
            self.model = Transformer(own, target.transformer.rotary, fresh_weights(own, device))
            self.model.norm.data = target.transformer.norm.detach().float().clone()  # for the head that it feeds
            masks = torch.randn(options.masks, shape.hidden_size, device=device)
            self.masks = nn.Parameter(masks * target.transformer.embed_tokens.detach().float().std())
            if options.form == "eagle":
                self.joined = nn.Linear(2 * shape.hidden_size, shape.hidden_size, device=device)
        else:
            if options.config:
                self.model, token = described(options.config, target)
                never = torch.zeros(shape.vocab_size, dtype=torch.bool, device=device)
            else:
                small = small or read_masked(Path(options.model), target)
                self.model, token, never = small.transformer, small.config.pard_token, impossible(small, target)
                self.model.rotary = rotary(small.config, target)
                config = {**small.config.to_dict(), "tie_word_embeddings": self.model.config.tied}
                self.options = replace(options, model="", config=json.dumps(config, sort_keys=True))
            self.masks = nn.Parameter(self.model.embed_tokens.detach()[token : token + 1].clone())
            self.register_buffer("never", never)
        self.model.requires_grad_(True)
        own = self.model.config
        self._cache = KVCache(own.num_layers, own.num_kv_heads, own.head_dim, 0, target.dtype, target.device)
        self._features: list[torch.Tensor] = []  # the target's state at each token of its cache (EAGLE only)

    @classmethod
    def from_model(cls, path: Path, target: Target, masks: int = MODEL_MASKS) -> Self:
        """The drafter that a published small language model is (PARD), whose config.json names its `pard_token`.

        Raises UsageMistake where its tokens are not the target's, LocalspecError where it is damaged or no such model.
        """
        options = ParallelSpecOptions(masks=masks, form="model", model=str(path))
        return cls(target, options, read_masked(path, target, target.dtype)).eval().requires_grad_(False)

    @property
    def depth(self) -> int:
        return self.options.masks + 1

    @property
    def nbytes(self) -> int:
        """Memory the drafter holds beside the target: weights, cache and features."""
        return super().nbytes + self._cache.nbytes + sum(feature.nbytes for feature in self._features)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What is saved: what is the drafter's own, each tensor once."""
        shared = {"model.embedding"} if self.options.form != "model" else set()
        if self.model.config.tied:
            shared.add("model.head.weight")
        return {name: tensor for name, tensor in super().tensors().items() if name not in shared}

    # -- drafting -----------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Judges what was proposed; keeps the target's features at the rows that are now in its cache."""
        self.calibrate(step)
        if self.options.form == "eagle":
            self._features += step.hidden.unbind()

    def rewind(self, length: int) -> None:
        """Forgets cached tokens and features behind `length`; those before depend on nothing that changes."""
        self._cache.truncate(min(self._cache.length, length))
        del self._features[length:]
        self.forget()

    @torch.inference_mode()
    def draft(self, context: Context) -> DraftTree:
        """One forward over the tokens that are new to the drafter's cache, the root among them, and the masks."""
        nodes, position = context.nodes, len(context.committed)
        self.rewind(position - 1)  # the root's row is always computed anew
        known = self.options.form != "eagle" or len(self._features) == position - 1
        if not nodes or not known:
            return DraftTree((context.root,), (-1,))
        return self.build_tree(
            context, self._logits(self._predict(context.committed, min(self.options.masks, nodes - 1)))
        )

    def _predict(self, committed: Sequence[int], masks: int) -> torch.Tensor:
        """States [1 + masks, width] of the root and of the masks behind it; the real rows stay in the cache."""
        self.cast_for_inference()
        while len(committed) - self._cache.length > CHUNK:
            self._read_rows(committed[self._cache.length : self._cache.length + CHUNK], 0)
        new = len(committed) - self._cache.length
        return self._read_rows(committed[self._cache.length :], masks)[new - 1 :]

    def _read_rows(self, tokens: Sequence[int], masks: int) -> torch.Tensor:
        start, count, device = self._cache.length, len(tokens), self.target.device
        rows = count + masks
        before = None
        if self.options.form == "eagle":
            known = self._features[max(start - 1, 0) : start + count - 1]
            first = [self._features[0].new_zeros(self._features[0].shape)] if start == 0 else []
            before = torch.stack([*first, *known])
        x = self._embedded(torch.tensor(tokens, device=device), self._masks()[:masks], before)
        causal = torch.ones(rows, rows, dtype=torch.bool, device=device).tril_()
        self._cache.reserve(start + rows)
        states: torch.Tensor = self.model(x, torch.arange(start, start + rows, device=device), causal, self._cache)[0]
        self._cache.keep(range(count))
        return states

    def _embedded(self, tokens: torch.Tensor, masks: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        """Input rows [1, tokens + masks, width]: tokens [n], then masks [m, width]; `before` [n, width] are features.

        A token's feature is the target's state one place before it, which foresaw it; masks have none: zeros (eq. 5).
        """
        if self.options.form == "model":
            embedding = self.model.embed_tokens
            real = F.embedding(tokens.clamp(max=len(embedding) - 1), embedding)  # ids that no tokenizer gives
        else:
            real = self.target.embed(tokens)
        x = torch.cat([real.to(masks.dtype), masks])
        if before is not None:
            features = F.pad(before.to(masks.dtype), (0, 0, 0, len(masks)))
            x = self.joined(torch.cat([features, x], -1))
        return x[None]

    def _masks(self) -> torch.Tensor:
        """Embeddings of the masks, [k, width]; a model has one for all."""
        return self.masks.expand(self.options.masks, -1)

    def _head(self, states: torch.Tensor) -> torch.Tensor:
        """Logits of states [rows, width], of the ids that the drafter and the target both have."""
        if self.options.form != "model":
            return self.target.head(states.to(self.target.transformer.computes_in))
        logits: torch.Tensor = self.model.lm_head(states)
        return logits[:, : self.target.transformer.config.vocab_size]

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary of the target]; what must not be proposed is impossible."""
        logits = self._head(states)
        if self.options.form != "model":
            return logits
        return F.pad(logits, (0, len(self.never) - logits.shape[1])).masked_fill(self.never, float("-inf"))

    def cast_for_inference(self) -> None:
        """As of `TrainedDrafter`, in the precision of the weights, which the cache has too."""
        if self.masks.dtype != self.target.dtype and not self.masks.requires_grad:
            with torch.inference_mode(False):
                self.to(self.target.dtype)
            self.model.computes_in = self.target.dtype

    # -- training -----------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> LossOutput:
        """Eq. 3: every row of the text, and of each chosen anchor's group, against the token one place behind it.

        Depth d weighs λᵈ, its rows are averaged. In the form 'eagle' a row weighs 1.0 SmoothL1(feature) + 0.1
        cross-entropy (eq. 4, with EAGLE's own weights; the paper adds depths without λ, which is decay = 1).
        """
        states: list[list[torch.Tensor]] = [[] for _ in range(self.depth)]
        places: list[list[torch.Tensor]] = [[] for _ in range(self.depth)]
        n = batch.tokens.shape[1]
        for text, loss_mask in enumerate(batch.loss_mask):
            end = int(loss_mask.nonzero().max()) + 1 if loss_mask.any() else 0
            if end < 2:
                continue
            group = self.group(loss_mask[:end], batch.generator)
            seen, at = self.states(batch.tokens[text, :end], batch.hidden[text, :end], group), group.positions
            taught = (at + 1 < end) & loss_mask[(at + 1).clamp(max=end - 1)]
            for depth in range(self.depth):
                rows = taught & (group.depth == depth)
                states[depth].append(seen[rows])
                places[depth].append(text * n + at[rows])
        total, depth_losses = self.masks.sum() * 0, []  # a batch that teaches nothing has a gradient, too
        for depth in range(self.depth):
            if not states[depth]:
                depth_losses.append(DepthLoss(total, torch.zeros(RANKS, dtype=torch.long, device=total.device), 0))
                continue
            seen, at = torch.cat(states[depth]), torch.cat(places[depth])
            found = self._depth_loss(seen, at, batch)
            loss = found.loss / max(found.count, 1)
            if self.options.form == "eagle" and len(at):
                loss = TOKEN * loss + FEATURE * F.smooth_l1_loss(seen.float(), batch.hidden.flatten(0, 1)[at].float())
            total = total + self.options.decay**depth * loss
            depth_losses.append(found)
        return LossOutput(total, depth_losses)

    def _depth_loss(self, states: torch.Tensor, at: torch.Tensor, batch: Batch) -> DepthLoss:
        """Of rows that stand at places `at` of all texts, one behind the other."""
        labels = batch.hidden.flatten(0, 1)[at] if batch.distill else batch.tokens.flatten()[at + 1]
        own = self.model.config.vocab_size  # none where the head is the target's
        kept = torch.arange(own, device=at.device) if 0 < own < self.target.transformer.config.vocab_size else None
        return cross_entropy(states, self._head, labels, self.target.head if batch.distill else None, kept)

    def group(self, loss_mask: torch.Tensor, generator: torch.Generator) -> Group:
        """The rows of a text of which counts [n] are worth foreseeing: anchors at random, as many as there is room for.

        An anchor has mask d only if it has all masks before it, and the text a token for it to foresee.
        """
        n, device = len(loss_mask), loss_mask.device
        anchors = loss_mask[2:].nonzero()[:, 0]
        shares = [max((1 - self.options.drop) ** depth, LEAST_KEPT) for depth in range(1, self.depth)]
        room = (max(ROWS, 2 * n) - n) / sum(shares)
        chosen = anchors[torch.randperm(len(anchors), generator=generator).to(device)]
        kept = [chosen[: round(min(len(chosen), room) * share)] for share in shares]
        kept = [some[some + depth + 1 < n] for depth, some in enumerate(kept, start=1)]
        depths = [torch.full_like(some, depth) for depth, some in enumerate(kept, start=1)]
        real = torch.arange(n, device=device)
        return Group(torch.cat([real, *kept]), torch.cat([torch.zeros_like(real), *depths]))

    def states(self, tokens: torch.Tensor, hidden: torch.Tensor, group: Group) -> torch.Tensor:
        """States [rows, width] of a text [n] and its groups, in one forward; hidden [n, width] are the target's."""
        before = F.pad(hidden[:-1], (0, 0, 1, 0)) if self.options.form == "eagle" else None
        masks = self._masks()[group.depth[len(tokens) :] - 1]
        states: torch.Tensor = self.model(self._embedded(tokens, masks, before), group.positions, group.mask)[0]
        return states
