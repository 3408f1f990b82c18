"""Small language models that draft: whether their tokens are the target's, and those that a mask token lets draft in
parallel (PARD), as their config.json describes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, NotHere, UsageMistake, first_line
from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.own_draft import compare
from localspec.models.tokenizer import Tokenizer
from localspec.outside_files import parse_json
from localspec.weights.checkpoint import tensor_headers

_MOST = {  # no small model has more, and each layer takes memory even without weights
    "num_hidden_layers": 1024, "vocab_size": 2**20, "hidden_size": 2**20, "intermediate_size": 2**20,
    "num_attention_heads": 2**20, "num_key_value_heads": 2**20, "head_dim": 2**20,
}  # fmt: skip


def compare_tokens(small: Tokenizer, vocabulary: int, target: Tokenizer, path: Path) -> None:
    """Raise UsageMistake if a token's id is not the same in both. Ids that only fill up a vocabulary may differ.

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
            f"The layers of {path} read inputs by the id of a token, which its mask token has none of, so this model "
            "cannot draft in parallel here; give another."
        )
    return token


def impossible_ids(small: Tokenizer, mask: int, target: Tokenizer, vocabulary: int) -> npt.NDArray[np.bool_]:
    """Return bool [vocabulary] of the target: the mask token, and ids that one of the two tokenizers lacks."""
    known = (_tokens(target).keys() & _tokens(small).keys()) - {mask}
    never = np.ones(vocabulary, np.bool_)
    never[[index for index in known if index < len(never)]] = False
    return never


@dataclass(frozen=True)
class MaskedModel:
    """A small model with a mask token, as a config.json describes it."""

    sizes: TransformerConfig
    rope: Rope
    mask: int

    @classmethod
    def of(cls, text: str, context: int) -> "MaskedModel":
        """Read a config.json; `context` is the longest text that the target holds.

        Raises UsageMistake for a text that does not describe such a model, LocalspecError for an unsupported one.
        Allocates no memory for it.
        """
        sizes, rope, mask = described(text, context, "small model", "pard_token")
        return cls(sizes, rope, mask)


def described(text: str, context: int, what: str, token: str = "") -> tuple[TransformerConfig, Rope, int]:
    """Return sizes and rotation from a config.json, and the id of `token` if it is given, otherwise -1.

    `what` names the described thing in a sentence, `context` is the longest text of the target. Raises UsageMistake for
    a text that does not describe a transformer, LocalspecError for an unsupported one. Allocates no memory for it.
    """
    try:
        content = parse_json(text)
        if unlikely := [name for name, most in _MOST.items() if not _is_count(content.get(name), most)]:
            raise ValueError(f"{unlikely[0]} = {shortened(content[unlikely[0]])}")
        config = ModelConfig.of(content)
        sizes = TransformerConfig.of(config)
        if sizes.delta is not None:
            raise ValueError("recurrent layers do not draft by mask tokens")
        rope = Rope.of(config, min(context, config.max_position_embeddings))
        return _sound(sizes), rope, int(content[token]) if token else -1
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageMistake(
            f"The config of the {what} cannot be used ({first_line(error)}); train or fetch the drafter again."
        ) from error


def _sound(sizes: TransformerConfig) -> TransformerConfig:
    """Return sizes that fit each other. Raises ValueError for others."""
    if sizes.num_heads % sizes.num_kv_heads:
        raise ValueError(f"{sizes.num_heads} heads cannot share {sizes.num_kv_heads} key heads")
    if sizes.head_dim % 2:
        raise ValueError(f"head_dim = {sizes.head_dim}")
    return sizes


def _is_count(value: Any, most: int) -> bool:
    return value is None or (type(value) is int and 1 <= value <= most)


def _tokens(tokenizer: Tokenizer) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}


WEIGHT, BIAS = "target_proj.weight", "target_proj.bias"
PICKLE, FILE = "warp_model.bin", "warp_model.safetensors"  # as it is published, and as it is read
_FLOATS = ("BF16", "F16", "F32")
_SCALES = ("pard2_scale", "pard_scale", "feat_scale")  # the first that config.json has


@dataclass(frozen=True)
class TargetMap:
    """e + `scale` · (W s + b) is what the small model reads of a token with the embedding e.

    s are the target's states one position before it, those with the indices `layers` of Hugging Face's hidden_states
    side by side. W [hidden_size, states] and b are in `file`.
    """

    layers: tuple[int, ...]
    scale: float
    file: Path
    has_bias: bool
    states: int  # channels of s
    hidden_size: int  # of the small model
    parameters: int

    def for_target(self, num_layers: int, hidden_size: int) -> tuple[int, ...]:
        """Return the indices, from 0 up, for a target with this many layers and channels.

        Raises UsageMistake if the map is for another target.
        """
        places = tuple(layer + num_layers + 1 if layer < 0 else layer for layer in self.layers)
        if any(not 0 <= place <= num_layers for place in places) or self.states != len(places) * hidden_size:
            raise UsageMistake(
                f"The small model in {self.file.parent} reads {self.states} channels of the states "
                f"{', '.join(map(str, self.layers))} of its target, and this one has {num_layers} layers of "
                f"{hidden_size} channels; name the model that it was made for."
            )
        return places


def target_map(config: Mapping[str, Any], path: Path) -> TargetMap | None:
    """Read the map from a config.json and the header of its file. None for a model without one.

    Raises NotHere if the file is missing, LocalspecError for invalid content.
    """
    if not (config.get("pard2") or config.get("spd_type") == "pard2"):
        return None
    layers = config.get("pard2_target_layers")
    scale = next((config[name] for name in _SCALES if name in config), 0.02)
    if not isinstance(layers, list) or not 1 <= len(layers) <= 64 or not all(type(layer) is int for layer in layers):
        raise _wrong(path, "pard2_target_layers", layers)
    if type(scale) not in (int, float) or not 0 < abs(scale) < 1e6:
        raise _wrong(path, "pard2_scale", scale)
    file = path / FILE
    if not file.is_file():
        how = "fetch it again"
        if (path / PICKLE).is_file():
            how = (
                f"{path / PICKLE} is a pickle, which may run code when it is read. In that directory make it with "
                'python -c "import torch, safetensors.torch as s; '
                f"s.save_file(torch.load('{PICKLE}', weights_only=True), '{FILE}')\""
            )
        raise NotHere(f"{path} lacks {FILE}, the map of the target's states; {how}.")
    headers = tensor_headers(file)
    shapes = {name: tuple(headers[name]["shape"]) for name in (WEIGHT, BIAS) if name in headers}
    if others := [headers[name]["dtype"] for name in shapes if headers[name]["dtype"] not in _FLOATS]:
        raise LocalspecError(f"{file} holds numbers of type {others[0]}, and the map is of {', '.join(_FLOATS)}.")
    weight = shapes.get(WEIGHT, ())
    has_bias = bool(config.get("pard2_proj_bias", config.get("proj_bias", False))) and BIAS in shapes
    fits = len(weight) == 2 and weight[0] == config.get("hidden_size") and shapes.get(BIAS, weight[:1]) == weight[:1]
    if not fits or weight[1] != config.get("pard2_target_dim", weight[1]):
        raise LocalspecError(
            f"{file} does not fit its config.json: {WEIGHT} is {list(weight)}, and the model is "
            f"{config.get('hidden_size')} wide and reads {config.get('pard2_target_dim')} channels; fetch it again."
        )
    parameters = weight[0] * weight[1] + (weight[0] if has_bias else 0)
    return TargetMap(tuple(layers), float(scale), file, has_bias, weight[1], weight[0], parameters)


def _wrong(path: Path, name: str, value: object) -> LocalspecError:
    return LocalspecError(
        f"{path / 'config.json'} says {name} = {str(value)[:80]}, which is not possible; fetch it again."
    )
