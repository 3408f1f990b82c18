"""Small transformers that draft beside a target: layers with fresh weights, or a language model with a mask token."""

import json
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PretrainedConfig

from localspec.errors import LocalspecError, UsageMistake, first_line
from localspec.nn.target import Target
from localspec.nn.transformer import RotaryEmbedding, Transformer, TransformerConfig, in_features, weight_map

SPREAD = 0.02  # of a fresh layer's weights
_MOST = {  # no small model has more, and each layer takes memory even without weights
    "num_hidden_layers": 1024, "vocab_size": 2**20, "hidden_size": 2**20, "intermediate_size": 2**20,
    "num_attention_heads": 2**20, "num_key_value_heads": 2**20, "head_dim": 2**20,
}  # fmt: skip


def fresh_weights(config: TransformerConfig, device: torch.device) -> Mapping[str, torch.Tensor]:
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
    """A small language model in the Hugging Face layout with a mask token, its `pard_token`, beside a target (PARD).

    Raises UsageMistake where its ids do not mean what the target's mean, LocalspecError where it has no mask token, and
    what `Target.load` raises.
    """
    small = Target.load(path, device=str(target.device), dtype=dtype)
    token, vocabulary = getattr(small.config, "pard_token", None), small.transformer.config.vocab_size
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
        raise LocalspecError(
            f"{path / 'config.json'} names no mask token (pard_token = {token!r}), so this model cannot draft in "
            "parallel; give one that can."
        )
    compare_tokens(small, target, path)
    return small


def compare_tokens(small: Target, target: Target, path: Path) -> None:
    """Raises UsageMistake where ids do not mean the same to both: what fills up a vocabulary may differ, no token may.

    `path` is where the small model lies.
    """
    ours, theirs, vocabulary = _tokens(target), _tokens(small), small.transformer.config.vocab_size
    unlike = [index for index in ours.keys() & theirs.keys() if ours[index] != theirs[index]]
    if unlike:
        first = min(unlike)
        raise UsageMistake(
            f"The small model in {path} has another tokenizer: its token {first} is {theirs[first]!r}, and the "
            f"target's is {ours[first]!r}; give one that was made for this target."
        )
    if max(ours) >= vocabulary:
        raise UsageMistake(
            f"The small model in {path} knows {vocabulary} tokens, and the target's tokenizer gives ids up to "
            f"{max(ours)}; give one that was made for this target."
        )


def impossible(small: Target, target: Target) -> torch.Tensor:
    """bool [vocabulary of the target]: the mask token, and ids that stand for nothing in one of the two tokenizers."""
    both = (_tokens(target).keys() & _tokens(small).keys()) - {small.config.pard_token}
    never = torch.ones(target.transformer.config.vocab_size, dtype=torch.bool, device=target.device)
    never[[index for index in both if index < len(never)]] = False
    return never


def described(text: str, target: Target) -> tuple[Transformer, int]:
    """The transformer that a config.json describes, with fresh weights, and its mask token.

    Raises UsageMistake for a text that describes none, before any memory is taken; LocalspecError for one that we
    cannot compute.
    """
    try:
        content = json.loads(text)
        if unlikely := [name for name, most in _MOST.items() if not _counts(content.get(name), most)]:
            raise ValueError(f"{unlikely[0]} = {shortened(content[unlikely[0]])}")
        config: Any = CONFIG_MAPPING[content["model_type"]].from_dict(content)
        shape, token, turns = TransformerConfig.of(config), int(config.pard_token), rotary(config, target)
        _try(shape, config)
    except LocalspecError:
        raise
    except Exception as error:  # config classes raise their own validation errors, of many kinds
        raise UsageMistake(
            f"The config of the small model cannot be used ({first_line(error)}); train the drafter again."
        ) from error
    return Transformer(shape, turns, fresh_weights(shape, target.device)), token


def _counts(value: object, most: int) -> bool:
    return value is None or (type(value) is int and 1 <= value <= most)


def _try(shape: TransformerConfig, config: PretrainedConfig) -> None:
    """One token without weights: numbers that do not go together are told now, and not in the middle of a reply."""
    nowhere = torch.device("meta")
    one = torch.zeros(1, dtype=torch.long, device=nowhere)
    model = Transformer(shape, RotaryEmbedding(config, 1, nowhere), fresh_weights(shape, nowhere))
    model(one[None], one, one[None] == 0)


def without_weights(target: Target) -> Target:
    """The same on torch's meta device: a drafter made for it has shapes, and takes no memory."""
    shadow, transformer = copy(target), target.transformer
    weights = fresh_weights(transformer.config, torch.device("meta"))
    shadow.transformer = Transformer(transformer.config, transformer.rotary, weights)
    return shadow


def rotary(config: PretrainedConfig, target: Target) -> RotaryEmbedding:
    """Its positions, scaled for texts as long as the target holds, or as the small model was made for."""
    return RotaryEmbedding(config, min(target.context, config.max_position_embeddings), target.device)


def _tokens(target: Target) -> dict[int, str]:
    return {index: token for token, index in target.tokenizer.get_vocab().items()}
