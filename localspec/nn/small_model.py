"""Small transformers that are trained to draft: layers with fresh weights, or a language model with a mask token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from localspec.families.architecture import TransformerConfig, in_features, weight_map
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.small_model import compare_tokens, mask_token, masked_model
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer

SPREAD = 0.02  # standard deviation of a fresh layer's weights


def fresh_weights(config: TransformerConfig, device: torch.device | str) -> Mapping[str, torch.Tensor]:
    """Return fresh weights by localspec's names, in fp32: random numbers near zero in matrices, zeros in biases, and
    norms that multiply by one."""
    weights, unit = {}, 1.0 - config.norm_offset
    for name, made_of in weight_map(config).items():
        rows, columns = sum(rows for _, rows in made_of), in_features(name, config)
        if columns is not None:
            weights[name] = torch.randn(rows, columns, device=device) * SPREAD
        else:
            # Norms of recurrent layers' values have no offset, unlike the others.
            ones = unit if name.endswith("norm") and not name.endswith("value_norm") else 1.0
            weights[name] = torch.full((rows,), ones if name.endswith(("norm", "scalar")) else 0.0, device=device)
        if name.endswith(".conv"):
            weights[name] = weights[name][:, None]  # each channel has its own filter
    return weights


def copied_layers(
    transformer: Transformer, config: TransformerConfig, layers: Sequence[int]
) -> Mapping[str, torch.Tensor]:
    """Return weights for small layers that begin as copies of a transformer's `layers`, by localspec's names, in fp32.

    Everything else is fresh, as in `fresh_weights`. Packed layers give their rounded weights.
    """
    weights = dict(fresh_weights(config, transformer.embed_tokens.device))
    for name, fresh in list(weights.items()):
        part, _, rest = name.partition(".")
        index, _, attributes = rest.partition(".")
        if part == "layers" and int(index) < len(layers):
            value: Any = transformer.layers[layers[int(index)]]
            for attribute in attributes.split("."):
                value = getattr(value, attribute, None)
            if value is None:
                continue
            # A layer that processes share is a DTensor: collect the parts of all of them.
            value = getattr(value, "full_tensor", value.detach)()
            assert isinstance(value, torch.Tensor)
            if value.shape == fresh.shape:
                weights[name] = value.detach().float().clone()
    return weights


def read_masked(path: Path, target: Target) -> tuple[Target, int]:
    """Read a small language model with a mask token, in fp32. Return the model and that token.

    Raises UsageMistake if its ids differ from the target's, LocalspecError if it has no mask token, and the errors of
    `Target.load`.
    """
    small = Target.load(path, device=str(target.device), dtype=torch.float32)
    token = mask_token(small.config, path)
    compare_tokens(small.tokenizer, small.vocab_size, target.tokenizer, path)
    return small, token


def from_config(text: str, target: Target) -> tuple[Transformer, int]:
    """Make the transformer that a config.json describes, with fresh weights. Return it and its mask token.

    Raises the errors of `masked_model` before any memory is allocated.
    """
    sizes, rope, mask = masked_model(text, target.context)
    return Transformer(sizes, RotaryEmbedding(rope, target.device), fresh_weights(sizes, target.device)), mask


def rotary_embedding(config: ModelConfig, target: Target) -> RotaryEmbedding:
    """Return a small model's position embedding, scaled for the longest text that both models can hold."""
    return RotaryEmbedding(Rope.of(config, min(target.context, config.max_position_embeddings)), target.device)
