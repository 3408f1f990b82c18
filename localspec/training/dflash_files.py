"""Converts published DFlash drafters to one of ours: the same tensors, and what config.json says of them as options.

    model.safetensors    layers.N.{…}  fc  hidden_norm  norm    a Qwen3's config with dflash_config and block_size

Neither an embedding nor a head is among them: those are the target's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from localspec.drafters.dflash import DFlashOptions, Drafter
from localspec.drafters.tensors import TensorSpec
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.nn.target import Target
from localspec.published_heads import is_dflash
from localspec.training.published_files import Tensors, check_numbers, convert_published, read_tensors
from localspec.weights.checkpoint import read_config, weight_files

_LAYER_KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "num_hidden_layers", "attention_bias", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
)  # fmt: skip
_OURS = {  # what dflash_config may say, or config.json beside it
    "block_size": "block", "mask_token_id": "mask", "input_embedding_scale": "scale", "output_multiplier": "multiplier",
    "final_logit_softcapping": "cap",
}  # fmt: skip
_CAUSAL = {None: "windows", True: "all", False: "none"}


@dataclass(frozen=True)
class Published:
    """A drafter as it is written: the tensors keep their names."""

    kind: ClassVar[str] = Drafter.kind
    options: DFlashOptions
    found: Tensors

    def tensors(self) -> Tensors:
        """The tensors by name."""
        return self.found


def convert(path: Path, model: Path, directory: Path, about: Mapping[str, Any]) -> None:
    """Writes the drafter of a directory to directory/drafter, for the model in `model`, of which only shapes are read.

    `about` is what `convert_published` takes. Raises what `read_published` and `convert_published` do.
    """
    convert_published(model, directory, about, lambda target: read_published(path, target))


def read_published(path: Path, target: Target) -> Published:
    """Returns the drafter in a directory for this target, in the precision of its files.

    Raises NotHere where there is none, LocalspecError for one of another model or of a form that is not computed here,
    and damaged files.
    """
    config = read_config(path)
    if not is_dflash(config):
        raise NotHere(f"{path / 'config.json'} is of no DFlash drafter; give a directory that holds one.")
    try:
        options = _options(config, target, path)
        expected = Drafter.tensor_specs(target, options)
    except UsageMistake as mistake:
        raise LocalspecError(f"The DFlash drafter in {path} cannot be used: {mistake}") from None
    tensors: dict[str, Any] = {}
    for file in weight_files(path):
        tensors |= {name.removeprefix("model."): one for name, one in read_tensors(file).items()}
    check_numbers(tensors, path)
    for name, spec in expected.items():
        _check(name, spec, tensors, path)
    if others := sorted(name for name in tensors.keys() - expected.keys() if "rotary_emb" not in name):
        raise LocalspecError(
            f"'{others[0]}' in {path} is no part of DFlash's layers, so it would draft otherwise than it was trained; "
            "use another drafter."
        )
    return Published(options, {name: tensors[name] for name in expected})


def _check(name: str, spec: TensorSpec, tensors: Tensors, path: Path) -> None:
    found = tensors.get(name)
    if found is None or tuple(found.shape) != spec.shape:
        has = "is not there" if found is None else f"has the shape {[*found.shape]}"
        raise LocalspecError(
            f"'{name}' of the DFlash drafter in {path} {has} where {[*spec.shape]} belongs; name the model that "
            "it was made for, or fetch it again."
        )


def _options(config: Mapping[str, Any], target: Target, path: Path) -> DFlashOptions:
    """What config.json says. Raises LocalspecError for what is not computed here, UsageMistake for what cannot be."""
    inner = config.get("dflash_config")
    inner = inner if isinstance(inner, dict) else {}
    said: dict[str, Any] = {**{name: config[name] for name in (*_OURS, "target_layer_ids") if name in config}, **inner}
    if unknown := sorted(said.keys() - {*_OURS, "target_layer_ids"}):
        raise LocalspecError(
            f"dflash_config in {path / 'config.json'} says {unknown[0]} = {str(said[unknown[0]])[:60]}, which "
            "localspec does not compute; use another drafter."
        )
    layers, places = config.get("num_target_layers"), said.pop("target_layer_ids", None)
    own = target.transformer.config.num_layers
    if layers is not None and layers != own:
        raise UsageMistake(
            f"it is made for a model of {layers!r} layers, and this one has {own}; name the model that it was made for."
        )
    if not isinstance(places, list) or not all(type(place) is int and place >= 0 for place in places):
        raise LocalspecError(f"target_layer_ids in {path / 'config.json'} are no layers; fetch it again.")
    causal = config.get("is_causal")
    if causal is not None and not isinstance(causal, bool):
        raise LocalspecError(f"{path / 'config.json'} says is_causal = {causal!r}, which is neither; fetch it again.")
    described = {name: config[name] for name in _LAYER_KEYS if config.get(name) is not None}
    described |= {"model_type": config.get("model_type", "qwen3")}
    options = {_OURS[name]: value for name, value in said.items() if value is not None}
    if "mask" not in options:
        raise LocalspecError(f"{path / 'config.json'} names no mask_token_id; fetch it again.")
    # States are counted by the layers that they leave, ours by Hugging Face's list, whose first is the embedding.
    options |= {"config": json.dumps(described, sort_keys=True), "causal": _CAUSAL[causal]}
    options |= {"states": ",".join(str(place + 1) for place in places)}
    return DFlashOptions(**asdict(Drafter.parse_options(options)))
