"""Reads a model's config.json, with the values its family has for what it leaves out."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localspec.errors import LocalspecError, UsageMistake
from localspec.families.delta_net import LINEAR, DeltaNet, of_qwen35
from localspec.families.family_config import (
    ORIGINAL,
    LayerSizes,
    NotComputed,
    by_pattern,
    check,
    number,
    of_gemma4,
    of_granite,
    of_smollm3,
    positive,
    query_growth,
)
from localspec.families.supported import nearest_model, text_config

# As the config classes of the Hugging Face code have them; a family has only the keys that its stock model reads.
_ALL: Mapping[str, Any] = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
    "mlp_bias": False, "sliding_window": None, "use_sliding_window": True, "max_window_layers": 0, "layer_types": None,
    "eos_token_id": None,
}  # fmt: skip
_MOST_POSITIONS = 2**31  # of the library
_QWEN2 = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_key_value_heads": 32,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
_GRANITE = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
    "embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0,
    "eos_token_id": 2,
}  # fmt: skip
_MINISTRAL3_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
        "eos_token_id": 2,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "sliding_window": 4096, "eos_token_id": 2,
    },
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128},
    "phi3": {
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "eos_token_id": 32000, "original_max_position_embeddings": 4096,
    },
    "gemma3_text": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 4096,
        "query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
        "eos_token_id": 1,
    },
    "smollm3": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6,
        "tie_word_embeddings": True, "use_sliding_window": False, "no_rope_layers": None, "no_rope_layer_interval": 4,
        "eos_token_id": 128001,
    },
    "granite": _GRANITE,
    "granitemoehybrid": {
        **_GRANITE, "shared_intermediate_size": 1024, "num_local_experts": 8, "position_embedding_type": None,
    },
    "ministral3": {
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
        "rope_parameters": _MINISTRAL3_ROPE, "eos_token_id": 2,
    },
    "gemma4_text": {
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": None, "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 512,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "attention_k_eq_v": False,
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "enable_moe_block": False,
        "final_logit_softcapping": None, "use_bidirectional_attention": None, "eos_token_id": 1,
    },
    "qwen3_5_text": {
        "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    },
}  # fmt: skip
# Keys of other families, which converted models carry along and the stock model does not read.
_NOT_READ: Mapping[str, tuple[str, ...]] = {
    "llama": ("sliding_window", "use_sliding_window", "layer_types"),
    "mistral": ("attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers", "layer_types"),
    "qwen2": ("attention_bias", "mlp_bias"),
    "qwen3": ("mlp_bias",),
    "phi3": ("attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers", "layer_types"),
    "gemma3_text": ("hidden_act", "mlp_bias", "use_sliding_window", "max_window_layers"),
    "smollm3": ("max_window_layers",),
    "granite": ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    "granitemoehybrid": ("intermediate_size", "mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers"),
    "ministral3": ("attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers", "layer_types"),
    "gemma4_text": ("hidden_act", "mlp_bias", "use_sliding_window", "max_window_layers", "rope_theta", "rope_scaling"),
    "qwen3_5_text": ("mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers"),
}
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings",
)  # fmt: skip
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias")
_SOFT_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")


@dataclass(frozen=True)
class ModelConfig:
    """What a config.json means. Fields are called as its keys; `content` is what it says itself."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    hidden_act: str
    rms_norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    max_window_layers: int
    layer_types: tuple[str, ...] | None
    rope_parameters: Mapping[str, Any]
    local_rope_parameters: Mapping[str, Any] | None  # of layers with a window, where those are rotated otherwise
    query_pre_attn_scalar: float  # 0 where scores are divided by the root of head_dim
    soft_caps: bool
    unrotated: tuple[bool, ...]  # layers whose queries and keys are not rotated; () for none
    embedding_multiplier: float
    residual_multiplier: float
    logits_scaling: float  # logits are divided by it
    layer_sizes: tuple[LayerSizes, ...]  # where layers differ; () where they do not
    per_layer_inputs: tuple[int, int]  # (channels, tokens of the table) of what each layer reads of a token, 0 for none
    logit_cap: float  # logits are bent to stay below it, by tanh; 0 for not
    delta: DeltaNet | None  # of layers with a recurrent state in the place of attention
    query_growth: tuple[float, int] | None  # (b, p): queries at position i are multiplied by 1 + b log(1 + i // p)
    eos_token_id: Any  # whoever ends replies checks it, with those of other files
    content: Mapping[str, Any]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "ModelConfig":
        """Reads the content of a config.json. Raises ValueError, with a clause, for one that is not possible."""
        content = text_config(content)
        family = content.get("model_type")
        if not isinstance(family, str) or family not in _DEFAULTS:
            raise ValueError(f"model_type = {family!r} is not one of {', '.join(_DEFAULTS)}")
        said = {name: value for name, value in content.items() if name not in _NOT_READ[family]}
        found = {**_ALL, **_DEFAULTS[family], **said}
        if found["num_key_value_heads"] is None:
            found["num_key_value_heads"] = found["num_attention_heads"]
        if family == "granitemoehybrid":
            found["intermediate_size"] = found["shared_intermediate_size"]
        for name in _SIZES:
            check(found, name, positive)
        if found["head_dim"] is None:
            found["head_dim"] = found["hidden_size"] // found["num_attention_heads"]
        check(found, "head_dim", positive)
        if found["num_attention_heads"] % found["num_key_value_heads"]:
            raise ValueError(
                f"num_attention_heads = {found['num_attention_heads']} is not a multiple of num_key_value_heads = "
                f"{found['num_key_value_heads']}"
            )
        check(found, "rms_norm_eps", lambda value: number(value) and 0 <= value < 1)
        for name in _SWITCHES:
            check(found, name, lambda value: isinstance(value, bool))
        check(found, "hidden_act", lambda value: isinstance(value, str))
        if not found["use_sliding_window"]:
            found["sliding_window"] = None
        check(found, "sliding_window", lambda value: value is None or (type(value) is int and value >= 0))
        check(found, "max_window_layers", lambda value: type(value) is int)
        check(found, "layer_types", lambda value: value is None or _texts(value, found["num_hidden_layers"]))
        if found["layer_types"] is not None:
            found["layer_types"] = tuple(found["layer_types"])
        found |= {**_NEUTRAL, **(_OWN[family](found) if family in _OWN else {})}
        found["rope_parameters"] = _rope_parameters(found)
        found["query_growth"] = query_growth(found) if family == "ministral3" else None
        found["content"] = dict(content)
        return cls(**{name: found[name] for name in cls.__dataclass_fields__})

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """For each layer how many positions it sees, its own included; None where it sees everything.

        Raises LocalspecError for a kind of layer that is unknown.
        """
        layers, window = range(self.num_hidden_layers), self.sliding_window or None
        types = self.layer_types or [("full", "sliding")[i >= self.max_window_layers] + "_attention" for i in layers]
        known = {"full_attention", "sliding_attention", *([LINEAR] if self.delta else [])}
        if unknown := set(types) - known:
            raise LocalspecError(
                f"The model has layers of type '{unknown.pop()}', which localspec cannot serve; choose another model."
            )
        return tuple(window if layer_type == "sliding_attention" else None for layer_type in types)

    @property
    def contexts(self) -> tuple[int, int]:
        """(the model's own context, the longest that it can be given), in tokens."""
        limit, rope = self.max_position_embeddings, self.rope_parameters
        if rope["rope_type"] == "longrope":  # two sets of factors: the model was mostly trained with the short one
            return min(rope[ORIGINAL], limit), limit
        if rope["rope_type"] == "dynamic":
            return limit, max(limit, int(limit * rope["factor"]))
        return limit, limit

    def context_for(self, asked: int | None) -> int:
        """The context that was asked for, by default the model's own. Raises UsageMistake for one it cannot hold."""
        own, limit = self.contexts
        if asked is not None and asked > limit:
            raise UsageMistake(
                f"A context of {asked} tokens is more than the {limit} this model was made for; "
                f"ask for {limit} or fewer."
            )
        return asked or own


_NEUTRAL: Mapping[str, Any] = {  # where a family says nothing else
    "local_rope_parameters": None, "query_pre_attn_scalar": 0.0, "soft_caps": False, "unrotated": (),
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "layer_sizes": (),
    "per_layer_inputs": (0, 0), "logit_cap": 0.0, "delta": None,
}  # fmt: skip


def _of_gemma3(found: Mapping[str, Any]) -> dict[str, Any]:
    """What Gemma 3 says in its own way: windows by a pattern, a rotation for layers with one and for those without."""
    if found.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention: texts are read from left to right alone here")
    check(found, "query_pre_attn_scalar", lambda value: number(value) and 0 < value < math.inf)
    types = found["layer_types"]
    if types is None:
        check(found, "sliding_window_pattern", positive)
        types = by_pattern(found["num_hidden_layers"], found["sliding_window_pattern"])
    said = {
        "layer_types": types,
        "query_pre_attn_scalar": float(found["query_pre_attn_scalar"]),
        "soft_caps": any(found.get(name) is not None for name in _SOFT_CAPS),
    }
    return said | _two_rotations({**found, **said}, {}, {"rope_theta": found["rope_local_base_freq"]})


def _of_gemma4(found: Mapping[str, Any]) -> dict[str, Any]:
    """What Gemma 4 says: heads and inputs of layers, and rotations as Gemma 3 has them, from other beginnings."""
    said = of_gemma4(found)
    whole = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    return said | _two_rotations({**found, **said}, whole, {"rope_theta": 1e4})


def _two_rotations(
    found: Mapping[str, Any], whole_default: Mapping[str, Any], local_default: Mapping[str, Any]
) -> dict[str, Any]:
    """A rotation for layers without a window and another for those with one; what Gemmas call their activation."""
    check(found, "hidden_activation", lambda value: isinstance(value, str))
    if "sliding_attention" in found["layer_types"]:
        check(found, "sliding_window", positive)
    rotations, scaling = found.get("rope_parameters") or {}, found.get("rope_scaling") or {}
    if not isinstance(rotations, dict) or not isinstance(scaling, dict):
        raise ValueError("the rope_parameters are no table")
    if unknown := rotations.keys() - {"full_attention", "sliding_attention"}:
        raise ValueError(f"the rope_parameters tell of {min(map(str, unknown))!r:.40}, which is no kind of layer")
    whole, local = (
        rotations.get(kind) or {"rope_type": "default", **default}
        for kind, default in (("full_attention", whole_default), ("sliding_attention", {}))
    )
    if not isinstance(whole, dict) or not isinstance(local, dict):
        raise ValueError("the rope_parameters of a kind of layer are no table")
    base = {**found, "rope_scaling": None, **local_default}
    return {
        "hidden_act": found["hidden_activation"],
        "rope_scaling": None,
        "rope_parameters": {**whole, **scaling},
        "local_rope_parameters": _rope_parameters({**base, "rope_parameters": local}),
    }


_OWN: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "gemma3_text": _of_gemma3,
    "gemma4_text": _of_gemma4,
    "smollm3": of_smollm3,
    "granite": of_granite,
    "granitemoehybrid": of_granite,
    "qwen3_5_text": of_qwen35,
}


def with_defaults(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the language model, with what its family leaves out or says in its own way."""
    said = text_config(content)
    if said.get("model_type") == "granitemoehybrid":
        return {**said, "intermediate_size": said.get("shared_intermediate_size")}
    family = str(said.get("model_type"))
    return {**_ALL, **_DEFAULTS[family], **said} if family in ("gemma3_text", "gemma4_text", "qwen3_5_text") else said


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """How positions are rotated, from where files of any age say it."""
    said = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(said, dict) or any(isinstance(value, dict) for value in said.values()):
        raise ValueError("the rope_parameters are not of one kind for all layers, which localspec cannot serve")
    theta, part = config.get("rope_theta"), config.get("partial_rotary_factor")
    rope = {"rope_theta": 10000.0 if theta is None else theta}
    rope |= {} if part is None else {"partial_rotary_factor": part}
    rope |= {name: value for name, value in said.items() if value is not None}
    rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    if config["model_type"] == "phi3" and rope["rope_type"] in ("su", "yarn"):
        rope["rope_type"] = "longrope"
    if rope["rope_type"] in ("llama3", "yarn", "longrope"):
        rope.setdefault(ORIGINAL, config["max_position_embeddings"])
        if config.get(ORIGINAL) is not None:
            rope[ORIGINAL] = config[ORIGINAL]
        check(rope, ORIGINAL, positive, "rope_parameters: ")
    if rope["rope_type"] in ("linear", "dynamic", "llama3"):
        rope.setdefault("factor", None)
    for name in {"rope_theta", "factor", "partial_rotary_factor"} & rope.keys():
        check(rope, name, lambda value: number(value) and 0 < value < math.inf, "rope_parameters: ")
    if rope["rope_type"] == "dynamic":  # the context is multiplied by it
        most = _MOST_POSITIONS / config["max_position_embeddings"]
        check(rope, "factor", lambda value: value < most, "rope_parameters: ")
    return rope


def _texts(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(text, str) for text in value)


def not_computed(error: NotComputed, where: object, architecture: str | None) -> LocalspecError:
    """What is said of a model of a family that is read, in a directory or repository, that is refused all the same."""
    return LocalspecError(f"The model in {where} has {error}; {nearest_model(architecture)}")


def least_parameters(config: ModelConfig) -> int:
    """So many parameters, at least, has a model of these sizes: its embedding and a few rows of each layer."""
    return config.vocab_size * config.hidden_size + config.num_hidden_layers * 4 * config.hidden_size
