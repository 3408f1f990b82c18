"""Converts published DFlash and DSpark drafters into localspec's form: their tensors, and the options in config.json.

The layouts, by kind, trainer, names of tensors, and keys in config.json:

    DFlash   Z Lab       layers.N.{…} fc hidden_norm norm      a Qwen3's config with dflash_config and block_size
    DSpark   DeepSpec    the same, markov_head confidence_head embed_tokens lm_head     the same keys in one table
    DSpark   SpecForge   DSpark's tensors                      DFlash's config with projector_type = dspark

DSpark files repeat the target's embedding and head unchanged, so these copies are skipped. A drafter that DeepSpec
calls DFlash is read as a DSpark drafter without Markov and confidence heads. The layouts come from the trainers' code,
not from published files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.drafters import dflash, dspark
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.nn.target import Target
from localspec.published_heads import DSPARK, kind_of_heads
from localspec.training.published_files import LAYER_KEYS, fitted, tensors_in
from localspec.training.trainable import ConvertedDrafter
from localspec.weights.checkpoint import read_config

_LAYER_KEYS = (
    *LAYER_KEYS, "attention_bias", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
)  # fmt: skip
_OURS = {  # keys of dflash_config, or of config.json around it
    "block_size": "block", "mask_token_id": "mask", "input_embedding_scale": "scale", "output_multiplier": "multiplier",
    "final_logit_softcapping": "cap",
}  # fmt: skip
_DSPARK = {  # additional keys of DSpark, ours, and their only supported values
    "markov_rank": "rank", "enable_confidence_head": "", "confidence_head_with_markov": "", "markov_head_type": "",
    "confidence_head_alpha": "", "num_anchors": "", "projector_type": "", "attention_mode": "",
    "sample_from_anchor": "",
}  # fmt: skip
_ONLY: dict[str, tuple[Any, ...]] = {
    "markov_head_type": ("vanilla",), "projector_type": (DSPARK,), "attention_mode": ("gqa", "mha"),
    "sample_from_anchor": (True,),
}  # fmt: skip
_CAUSAL = {None: "windows", True: "all", False: "none"}
_NAMES = {  # by our names, if they differ
    "embedding": ("markov_head.markov_w1.weight",), "markov.weight": ("markov_head.markov_w2.weight",),
    **{f"confidence.{part}": (f"confidence_head.proj.{part}",) for part in ("weight", "bias")},
}  # fmt: skip
_CALLED = {"dflash": "DFlash", DSPARK: "DSpark"}


def read_published(path: Path, target: Target) -> ConvertedDrafter:
    """Return the drafter in the directory `path`, converted for this target model. Its numbers keep their precision.

    Raises NotHere if there is no drafter. Raises LocalspecError for another model's drafter, an unsupported form and
    damaged files.
    """
    config = read_config(path)
    kind = kind_of_heads(config)
    if kind not in _CALLED:
        raise NotHere(
            f"{path / 'config.json'} does not describe a DFlash or DSpark drafter; give the directory of one."
        )
    class_ = dspark.Drafter if kind == DSPARK else dflash.Drafter
    try:
        options = class_.parse_options(_options(config, target, path, kind))
        expected = class_.tensor_specs(target, options)
    except UsageMistake as mistake:
        raise LocalspecError(f"The {_CALLED[kind]} drafter in {path} cannot be used: {mistake}") from None
    stored = {name.removeprefix("model."): tensor for name, tensor in tensors_in(path).items()}
    if "confidence.weight" in expected and "confidence_head.proj.weight" in stored:  # some have no bias
        stored.setdefault("confidence_head.proj.bias", stored["confidence_head.proj.weight"].new_zeros(1))
    ignored = "rotary_emb" if kind == "dflash" else r"rotary_emb|^(embed_tokens|lm_head)\.weight$"
    return ConvertedDrafter(
        kind, options, fitted(expected, stored, _NAMES, f"the {_CALLED[kind]} drafter", path, ignored)
    )


def _options(config: Mapping[str, Any], target: Target, path: Path, kind: str) -> dict[str, Any]:
    """Return the options in config.json. Raises LocalspecError for unsupported values, UsageMistake for impossible
    ones."""
    inner = config.get("dflash_config")
    inner = inner if isinstance(inner, dict) else {}
    names = {**_OURS, **(_DSPARK if kind == DSPARK else {}), "target_layer_ids": ""}
    entry: dict[str, Any] = {**{name: config[name] for name in names if name in config}, **inner}
    only = {name: values for name, values in _ONLY.items() if name in entry and name in names}
    if unknown := sorted((entry.keys() - names) | {name for name, values in only.items() if entry[name] not in values}):
        raise LocalspecError(
            f"dflash_config in {path / 'config.json'} says {unknown[0]} = {str(entry[unknown[0]])[:60]}, which "
            "localspec does not compute; use another drafter."
        )
    layers, places = config.get("num_target_layers"), entry.pop("target_layer_ids", None)
    num_layers = target.transformer.config.num_layers
    if layers is not None and layers != num_layers:
        raise UsageMistake(
            f"the drafter was made for a model of {layers!r} layers, but this model has {num_layers}; name the model "
            "that it was made for."
        )
    least = -1 if kind == DSPARK else 0  # the embedding
    if not isinstance(places, list) or not all(type(place) is int and place >= least for place in places):
        raise LocalspecError(
            f"target_layer_ids in {path / 'config.json'} must be numbers of layers; fetch the drafter again."
        )
    causal = config.get("is_causal")
    if causal is not None and not isinstance(causal, bool):
        raise LocalspecError(
            f"{path / 'config.json'} says is_causal = {causal!r}, which is not true or false; fetch it again."
        )
    described = {name: config[name] for name in _LAYER_KEYS if config.get(name) is not None}
    described |= {"model_type": config.get("model_type", "qwen3")}
    options = {names[name]: value for name, value in entry.items() if value is not None and names[name]}
    if "mask" not in options:
        raise LocalspecError(f"{path / 'config.json'} names no mask_token_id; fetch the drafter again.")
    if kind == DSPARK:  # its rows all see each other
        has, both = entry.get("enable_confidence_head", False), entry.get("confidence_head_with_markov", False)
        options |= {"confidence": ("both" if both else "state") if has else "none", "rank": options.get("rank", 0)}
        causal = bool(causal)
    # These files number states by the layers that they leave; ours are numbered as Hugging Face's list, which starts
    # with the embedding.
    options |= {"config": json.dumps(described, sort_keys=True), "causal": _CAUSAL[causal]}
    return options | {"states": ",".join(str(place + 1) for place in places)}
