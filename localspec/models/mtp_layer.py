"""The layer of a model that predicts a token further ahead (MTP), as config.json and the headers of its files tell."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, NotHere
from localspec.families.supported import text_config
from localspec.weights.checkpoint import is_packed, read_config, tensor_headers, weight_files

MTP = "mtp"  # the kind of drafter that it is
PREFIX = "mtp."  # of its tensors, which are beside those of the model
OURS: Mapping[str, str] = {  # what is before the layer itself
    "fc.weight": PREFIX + "fc.weight",
    "embedding_norm": PREFIX + "pre_fc_norm_embedding.weight",
    "state_norm": PREFIX + "pre_fc_norm_hidden.weight",
}
_FAMILY = "qwen3_5_text"


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
    entries = _entries(path)
    if OURS["fc.weight"] not in entries:
        raise NotHere(
            f"The files in {path} hold no layer that predicts further ahead ({PREFIX}*), which models of Qwen3.5 are "
            "published with; fetch them from their publisher, or use another drafter."
        )
    config = text_config(read_config(path))
    if (layers := config.get("mtp_num_hidden_layers", 1)) != 1 or config.get("mtp_use_dedicated_embeddings"):
        what = "an embedding of its own" if layers == 1 else f"mtp_num_hidden_layers = {layers!r}"
        raise LocalspecError(
            f"{path / 'config.json'} describes an MTP layer with {what}, and localspec computes a single one that "
            "shares the model's; use another drafter."
        )
    shapes = [entry["shape"] for entry in entries.values()]
    offsets = [entry["data_offsets"] for entry in entries.values()]
    return MtpLayer(
        sum(map(math.prod, shapes)),
        sum(math.prod(shape) for shape in shapes if len(shape) < 2),
        sum(last - first for first, last in offsets),
    )


def _entries(path: Path) -> dict[str, Any]:
    """What headers say of its tensors, by name; a packed file holds none of them."""
    if is_packed(path) or text_config(read_config(path)).get("model_type") != _FAMILY:
        return {}
    found: dict[str, Any] = {}
    for file in weight_files(path):
        found |= {name: one for name, one in tensor_headers(file).items() if name.startswith(PREFIX)}
    return found
