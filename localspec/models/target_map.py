"""PARD-2's map from a target's states to inputs of a small model with a mask token: its settings and its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.weights.checkpoint import tensor_headers

WEIGHT, BIAS = "target_proj.weight", "target_proj.bias"
PICKLE, FILE = "warp_model.bin", "warp_model.safetensors"  # the published pickle, and the file that is read
_FLOATS = ("BF16", "F16", "F32")
_SCALES = ("pard2_scale", "pard_scale", "feat_scale")  # the first one in config.json counts


@dataclass(frozen=True)
class TargetMap:
    """A linear map to inputs of a small model. A token with embedding e gets the input e + `scale` · (W s + b).

    s [states] concatenates the target's hidden states after each of `layers`, one position earlier. Layers are indices
    of Hugging Face's hidden_states; negative ones count from the end. W [hidden_size, states] and b are in `file`.
    """

    layers: tuple[int, ...]
    scale: float
    file: Path
    has_bias: bool
    states: int  # channels of s
    hidden_size: int  # of the small model
    parameters: int

    def for_target(self, num_layers: int, hidden_size: int) -> tuple[int, ...]:
        """Return `layers` as non-negative indices, for a target with `num_layers` layers and `hidden_size` channels.

        Raises UsageMistake if the map is for another target.
        """
        places = tuple(layer + num_layers + 1 if layer < 0 else layer for layer in self.layers)
        if any(not 0 <= place <= num_layers for place in places) or self.states != len(places) * hidden_size:
            raise UsageMistake(
                f"The small model in {self.file.parent} needs a target whose states {', '.join(map(str, self.layers))} "
                f"have {self.states} channels in total, but this model has {num_layers} layers of {hidden_size} "
                "channels; name the model that it was made for."
            )
        return places


def target_map(config: Mapping[str, Any], path: Path) -> TargetMap | None:
    """Return the map of the target's states that a drafter's config.json describes; None without a map.

    Raises NotHere if the map's file in `path` is missing, and LocalspecError for invalid content.
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
        remedy = "fetch it again"
        if (path / PICKLE).is_file():
            remedy = (
                f"{path / PICKLE} is a pickle, which may run code when it is read. To convert it, run "
                'this in its directory: python -c "import torch, safetensors.torch as s; '
                f"s.save_file(torch.load('{PICKLE}', weights_only=True), '{FILE}')\""
            )
        raise NotHere(f"{path} lacks {FILE}, through which the drafter reads the target's states; {remedy}.")
    headers = tensor_headers(file)
    shapes = {name: tuple(headers[name]["shape"]) for name in (WEIGHT, BIAS) if name in headers}
    if others := [headers[name]["dtype"] for name in shapes if headers[name]["dtype"] not in _FLOATS]:
        raise LocalspecError(
            f"{file} has weights of the type {others[0]} instead of {', '.join(_FLOATS)}; use another drafter."
        )
    weight = shapes.get(WEIGHT, ())
    has_bias = bool(config.get("pard2_proj_bias", config.get("proj_bias", False))) and BIAS in shapes
    fits = len(weight) == 2 and weight[0] == config.get("hidden_size") and shapes.get(BIAS, weight[:1]) == weight[:1]
    if not fits or weight[1] != config.get("pard2_target_dim", weight[1]):
        width, channels = config.get("hidden_size"), config.get("pard2_target_dim", "not given")
        tensors = ", ".join(f"{name} of shape {list(shape)}" for name, shape in shapes.items()) or f"no {WEIGHT}"
        raise LocalspecError(
            f"{file} does not fit its config.json: hidden_size is {width} and pard2_target_dim is {channels}, but the "
            f"file has {tensors}; fetch it again."
        )
    parameters = weight[0] * weight[1] + (weight[0] if has_bias else 0)
    return TargetMap(tuple(layers), float(scale), file, has_bias, weight[1], weight[0], parameters)


def _wrong(path: Path, name: str, value: object) -> LocalspecError:
    return LocalspecError(
        f"{path / 'config.json'} says {name} = {str(value)[:80]}, which is not possible; fetch it again."
    )
