"""Trains EAGLE-3 drafters as they are used: each training step reads the outputs of the previous step, as in a draft.

This is the paper's training-time test (EAGLE-3, §3.1).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from localspec.drafters.eagle3 import Drafter, Eagle3Options, layer_of
from localspec.families.architecture import TransformerConfig
from localspec.models.drafter_cards import RANKS
from localspec.nn.losses import DepthLoss, Guess, cross_entropies
from localspec.nn.rotary import RotaryEmbedding, apply_rope
from localspec.nn.small_model import SPREAD, copied_layers
from localspec.nn.target import Target
from localspec.training.trainable import Batch, GradientWork, LossOutput, Recomputing, TrainableDrafter

Steps = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each step, [texts, heads, n, head_dim]


class Trainable(TrainableDrafter):
    """An EAGLE-3 drafter in training: a matrix that joins hidden states of the target, a layer, its norms, and a head.

    In a new drafter, the layer, final norm and head are copies of the target's. The matrix at first passes on only the
    highest of the joined states. The head computes logits for the draft vocabulary.
    """

    Drafter = Drafter
    options: Eagle3Options
    embedding: torch.Tensor | None
    fc: nn.Linear
    qkv: nn.Linear
    o: nn.Linear
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    head: nn.Linear
    embedding_norm: nn.Parameter
    feature_norm: nn.Parameter
    mlp_norm: nn.Parameter
    norm: nn.Parameter
    q_norm: nn.Parameter
    k_norm: nn.Parameter
    states_norm: nn.Parameter

    def __init__(self, target: Target, options: Eagle3Options) -> None:
        """Build the drafter. Raises UsageMistake for options that do not fit the target."""
        shape = target.transformer.config
        options = options.settled(shape)
        super().__init__(target, options)
        specs = Drafter.tensor_specs(target, options)
        self.sizes, rope = layer_of(shape, options, target.context)
        self.rotary = target.transformer.rotary if rope is None else RotaryEmbedding(rope, target.device)
        self.recomputed = False
        self.register_buffer("embedding", None)
        with torch.device(target.device):
            for name, spec in specs.items():
                layer, _, part = name.partition(".")
                if name == "kept":
                    self.draft_from(options.vocabulary)
                elif name == "embedding":
                    self.embedding = torch.zeros(spec.shape)
                elif not part:
                    setattr(self, name, nn.Parameter(torch.ones(spec.shape)))
                elif part == "weight":
                    rows, columns = spec.shape
                    linear = nn.Linear(columns, rows, bias=f"{layer}.bias" in specs)
                    nn.init.normal_(linear.weight, std=SPREAD)
                    setattr(self, layer, linear)
        if not options.config:
            self._begin_as_target()

    @torch.no_grad()
    def _begin_as_target(self) -> None:
        """Copy the target's final norm and head, and its last layer whose attention heads have the drafter's sizes.

        The joining matrix passes on only the highest hidden state that the drafter reads. Parts that the drafter's
        layer does not have, such as attention gates, are not copied.
        """
        transformer, width = self.target.transformer, self.sizes.hidden_size
        config, heads = transformer.config, (self.sizes.num_kv_heads, self.sizes.head_dim)
        layers = {layer: config.sizes_of(layer) for layer in config.attending}
        suitable = [
            index
            for index, size in layers.items()
            if size.keys_of is None and (size.num_kv_heads, size.head_dim) == heads
        ]
        sizes = replace(
            config, vocab_size=0, tied=True, sliding_windows=(None,), delta=None, per_layer_inputs=(0, 0),
            layer_sizes=(layers[suitable[-1]],),
        )  # fmt: skip
        last = copied_layers(transformer, sizes, suitable[-1:])
        self.fc.weight[:, -width:] += torch.eye(width, device=self.fc.weight.device)
        qkv = last["layers.0.qkv_proj.weight"].view(-1, sizes.head_dim, width)
        if sizes.gated:  # a query, its gate, a query, its gate, …, keys, values
            qkv = torch.cat([qkv[: 2 * sizes.num_heads : 2], qkv[2 * sizes.num_heads :]])
        if layers[suitable[-1]].keys_are_values:
            qkv = torch.cat([qkv, qkv[sizes.num_heads :]])
        self.qkv.weight[:, width:].copy_(qkv.flatten(0, 1))
        if sizes.query_scalar:  # here scores are divided by the root of a head's width
            queries = sizes.num_heads * sizes.head_dim
            self.qkv.weight[:queries, width:] *= (sizes.head_dim / sizes.query_scalar) ** 0.5
        self.o.weight.copy_(last["layers.0.o_proj.weight"] * sizes.residual_scale)
        if "layers.0.gate_up_proj.weight" in last:
            gate, up = last["layers.0.gate_up_proj.weight"].chunk(2)
            self.gate.weight.copy_(gate)
            self.up.weight.copy_(up)
            self.down.weight.copy_(last["layers.0.down_proj.weight"] * sizes.residual_scale)
        else:  # no single expert would be right, so the MLP adds nothing at first
            self.down.weight.zero_()
        self.feature_norm.copy_(last["layers.0.input_layernorm"] + sizes.norm_offset)
        self.mlp_norm.copy_(last["layers.0.post_attention_layernorm"] + sizes.norm_offset)
        self.norm.copy_(transformer.norm + sizes.norm_offset)
        self._copy_head()

    def copy_head_rows(self) -> None:
        """Do nothing, because this drafter has a separate head."""

    def _copy_head(self) -> None:
        rows = self.target.transformer.lm_head.weight.detach() * self.target.transformer.config.logit_scale
        self.head.weight.data.copy_(rows if self.kept is None else rows[self.kept])

    @property
    def reads_inner(self) -> Sequence[int]:
        """The hidden states of the target that are joined into the drafter's input, as Hugging Face numbers them."""
        return self.options.places

    def gradient_work(self, length: int) -> GradientWork:
        """Return the work that needs gradients: each step costs as much as another layer over the whole text."""
        return GradientWork(1.0, self.depth)

    @property
    def weights_passed(self) -> int:
        """The number of weights that multiply each token: those of the joining matrix once, and in each step those of
        the layer, its head and the target's head."""
        weights, head = sum(parameter.numel() for parameter in self.parameters()), self.target.transformer.config
        joined = self.fc.weight.numel()
        return joined + self.depth * (weights - joined + head.vocab_size * head.hidden_size)

    @property
    def transformers(self) -> Sequence[Recomputing]:
        """The drafter's own layer."""
        return [self]

    def begin_training(self, frequencies: torch.Tensor) -> None:
        """Choose the most frequent tokens as draft vocabulary, and copy their rows of the target's head."""
        super().begin_training(frequencies)
        if self.kept is not None and not self.options.config:
            self._copy_head()

    # -- the layer ----------------------------------------------------------------------------------------------------

    def _normed(self, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, norm.shape, norm.to(x.dtype), self.sizes.rms_norm_eps)

    def _features(self, inner: torch.Tensor) -> torch.Tensor:
        """Return the features [texts, n, hidden_size]: hidden states of the target, concatenated and joined by a
        matrix."""
        if self.options.norms != "none":
            parts = inner.chunk(len(self.options.places) if self.options.norms == "each" else 1, -1)
            normed = [F.rms_norm(part, part.shape[-1:], eps=self.sizes.rms_norm_eps) for part in parts]
            inner = torch.cat(normed, -1) * self.states_norm
        features: torch.Tensor = self.fc(inner)
        return features

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.embedding is None:
            return self.target.embed(tokens).float()
        return F.embedding(tokens, self.embedding).float()

    def _step(
        self, embeddings: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, *earlier: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a step's outputs [texts, n, hidden_size], keys and values. `earlier` has those of earlier steps."""
        sizes, (texts, n) = self.sizes, features.shape[:2]
        feature = self._normed(features, self.feature_norm)
        both = torch.cat([self._normed(embeddings, self.embedding_norm), feature], -1)
        qkv = self.qkv(both).view(texts, n, -1, sizes.head_dim)
        q, k, v = torch.split(qkv, [sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads], 2)
        if sizes.qk_norm:
            q, k = self._normed(q, self.q_norm), self._normed(k, self.k_norm)
        cos, sin = self.rotary.cos_sin(positions, q.dtype)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        q, k, v = (part.transpose(1, 2) for part in (q, _shared(k, sizes), _shared(v, sizes)))
        mixed = _attended(q, [*zip(earlier[::2], earlier[1::2], strict=True), (k, v)])
        x = (feature if self.options.residual else features) + self.o(mixed.transpose(1, 2).reshape(texts, n, -1))
        h = self._normed(x, self.mlp_norm)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), k, v

    def states(self, tokens: torch.Tensor, inner: torch.Tensor) -> list[torch.Tensor]:
        """Return the normed hidden states [texts, n, hidden_size] of each step, for texts [texts, n].

        Row i of step d predicts token i + 2 + d, from the target's states up to i and the tokens up to i + 1 + d. In
        the first step a row's feature comes from the target; after it, from the drafter's own previous step.
        """
        n, normed, earlier = tokens.shape[1], list[torch.Tensor](), list[torch.Tensor]()
        following = F.pad(tokens, (0, self.depth))
        features, positions = self._features(inner.float()), torch.arange(n, device=tokens.device)
        for step in range(self.depth):
            embeddings = self._embed(following[:, 1 + step : 1 + step + n])
            inputs = (embeddings, features, positions + step, *earlier)
            if self.recomputed and torch.is_grad_enabled():
                states, *keys_values = checkpoint(self._step, *inputs, use_reentrant=False)
            else:
                states, *keys_values = self._step(*inputs)
            earlier += keys_values
            normed.append(self._normed(states, self.norm))
            features = normed[-1] if self.options.output else states
        return normed

    def loss(self, batch: Batch) -> LossOutput:
        """Return the sum over all steps d of decayᵈ times the mean cross-entropy of step d's predictions.

        A position counts only if the token after it and the predicted tokens are all in the loss mask, as in a reply.
        """
        assert batch.inner is not None
        n = batch.tokens.shape[1]
        counted = F.pad(batch.loss_mask, (0, self.depth + 1)).unfold(1, self.depth + 1, 1)
        counted = counted[:, 1:].cumprod(-1).bool()  # [texts, n, depth + 1]: the root, then what follows it
        guesses = []
        for step, states in enumerate(self.states(batch.tokens, batch.inner)):
            text, position = counted[..., step + 1].nonzero(as_tuple=True)
            guesses.append(Guess(states[text, position], self.head, text * n + position + step + 1))
        total = 0.0 * self.fc.weight.sum()  # a batch without a label must have a gradient, too
        if not len(guesses[0].labels):
            return LossOutput(total, [DepthLoss(total, torch.zeros(RANKS, dtype=torch.long), 0)] * self.depth)
        labels = batch.hidden if batch.distill else batch.tokens.roll(-1, 1)  # of each position, what follows it
        losses = cross_entropies(guesses, labels.flatten(0, 1), self.target.head if batch.distill else None, self.kept)
        for step, depth_loss in enumerate(losses):
            total = total + self.options.decay**step * depth_loss.loss / max(depth_loss.count, 1)
        return LossOutput(total, losses)


def _shared(x: torch.Tensor, sizes: TransformerConfig) -> torch.Tensor:
    """Return keys or values [texts, n, key heads, head_dim], repeated so that each attention head has its own."""
    return x.repeat_interleave(sizes.num_heads // sizes.num_kv_heads, 2)


def _attended(q: torch.Tensor, steps: Steps) -> torch.Tensor:
    """Return the output of attention [texts, heads, n, head_dim] in the latest step.

    A row i sees rows 0 to i of the first step, and only row i of each later step.
    """
    (first_k, first_v), *later = steps
    n = q.shape[2]
    unseen = torch.ones(n, n, dtype=torch.bool, device=q.device).triu_(1)
    scores = [(q @ first_k.transpose(2, 3)).masked_fill(unseen, float("-inf"))]
    scores += [(q * k).sum(-1, keepdim=True) for k, _ in later]
    weights = (torch.cat(scores, -1) * q.shape[-1] ** -0.5).softmax(-1)
    mixed: torch.Tensor = weights[..., :n] @ first_v
    for step, (_, v) in enumerate(later):
        mixed = mixed + weights[..., n + step, None] * v
    return mixed
