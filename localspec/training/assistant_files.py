"""Converts published assistants of Gemma 4 (small draft models) into localspec's drafters.

The layout, by file, names of tensors, and what config.json has:

    Google   model.safetensors   model.layers.N.{…} model.norm model.embed_tokens pre_projection post_projection
             small assistants    masked_embedding.{centroids,token_ordering}    text_config, and other keys

The embedding is also the head. The names come from the code of transformers (`gemma4_assistant`), not from a published
file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.drafters.assistant import AssistantOptions, Drafter, layers_of
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.families.architecture import weight_map
from localspec.nn.target import Target
from localspec.published_heads import ASSISTANT, kind_of_heads
from localspec.training.published_files import fitted, tensors_in
from localspec.training.trainable import ConvertedDrafter
from localspec.weights.checkpoint import read_config

_NAMES = {  # by our names
    "before.weight": ("pre_projection.weight",), "after.weight": ("post_projection.weight",),
    "centroids.weight": ("masked_embedding.centroids.weight",), "members": ("masked_embedding.token_ordering",),
}  # fmt: skip


def read_published(path: Path, target: Target) -> ConvertedDrafter:
    """Return the assistant in the directory `path`, converted for this target model. Its numbers keep their precision.

    Raises NotHere if there is no assistant. Raises LocalspecError for an assistant of another model, for unsupported
    options and for damaged files.
    """
    config = read_config(path)
    if kind_of_heads(config) != ASSISTANT:
        raise NotHere(f"{path / 'config.json'} does not describe an assistant of Gemma 4; give the directory of one.")
    shape = target.transformer.config
    try:
        options = _options(config, shape.hidden_size)
        sizes, _ = layers_of(options, shape, target.context)
        expected = Drafter.tensor_specs(target, options)
    except UsageMistake as mistake:
        raise LocalspecError(f"The assistant in {path} cannot be used: {mistake}") from None
    stored = tensors_in(path, _NAMES["members"])
    if "lm_head.weight" in stored:  # the head and the embedding are one matrix
        stored.pop("model.embed_tokens.weight", None)
    head = ("lm_head.weight" if "lm_head.weight" in stored else "model.embed_tokens.weight",)
    layers = {name: [part for part, _ in parts] for name, parts in weight_map(sizes).items()}
    tensors = fitted(expected, stored, {**layers, **_NAMES, "head.weight": head}, "the assistant", path)
    if "members" in tensors:
        tensors["members"] = tensors["members"].long()
    return ConvertedDrafter(Drafter.kind, options, tensors)


def _options(config: Mapping[str, Any], hidden_size: int) -> AssistantOptions:
    """Return the options that config.json states. Raises UsageMistake if they are impossible or another model's."""
    text, backbone = config.get("text_config"), config.get("backbone_hidden_size")
    if not isinstance(text, dict):
        raise UsageMistake("config.json has no text_config; fetch the drafter again.")
    if backbone != hidden_size:
        raise UsageMistake(
            f"the assistant was made for a model of {backbone!r} channels, but this model has {hidden_size}; name "
            "the model that it was made for."
        )
    ordered = config.get("use_ordered_embeddings", False) is True
    values = {
        "config": json.dumps({**text, "num_kv_shared_layers": 0}, sort_keys=True),
        "clusters": config.get("num_centroids", 2048) if ordered else 0,
        "nearest": config.get("centroid_intermediate_top_k", 32) if ordered else 0,
    }
    options = Drafter.parse_options(values)
    assert isinstance(options, AssistantOptions)
    return options
