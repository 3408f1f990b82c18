"""The layer in a model's files that predicts a token further ahead (MTP): its sizes and its tensors."""

from dataclasses import replace

from localspec.families.architecture import TransformerConfig, in_features, named_parts, parameter_rows
from localspec.families.family import Names
from localspec.families.table import FAMILIES

BEFORE = ("embedding_norm", "state_norm", "fc.weight")  # our parameters that are before the layer itself


def ahead_config(target: TransformerConfig) -> TransformerConfig:
    """Return the sizes of the MTP layer: the target's, with attention to the whole text."""
    return replace(target, vocab_size=0, tied=True, sliding_windows=(None,), delta=None)


def ahead_map(target: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Return the safetensors tensors that make up each parameter of the MTP layer, with the rows of each."""
    family = FAMILIES[target.family]
    return _named(target, {**family.tensors, **family.ahead}, "mtp.layers.0.")


def ahead_gguf_map(target: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Return the GGUF tensors that make up each parameter of the MTP layer, with the rows of each."""
    of_family = FAMILIES[target.family].gguf
    assert of_family is not None
    prefix = f"blk.{target.num_layers}."
    ahead = {ours: tuple(prefix + name for name in theirs) for ours, theirs in of_family.ahead.items()}
    return _named(target, {**of_family.tensors, **ahead}, prefix)


def _named(target: TransformerConfig, names: Names, prefix: str) -> dict[str, list[tuple[str, int]]]:
    rows = {name: parts for name, parts in parameter_rows(ahead_config(target)).items() if name != "embed_tokens"}
    experts = target.experts.count if target.experts else 0
    return named_parts({**rows, **{name: [target.hidden_size] for name in BEFORE}}, names, prefix, experts)


def ahead_features(name: str, target: TransformerConfig) -> int | None:
    """Return the number of columns of a parameter of the MTP layer; None for a vector."""
    return 2 * target.hidden_size if name == "fc.weight" else in_features(name, ahead_config(target))
