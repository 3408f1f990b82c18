"""Reads a model's config.json, the contexts that it allows, and generation_config.json."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from localspec.checkpoint import Checkpoint
from localspec.errors import LocalspecError, first_line


def read_config(checkpoint: Checkpoint) -> PretrainedConfig:
    """Reads config.json as its Hugging Face class. Raises LocalspecError for one that is not usable or not possible."""
    if packed := checkpoint.config.get("quantization_config"):
        method = packed.get("quant_method", "unknown") if isinstance(packed, dict) else packed
        raise LocalspecError(
            f"The weights in {checkpoint.path} are packed ({method}), which localspec does not read; "
            "use the model's bf16 or fp16 weights."
        )
    try:
        config: PretrainedConfig = CONFIG_MAPPING[checkpoint.config["model_type"]].from_dict(checkpoint.config)
    except Exception as error:  # config classes raise their own validation errors, of many kinds
        raise LocalspecError(
            f"The config.json in {checkpoint.path} is not usable ({first_line(error)}); fetch the model again."
        ) from error
    if "rope_type" not in config.rope_parameters:
        raise LocalspecError(
            f"The rope_parameters in {checkpoint.path / 'config.json'} are not of one kind for all layers, which "
            "localspec cannot serve; choose another model."
        )
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"):
        if getattr(config, name) < 1:
            raise LocalspecError(
                f"{name} = {getattr(config, name)} in {checkpoint.path / 'config.json'} is not possible; "
                "fetch the model again."
            )
    least = config.vocab_size * config.hidden_size + config.num_hidden_layers * 4 * config.hidden_size
    if least > checkpoint.parameters:  # said before anything is built for layers that do not exist
        raise LocalspecError(
            f"{checkpoint.path / 'config.json'} promises {config.num_hidden_layers} layers and a vocabulary of "
            f"{config.vocab_size}, more than the {checkpoint.parameters} weights there are; fetch the model again."
        )
    return config


def contexts(config: PretrainedConfig) -> tuple[int, int]:
    """Returns (the model's own context, the longest that it can be given), in tokens."""
    limit, rope = int(config.max_position_embeddings), config.rope_parameters
    if rope["rope_type"] == "longrope":  # two sets of factors: the short one is what the model was mostly trained with
        return min(int(rope["original_max_position_embeddings"]), limit), limit
    if rope["rope_type"] == "dynamic":
        return limit, int(limit * rope["factor"])
    return limit, limit


_SAMPLING: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value < float("inf"),
    "top_k": lambda value: value >= 0 and int(value) == value,
    "top_p": lambda value: 0 < value <= 1,
    "min_p": lambda value: 0 <= value <= 1,
}


def read_generation_config(path: Path) -> Mapping[str, Any]:
    """Reads generation_config.json, {} where there is none. Raises LocalspecError for values that are not possible."""
    try:
        content = json.loads((path / "generation_config.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise LocalspecError(
            f"{path / 'generation_config.json'} cannot be read ({first_line(error)}); fetch the model again."
        ) from error
    content = content if isinstance(content, dict) else {}
    for name, possible in _SAMPLING.items():
        value = content.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and possible(value)):
            raise LocalspecError(
                f"{name} = {value!r} in {path / 'generation_config.json'} is not possible; correct it, "
                "or fetch the model again."
            )
    return content
