"""Small transformers that draft for a target: layers with fresh weights, or a language model with a mask token."""

import json
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from reprlib import repr as shortened

import torch

from localspec.errors import LocalspecError, UsageMistake, first_line
from localspec.models.architecture import TransformerConfig, in_features, weight_map
from localspec.models.model_config import ModelConfig
from localspec.nn.target import Target
from localspec.nn.transformer import RotaryEmbedding, Transformer

SPREAD = 0.02  # standard deviation of a fresh layer's weights
_MOST = {  # no small model has more, and each layer takes memory even without weights
    "num_hidden_layers": 1024, "vocab_size": 2**20, "hidden_size": 2**20, "intermediate_size": 2**20,
    "num_attention_heads": 2**20, "num_key_value_heads": 2**20, "head_dim": 2**20,
}  # fmt: skip


def fresh_weights(config: TransformerConfig, device: torch.device | str) -> Mapping[str, torch.Tensor]:
    """Weights by our names, in fp32: small random numbers in matrices, zeros in biases, ones in norms."""
    weights = {}
    for name, made_of in weight_map(config).items():
        rows, columns = sum(rows for _, rows in made_of), in_features(name, config)
        if columns is not None:
            weights[name] = torch.randn(rows, columns, device=device) * SPREAD
        else:
            weights[name] = torch.full((rows,), float(name.endswith("norm")), device=device)
    return weights


def read_masked(path: Path, target: Target, dtype: torch.dtype = torch.float32) -> Target:
    """Reads a small language model with a mask token, its `pard_token` (PARD), in the Hugging Face layout.

    Raises UsageMistake where its ids do not mean what the target's do, LocalspecError where it has no mask token, and
    what `Target.load` raises.
    """
    small = Target.load(path, device=str(target.device), dtype=dtype)
    token, vocabulary = small.config.content.get("pard_token"), small.transformer.config.vocab_size
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
        raise LocalspecError(
            f"{path / 'config.json'} names no mask token (pard_token = {token!r}), so this model cannot draft in "
            "parallel; give one that can."
        )
    compare_tokens(small, target, path)
    return small


def compare_tokens(small: Target, target: Target, path: Path) -> None:
    """Raises UsageMistake where a token's id is not the same in both; ids that only fill up a vocabulary may differ.

    `path` is the small model's directory.
    """
    ours, theirs, vocabulary = _tokens(target), _tokens(small), small.transformer.config.vocab_size
    different = [index for index in ours.keys() & theirs.keys() if ours[index] != theirs[index]]
    if different:
        first = min(different)
        raise UsageMistake(
            f"The small model in {path} has another tokenizer: its token {first} is {theirs[first]!r}, and the "
            f"target's is {ours[first]!r}; give one that was made for this target."
        )
    if max(ours) >= vocabulary:
        raise UsageMistake(
            f"The small model in {path} knows {vocabulary} tokens, and the target's tokenizer gives ids up to "
            f"{max(ours)}; give one that was made for this target."
        )


def impossible_ids(small: Target, target: Target) -> torch.Tensor:
    """Returns bool [the target's vocab_size]: the mask token, and ids that one of the two tokenizers does not have."""
    known = (_tokens(target).keys() & _tokens(small).keys()) - {small.config.content["pard_token"]}
    never = torch.ones(target.transformer.config.vocab_size, dtype=torch.bool, device=target.device)
    never[[index for index in known if index < len(never)]] = False
    return never


def from_config(text: str, target: Target) -> tuple[Transformer, int]:
    """Makes the transformer that a config.json describes, with fresh weights; returns it and its mask token.

    Raises UsageMistake for a text that describes none, before any memory is taken, and LocalspecError for one that
    cannot be computed here.
    """
    try:
        content = json.loads(text)
        if unlikely := [name for name, most in _MOST.items() if not _is_count(content.get(name), most)]:
            raise ValueError(f"{unlikely[0]} = {shortened(content[unlikely[0]])}")
        config = ModelConfig.of(content)
        sizes, token = TransformerConfig.of(config), int(content["pard_token"])
        rotary = rotary_embedding(config, target)
        _try_one_token(sizes, config)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise UsageMistake(
            f"The config of the small model cannot be used ({first_line(error)}); train the drafter again."
        ) from error
    return Transformer(sizes, rotary, fresh_weights(sizes, target.device)), token


def _is_count(value: object, most: int) -> bool:
    return value is None or (type(value) is int and 1 <= value <= most)


def _try_one_token(sizes: TransformerConfig, config: ModelConfig) -> None:
    """Reads a token without weights, so that sizes that do not fit each other fail now and not in a reply."""
    meta = torch.device("meta")
    one = torch.zeros(1, dtype=torch.long, device=meta)
    model = Transformer(sizes, RotaryEmbedding(config, 1, meta), fresh_weights(sizes, meta))
    model(one[None], one, one[None] == 0)


def without_weights(target: Target) -> Target:
    """Returns the same target on torch's meta device: a drafter that is made for it has shapes and takes no memory."""
    shapes_only, transformer = copy(target), target.transformer
    weights = fresh_weights(transformer.config, torch.device("meta"))
    shapes_only.transformer = Transformer(transformer.config, transformer.rotary, weights)
    return shapes_only


def rotary_embedding(config: ModelConfig, target: Target) -> RotaryEmbedding:
    """Returns a small model's position embedding, scaled for the longest text that both models can hold."""
    return RotaryEmbedding(config, min(target.context, config.max_position_embeddings), target.device)


def _tokens(target: Target) -> dict[int, str]:
    return {index: token for token, index in target.tokenizer.get_vocab().items()}
