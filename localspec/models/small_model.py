"""Describes small language models that draft: compares their tokens with the target's, and reads the config.json of
models with a mask token (PARD)."""

from pathlib import Path
from reprlib import repr as shortened

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, UsageMistake, first_line
from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.default_draft import compare
from localspec.models.tokenizer import Tokenizer
from localspec.outside_files import parse_json

_MOST = {  # no small model has more, and each layer takes memory even without weights
    "num_hidden_layers": 1024, "vocab_size": 2**20, "hidden_size": 2**20, "intermediate_size": 2**20,
    "num_attention_heads": 2**20, "num_key_value_heads": 2**20, "head_dim": 2**20,
}  # fmt: skip


def compare_tokens(small: Tokenizer, vocabulary: int, target: Tokenizer, path: Path) -> None:
    """Raise UsageMistake if a token has different ids in the two models. Ids that only pad a vocabulary may differ.

    `small` is the tokenizer of the model in `path`, which has `vocabulary` ids.
    """
    compare(_tokens(small), vocabulary, _tokens(target), target.special_ids, path)


def mask_token(config: ModelConfig, path: Path) -> int:
    """Return the mask token of a small model, its `pard_token`. Raises LocalspecError if it has none."""
    token = config.content.get("pard_token")
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < config.vocab_size:
        raise LocalspecError(
            f"{path / 'config.json'} names no mask token (pard_token = {token!r}), so this model cannot draft in "
            "parallel; give one that can."
        )
    if config.per_layer_inputs[0]:
        raise LocalspecError(
            f"The model in {path} cannot draft in parallel, because its layers read a vector for each token id, and "
            "there is none for its mask token; give another draft model."
        )
    return token


def impossible_ids(small: Tokenizer, mask: int, target: Tokenizer, vocabulary: int) -> npt.NDArray[np.bool_]:
    """Return bool [vocabulary]: True for ids that must not be drafted, because they are the mask token, or one of the
    tokenizers lacks them."""
    common = (_tokens(target).keys() & _tokens(small).keys()) - {mask}
    never = np.ones(vocabulary, np.bool_)
    never[[index for index in common if index < len(never)]] = False
    return never


def masked_model(text: str, context: int) -> tuple[TransformerConfig, Rope, int]:
    """Return the sizes, rotary embedding and mask token in a small model's config.json, `text`.

    Raises the errors of `described`.
    """
    return described(text, context, "small model", "pard_token")


def described(text: str, context: int, label: str, token: str = "") -> tuple[TransformerConfig, Rope, int]:
    """Return the sizes and rotary embedding in the `text` of a config.json, and the id under its key `token`, or -1.

    `label` is the name of the model in messages, and `context` the longest text of the target. Raises UsageMistake for
    a text that does not describe a transformer, and LocalspecError for an unsupported one. No memory is allocated.
    """
    try:
        content = parse_json(text)
        counts = {name: content[name] for name in _MOST if content.get(name) is not None}
        if unlikely := [name for name, size in counts.items() if not (type(size) is int and 1 <= size <= _MOST[name])]:
            raise ValueError(f"{unlikely[0]} = {shortened(content[unlikely[0]])}")
        config = ModelConfig.of(content)
        sizes = TransformerConfig.of(config)
        if sizes.delta is not None:
            raise ValueError("a model with recurrent layers cannot draft with mask tokens")
        rope = Rope.of(config, min(context, config.max_position_embeddings))
        if sizes.num_heads % sizes.num_kv_heads:
            raise ValueError(f"{sizes.num_heads} attention heads cannot share {sizes.num_kv_heads} key heads")
        if sizes.head_dim % 2:
            raise ValueError(f"head_dim = {sizes.head_dim}")
        return sizes, rope, int(content[token]) if token else -1
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageMistake(
            f"The config of the {label} cannot be used ({first_line(error)}); train or fetch the drafter again."
        ) from error


def _tokens(tokenizer: Tokenizer) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}
