"""The metadata of a GGUF file as the config.json of the family that it is of."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.gguf.file import Value
from localspec.models.default_sampling import NAME
from localspec.models.model_config import ModelConfig

FAMILIES = {
    "llama": ("LlamaForCausalLM", "llama"),  # Mistral's files call themselves so, too
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
}  # by general.architecture: the class that computes it, and its model_type
_WINDOWED = ("MistralForCausalLM", "mistral")  # what a llama with a window is
_NEUTRAL = {
    "expert_count": 0, "attention.scale": 0, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0, "logit_scale": 1,
    "residual_scale": 1, "embedding_scale": 1, "attn_logit_softcapping": 0, "final_logit_softcapping": 0,
}  # fmt: skip
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
ENDS = ("eos", "eot", "eom")  # tokens that end a reply


class Metadata:
    """Values by key, of the type that they must have. Its methods raise ValueError, with a clause."""

    def __init__(self, values: Mapping[str, Value], name: str = "") -> None:
        """`name` is that of the file that they are from, for sentences."""
        self.values, self.file = values, f"GGUF file {name}".rstrip()

    def text(self, key: str) -> str | None:
        found: str | None = self._of(key, (str,))
        return found

    def number(self, key: str) -> Any:
        """A number, or None; of an array of the same numbers, one for each layer, that one."""
        value: Any = self.values.get(key)
        if isinstance(value, np.ndarray):
            several = set(value.tolist())
            if len(several) != 1:
                raise ValueError(f"{key} differs from layer to layer")
            value = several.pop()
        if isinstance(value, bool):
            raise ValueError(f"{key} = {value} is no number")
        return self._of(key, (int, float), value)

    def flag(self, key: str) -> bool | None:
        found: bool | None = self._of(key, (bool,))
        return found

    def texts(self, key: str) -> list[str] | None:
        found: list[str] | None = self._of(key, (list,))
        return found

    def numbers(self, key: str) -> list[Any] | None:
        found: npt.NDArray[Any] | None = self._of(key, (np.ndarray,))
        return None if found is None else found.tolist()

    def _of(self, key: str, kinds: tuple[type, ...], *given: Any) -> Any:
        value = given[0] if given else self.values.get(key)
        if value is not None and not isinstance(value, kinds):
            raise ValueError(f"{key} = {str(value)[:40]!r} is not possible")
        return value


def architecture(metadata: Metadata) -> str:
    """The architecture that a file names. Raises LocalspecError for one that localspec does not compute."""
    named = metadata.text("general.architecture")
    if named not in FAMILIES:
        what = f"is of the architecture {named[:80]!r}" if named else "names no architecture"
        raise LocalspecError(
            f"The {metadata.file} {what}, which localspec does not read from GGUF; it reads {', '.join(FAMILIES)}."
        )
    return named


def config(
    metadata: Metadata, shapes: Mapping[str, Sequence[int]], factors: Callable[[str], list[float]]
) -> dict[str, Any]:
    """The content of a config.json, by the metadata and the shapes of the tensors.

    `factors` reads a small tensor by its name. Raises ValueError, with a clause, for what is missing or not possible,
    and LocalspecError for what localspec does not compute.
    """
    named = architecture(metadata)

    def number(key: str) -> Any:
        return metadata.number(f"{named}.{key}")

    for key, neutral in _NEUTRAL.items():
        if number(key) not in (None, neutral):
            raise LocalspecError(
                f"The {metadata.file} sets {named}.{key} = {number(key)}, which localspec does not compute; choose "
                "another."
            )
    window = number("attention.sliding_window") or None
    class_name, model_type = _WINDOWED if named == "llama" and window else FAMILIES[named]
    hidden, heads = number("embedding_length"), number("attention.head_count")
    if not (type(hidden) is int and type(heads) is int and heads > 0):
        raise ValueError(f"{named}.embedding_length = {hidden} and {named}.attention.head_count = {heads}")
    head_dim = number("attention.key_length") or hidden // heads
    if (values := number("attention.value_length")) not in (None, head_dim):
        raise ValueError(f"keys have {head_dim} channels and values {values}")
    content = {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "vocab_size": shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else None,
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": named in ("llama", "qwen3") and "blk.0.attn_output.bias" in shapes,
        "mlp_bias": named == "llama" and "blk.0.ffn_down.bias" in shapes,
        "sliding_window": window if model_type in ("mistral", "phi3") else None,
        "rope_parameters": _rotation(named, head_dim, number, metadata, shapes, factors),
        "bos_token_id": metadata.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.number("tokenizer.ggml.eos_token_id"),
    }
    if named == "phi3":
        original = content["rope_parameters"].get("original_max_position_embeddings")
        content["original_max_position_embeddings"] = original or content["max_position_embeddings"]
    if missing := [key for key in ("intermediate_size", "num_hidden_layers", "vocab_size", "max_position_embeddings",
                                   "rms_norm_eps") if content[key] is None]:  # fmt: skip
        raise ValueError(f"it does not say its {missing[0]}")
    return content


def _rotation(
    named: str,
    head_dim: int,
    number: Callable[[str], Any],
    metadata: Metadata,
    shapes: Mapping[str, Sequence[int]],
    factors: Callable[[str], list[float]],
) -> dict[str, Any]:
    """How positions are rotated: rope_parameters."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": number("rope.freq_base") or 10000.0}
    rotated = number("rope.dimension_count") or head_dim
    if rotated != head_dim:
        if named != "phi3":
            raise LocalspecError(
                f"The {metadata.file} rotates {rotated} of the {head_dim} channels of a head, which localspec computes "
                "for phi3 alone; choose another."
            )
        rope["partial_rotary_factor"] = rotated / head_dim
    kind = metadata.text(f"{named}.rope.scaling.type") or "none"
    original = number("rope.scaling.original_context_length") or number("context_length")
    if "rope_freqs.weight" in shapes:  # what llama3 makes of its frequencies, channel by channel
        each = factors("rope_freqs.weight")
        return {**rope, "rope_type": "longrope", "short_factor": each, "long_factor": each, "attention_factor": 1.0,
                "original_max_position_embeddings": number("context_length")}  # fmt: skip
    if "rope_factors_long.weight" in shapes and "rope_factors_short.weight" in shapes:
        return {
            **rope, "rope_type": "longrope", "original_max_position_embeddings": original,
            "long_factor": factors("rope_factors_long.weight"), "short_factor": factors("rope_factors_short.weight"),
            "attention_factor": number("rope.scaling.attn_factor") or 1.0,
        }  # fmt: skip
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise LocalspecError(
            f"The {metadata.file} scales its positions by {kind[:40]!r}, which localspec does not know."
        )
    rope |= {"rope_type": kind, "factor": number("rope.scaling.factor") or 1.0}
    return rope if kind == "linear" else {**rope, "original_max_position_embeddings": original}


def differences(one: ModelConfig, other: ModelConfig) -> str:
    """In what two configurations are those of different models, in a clause; empty where they may be of the same.

    Contexts and what a tokenizer says may differ, and numbers by as much as fp32 rounds them.
    """
    family = {"mistral": "llama"}
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "rms_norm_eps",
    )  # fmt: skip
    pairs: list[tuple[str, Any, Any]] = [(name, getattr(one, name), getattr(other, name)) for name in names]
    pairs += [("rope_theta", one.rope_parameters["rope_theta"], other.rope_parameters["rope_theta"])]
    families = [family.get(config.model_type, config.model_type) for config in (one, other)]
    if families[0] != families[1]:
        return f"{one.model_type} and {other.model_type}"
    different = (f"{name} = {a} and {b}" for name, a, b in pairs if not math.isclose(a, b, rel_tol=1e-5))
    return next(different, "")


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Return the content of a generation_config.json: which tokens end a reply, and how the model samples."""
    ends = [metadata.number(f"tokenizer.ggml.{name}_token_id") for name in ENDS]
    said = {theirs: metadata.number(f"general.sampling.{name}") for name, theirs in _SAMPLING.items()}
    said[NAME] = " ".join(filter(None, map(metadata.text, ("general.basename", "general.name")))) or None
    known = {name: value for name, value in said.items() if value is not None}
    return {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)), **known}
