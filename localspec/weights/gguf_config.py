"""Converts the metadata of a GGUF file into a Hugging Face config.json."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.errors import LocalspecError
from localspec.families.family import Family, Gguf, GgufFile
from localspec.families.generation_config import NAME, possible
from localspec.families.model_config import ModelConfig
from localspec.families.table import FAMILIES, OF_GGUF
from localspec.published_heads import why_not_in_gguf
from localspec.weights.gguf_metadata import Metadata, check, in_short, left_out
from localspec.weights.gguf_tokens import ends

_LONG_AND_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")
_BY_CHANNEL = ("rope_freqs.weight", *_LONG_AND_SHORT)
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def architecture(metadata: Metadata) -> Gguf:
    """Return how GGUF files of the model's family are built. Raises LocalspecError for an unsupported family."""
    description = _family(metadata).gguf
    assert description is not None
    return description


def _family(metadata: Metadata) -> Family:
    name = metadata.text("general.architecture") or ""
    if name not in OF_GGUF:
        if drafter := why_not_in_gguf(name):
            raise LocalspecError(f"The {metadata.file} is {drafter}.")
        if not name:
            raise LocalspecError(f"The {metadata.file} names no architecture; fetch it again, or choose another file.")
        raise LocalspecError(
            f"The {metadata.file} is of the architecture {name[:80]!r}, which localspec does not read from GGUF; "
            f"choose a model of one of these: {', '.join(OF_GGUF)}."
        )
    return OF_GGUF[name]


def config(
    metadata: Metadata, shapes: Mapping[str, Sequence[int]], factors: Callable[[str], list[float]]
) -> dict[str, Any]:
    """Return the content of a config.json, made from the metadata of a GGUF file and the shapes of its tensors.

    `factors` returns the numbers of a vector such as rope_freqs.weight. Raises ValueError for missing or impossible
    values, with a message that is not a whole sentence. Raises LocalspecError for anything unsupported.
    """
    family, form = _family(metadata), architecture(metadata)
    name = form.architecture
    file = GgufFile(
        shapes, lambda key: metadata.number(f"{name}.{key}"), lambda key: metadata.by_layer(f"{name}.{key}"), factors
    )
    check(metadata, form.architecture, form.keys)

    def number(key: str) -> Any:
        return None if key in form.left_to_config else file.number(key)

    window, context = number("attention.sliding_window") or None, number("context_length")
    if window and context and window >= context:
        window = None
    if window and not form.windows:  # the converter writes it for no other family, and llama.cpp ignores it
        windowed = ", ".join(name for name, other in OF_GGUF.items() if other.gguf and other.gguf.windows)
        raise LocalspecError(
            f"The {metadata.file} sets {form.architecture}.attention.sliding_window = {window}, which localspec "
            f"supports only for the architectures {windowed}; choose another file."
        )
    hidden, heads = number("embedding_length"), number("attention.head_count")
    if hidden is None or heads is None:
        key = "embedding_length" if hidden is None else "attention.head_count"
        raise ValueError(f"the file has no value for {form.architecture}.{key}")
    head_dim = number("attention.key_length") or hidden // heads
    if (value_dim := number("attention.value_length")) not in (None, head_dim):
        raise ValueError(
            f"keys have {head_dim} channels but values have {value_dim}, and localspec needs equal numbers"
        )
    content = {
        "architectures": [next(iter(family.classes))],
        "model_type": family.model_type,
        "hidden_size": hidden,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "vocab_size": shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else None,
        "max_position_embeddings": context,
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_output.bias" in shapes,
        "mlp_bias": "blk.0.ffn_down.bias" in shapes,
        "sliding_window": window,
        "rope_parameters": _rotation(family, form, metadata, file, head_dim, number),
        "bos_token_id": metadata.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.number("tokenizer.ggml.eos_token_id"),
    }
    _need(content, _NEEDED if "feed_forward_length" not in form.left_to_config else _NEEDED[1:])
    content |= form.config(content, file)
    _need(content, _NEEDED)
    return content


_NEEDED = ("intermediate_size", "num_hidden_layers", "vocab_size", "max_position_embeddings", "rms_norm_eps")


def _need(content: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise ValueError if one of the keys has no value. The message is not a whole sentence."""
    if missing := next((key for key in keys if content[key] is None), None):
        raise ValueError(f"the file has no value for {missing}")


def _rotation(
    family: Family, form: Gguf, metadata: Metadata, file: GgufFile, head_dim: int, number: Callable[[str], Any]
) -> dict[str, Any]:
    """Return rope_parameters, the entry of config.json for rotary position embeddings."""
    shapes = file.shapes
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": number("rope.freq_base") or 10000.0}
    rotated = number("rope.dimension_count") or head_dim
    if rotated != head_dim:
        if not family.partial_rotary:
            partial = ", ".join(name for name, other in OF_GGUF.items() if other.partial_rotary)
            raise LocalspecError(
                f"The {metadata.file} sets {form.architecture}.rope.dimension_count = {rotated} for heads of "
                f"{head_dim} channels, which localspec supports only for the architectures {partial}; choose "
                "another file."
            )
        rope["partial_rotary_factor"] = rotated / head_dim
    kind = (
        metadata.text(f"{form.architecture}.rope.scaling.type") or "linear"
    )  # llama.cpp treats a factor without a type as linear
    factor = number("rope.scaling.factor") or number("rope.scale_linear") or 1.0
    if kind == "none":
        factor = 1.0
    scaling = number("rope.scaling.attn_factor") or 1.0
    context = number("context_length")
    original = number("rope.scaling.original_context_length") or context
    by_channel = [name for name in _BY_CHANNEL if name in shapes]
    if kind == "yarn" and factor != 1:
        if by_channel:
            raise LocalspecError(
                f"The {metadata.file} scales positions both by YaRN and by the tensor {by_channel[0]}, and localspec "
                "does not support both together; choose another file."
            )
        growth = 1 + 0.1 * math.log(max(factor, 1))
        _check_yarn(form, metadata, growth)
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        return rope if scaling == 1 else {**rope, "attention_factor": growth * scaling}

    def divided(name: str) -> list[float]:
        return [value * factor for value in file.factors(name)]

    rope |= {"attention_factor": scaling} if by_channel or scaling != 1 else {}
    if "rope_freqs.weight" in shapes:  # llama3's frequencies, channel by channel
        factors = divided("rope_freqs.weight")
        return {**rope, "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                "original_max_position_embeddings": context}  # fmt: skip
    if len(by_channel) == len(_LONG_AND_SHORT):
        return {
            **rope, "rope_type": "longrope", "original_max_position_embeddings": original,
            "long_factor": divided("rope_factors_long.weight"), "short_factor": divided("rope_factors_short.weight"),
        }  # fmt: skip
    if by_channel:
        (lacking,) = {*_LONG_AND_SHORT} - {*by_channel}
        raise ValueError(f"the file has the tensor {by_channel[0]!r} but not {lacking!r}")
    if scaling != 1:
        factors = [factor] * (rotated // 2)
        return {**rope, "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                "original_max_position_embeddings": context}  # fmt: skip
    return rope if factor == 1 else {**rope, "rope_type": "linear", "factor": factor}


def _check_yarn(form: Gguf, metadata: Metadata, growth: float) -> None:
    """Raise LocalspecError for an unusual YaRN setting that llama.cpp ignores, although the model's own code uses it.

    `growth` is the usual factor by which YaRN scales attention.
    """
    for name, usual in {"ext_factor": (1, -1), "attn_factor": (growth,), "beta_fast": (32,), "beta_slow": (1,),
                        "log_multiplier": (0,)}.items():  # fmt: skip
        key = f"{form.architecture}.rope.scaling.yarn_{name}"
        value = None if f"rope.scaling.yarn_{name}" in form.left_to_config else metadata.number(key)
        if value is not None and not any(math.isclose(value, number, rel_tol=1e-4) for number in usual):
            raise LocalspecError(
                f"The {metadata.file} sets {key} = {in_short(value)}, which localspec does not compute; choose "
                "another file."
            )


def differences(first: ModelConfig, second: ModelConfig) -> str:
    """Return words for a difference between two models' configurations; empty if the models may be the same.

    Differences in contexts, in tokenizer settings or by fp32 rounding do not count.
    """
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "rms_norm_eps",
    )  # fmt: skip
    pairs: list[tuple[str, Any, Any]] = [(name, getattr(first, name), getattr(second, name)) for name in names]
    pairs += [("rope_theta", first.rope_parameters["rope_theta"], second.rope_parameters["rope_theta"])]
    if first.model_type != second.model_type and not _same_in_gguf(first, second):
        return f"model_type = {first.model_type} and {second.model_type}"
    different = (f"{name} = {a} and {b}" for name, a, b in pairs if not math.isclose(a, b, rel_tol=1e-5))
    return next(different, "")


def _same_in_gguf(first: ModelConfig, second: ModelConfig) -> bool:
    """Return whether two models' families use the same GGUF form, or are text parts of one multimodal family."""
    first_family, second_family = (FAMILIES[config.model_type] for config in (first, second))
    larger = ({*family.classes.values(), *family.inside} for family in (first_family, second_family))
    return (first_family.gguf is not None and first_family.gguf is second_family.gguf) or bool(
        set.intersection(*larger)
    )


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Return the content of a generation_config.json: the tokens that end a reply, and the recommended sampling."""
    sampling = {key: _sampled(metadata, name) for name, key in _SAMPLING.items()}
    named = {NAME: " ".join(filter(None, map(metadata.label, ("general.basename", "general.name")))) or None}
    values = {name: value for name, value in {**sampling, **named}.items() if value is not None}
    return {"eos_token_id": ends(metadata), **values}


def _sampled(metadata: Metadata, name: str) -> Any:
    """Return a sampling value that the file recommends; None if it is missing or impossible."""
    value = metadata.values.get(f"general.sampling.{name}")
    if name == "top_k" and type(value) is int and value < 0:
        return 0  # llama.cpp and the Hugging Face code treat less than one token as all
    return value if possible(_SAMPLING[name], value) else None


def ignored_sampling(metadata: Metadata) -> list[str]:
    """Return a sentence for each recommended sampling value that localspec ignores: impossible and unsupported ones."""
    impossible = (f"general.sampling.{name}" for name in _SAMPLING if _sampled(metadata, name) is None)
    return [
        f"{key} = {in_short(metadata.values[key])} is ignored, because it is not possible."
        for key in impossible
        if key in metadata.values
    ] + left_out(metadata)
