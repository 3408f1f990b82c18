"""The layer of a model that predicts a token further ahead (MTP), as config.json and the headers of its files tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, NotHere
from localspec.families.supported import text_config
from localspec.families.table import FAMILIES
from localspec.weights.checkpoint import is_packed, read_config, tensor_headers, weight_files
from localspec.weights.packed_file import read

MTP = "mtp"  # the kind of drafter that it is
PREFIX = "mtp."  # of its tensors in safetensors


@dataclass(frozen=True)
class MtpLayer:
    """Its size: all parameters, those of them that are in no matrix, and bytes as it is stored."""

    parameters: int
    others: int
    bytes: int


def mtp_layer(path: Path) -> MtpLayer:
    """Finds the layer in the files of a model.

    Raises NotHere where there is none, LocalspecError for one that is computed in another way than is known here.
    """
    if is_packed(path):
        return _registered(path)
    config = text_config(read_config(path))
    family = FAMILIES.get(str(config.get("model_type")))
    entries: dict[str, Any] = {}
    for file in weight_files(path) if family and family.ahead else ():
        entries |= {name: one for name, one in tensor_headers(file).items() if name.startswith(PREFIX)}
    if not entries:
        raise _none(path)
    if (layers := config.get("mtp_num_hidden_layers", 1)) != 1 or config.get("mtp_use_dedicated_embeddings"):
        what = "an embedding of its own" if layers == 1 else f"mtp_num_hidden_layers = {layers!r}"
        raise LocalspecError(
            f"{path / 'config.json'} describes an MTP layer with {what}, and localspec computes a single one that "
            "shares the model's; use another drafter."
        )
    shapes = [entry["shape"] for entry in entries.values()]
    offsets = [entry["data_offsets"] for entry in entries.values()]
    return _sum(shapes, sum(last - first for first, last in offsets))


def _registered(path: Path) -> MtpLayer:
    """Return the layer of a model that is read from its GGUF files."""
    parts = [part for some in read(path).header.ahead.values() for part in some]
    if not parts:
        raise _none(path)
    return _sum([part.shape for part in parts], sum(part.bytes for part in parts))


def _sum(shapes: Sequence[Sequence[int]], held: int) -> MtpLayer:
    return MtpLayer(sum(map(math.prod, shapes)), sum(math.prod(shape) for shape in shapes if len(shape) < 2), held)


def _none(path: Path) -> NotHere:
    return NotHere(
        f"The files in {path} hold no layer that predicts further ahead ({PREFIX}*), which models of Qwen3.5 are "
        "published with; fetch them from their publisher, or use another drafter."
    )
