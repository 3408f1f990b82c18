"""Reads a model's config.json, with the family's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.errors import LocalspecError, UsageMistake
from localspec.families.family import (
    LINEAR,
    ORIGINAL,
    DeltaNet,
    LayerSizes,
    MixtureSizes,
    NotComputed,
    check,
    number,
    positive,
    rope_parameters,
)
from localspec.families.table import FAMILIES, nearest_model, text_config

# Defaults of the config classes in the Hugging Face code; a family has only the keys that its stock model reads.
_ALL: Mapping[str, Any] = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
    "mlp_bias": False, "sliding_window": None, "use_sliding_window": True, "max_window_layers": 0, "layer_types": None,
    "eos_token_id": None,
}  # fmt: skip
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings",
)  # fmt: skip
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias")


@dataclass(frozen=True)
class ModelConfig:
    """A model's config.json, with the family's defaults.

    Fields have the names of its keys; `content` is the file itself.
    """

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
    local_rope_parameters: Mapping[str, Any] | None  # of layers with a window, if they are rotated differently
    query_pre_attn_scalar: float  # 0 if scores are divided by the square root of head_dim
    soft_caps: bool
    unrotated: tuple[bool, ...]  # layers whose queries and keys are not rotated; () for none
    embedding_multiplier: float
    residual_multiplier: float
    logits_scaling: float  # logits are divided by it
    layer_sizes: tuple[LayerSizes, ...]  # if layers differ; else ()
    # (channels, tokens of the table) of the additional input of each layer; 0 for none
    per_layer_inputs: tuple[int, int]
    logit_cap: float  # tanh keeps logits below it; 0 for none
    delta: DeltaNet | None  # of layers with a recurrent state instead of attention
    experts: MixtureSizes | None  # instead of the MLP
    gate_limit: float  # of a clamped gate; else 0
    partial_rotary: bool  # a part of a head may be rotated even if positions are not scaled
    query_growth: tuple[float, int] | None  # (b, p): queries at position i are multiplied by 1 + b log(1 + i // p)
    eos_token_id: Any  # checked together with those of other files by the code that ends replies
    content: Mapping[str, Any]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "ModelConfig":
        """Return the values of a config.json. Raises ValueError for impossible values; the message is a clause."""
        content = text_config(content)
        family = FAMILIES.get(str(content.get("model_type")))
        if family is None:
            raise ValueError(f"model_type = {content.get('model_type')!r} is not one of {', '.join(FAMILIES)}")
        stated = {name: value for name, value in content.items() if name not in family.not_read}
        values = {**_ALL, **family.defaults, **stated}
        values |= {key: values[family_key] for key, family_key in family.keys.items()}
        if values["num_key_value_heads"] is None:
            values["num_key_value_heads"] = values["num_attention_heads"]
        for name in _SIZES:
            check(values, name, positive)
        if values["head_dim"] is None:
            values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
        check(values, "head_dim", positive)
        if values["num_attention_heads"] % values["num_key_value_heads"]:
            raise ValueError(
                f"num_attention_heads = {values['num_attention_heads']} is not a multiple of num_key_value_heads = "
                f"{values['num_key_value_heads']}"
            )
        check(values, "rms_norm_eps", lambda value: number(value) and 0 <= value < 1)
        for name in _SWITCHES:
            check(values, name, lambda value: isinstance(value, bool))
        check(values, "hidden_act", lambda value: isinstance(value, str))
        if not values["use_sliding_window"]:
            values["sliding_window"] = None
        check(values, "sliding_window", lambda value: value is None or (type(value) is int and value >= 0))
        check(values, "max_window_layers", lambda value: type(value) is int)
        check(values, "layer_types", lambda value: value is None or _texts(value, values["num_hidden_layers"]))
        if values["layer_types"] is not None:
            values["layer_types"] = tuple(values["layer_types"])
        values |= {**_NEUTRAL, **family.read(values), "partial_rotary": family.partial_rotary}
        values["rope_parameters"] = rope_parameters(values)
        values["content"] = dict(content)
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """The number of positions that each layer sees, including the token's own; None for the whole text.

        Raises LocalspecError for an unknown kind of layer.
        """
        layers, window = range(self.num_hidden_layers), self.sliding_window or None
        types = self.layer_types or [("full", "sliding")[i >= self.max_window_layers] + "_attention" for i in layers]
        known = {"full_attention", "sliding_attention", *([LINEAR] if self.delta else [])}
        if unknown := set(types) - known:
            kind = next(iter(unknown))
            raise LocalspecError(
                f"The model has layers of type '{kind}', which localspec does not compute; choose another model."
            )
        return tuple(window if layer_type == "sliding_attention" else None for layer_type in types)

    @property
    def contexts(self) -> tuple[int, int]:
        """The model's own context and the longest possible context, in tokens."""
        limit, rope = self.max_position_embeddings, self.rope_parameters
        if rope["rope_type"] == "longrope":  # two sets of factors: the model was mostly trained with the short one
            return min(rope[ORIGINAL], limit), limit
        if rope["rope_type"] == "dynamic":
            return limit, max(limit, int(limit * rope["factor"]))
        return limit, limit

    def context_for(self, requested: int | None) -> int:
        """Return the requested context, by default the model's own. Raises UsageMistake if it is too long."""
        default, limit = self.contexts
        if requested is not None and requested > limit:
            raise UsageMistake(
                f"A context of {requested} tokens is more than the {limit} this model was made for; "
                f"ask for {limit} or fewer."
            )
        return requested or default


_NEUTRAL: Mapping[str, Any] = {  # if a family has no other value
    "local_rope_parameters": None, "query_pre_attn_scalar": 0.0, "soft_caps": False, "unrotated": (),
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "layer_sizes": (),
    "per_layer_inputs": (0, 0), "logit_cap": 0.0, "delta": None, "query_growth": None, "experts": None,
    "gate_limit": 0.0,
}  # fmt: skip


def with_defaults(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the language model in a config.json, under localspec's keys. Defaults are filled in for
    families whose files leave out sizes."""
    config = text_config(content)
    if (family := FAMILIES.get(str(config.get("model_type")))) is None:
        return config
    values = {**_ALL, **family.defaults, **config} if family.leaves_out else config
    return {**values, **{key: values.get(family_key) for key, family_key in family.keys.items()}}


def _texts(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(text, str) for text in value)


def not_computed(error: NotComputed, where: object, architecture: str | None) -> LocalspecError:
    """Return the error for a model, in the directory or repository `where`, that localspec does not compute."""
    return LocalspecError(f"The model in {where} has {error}; {nearest_model(architecture)}")


def least_parameters(config: ModelConfig) -> int:
    """Return the smallest number of parameters that a model of these sizes has.

    The embedding, a few rows per layer, and the down projections of experts are counted.
    """
    rows = 4 + (config.experts.count * config.experts.size if config.experts else 0)
    return (config.vocab_size + config.num_hidden_layers * rows) * config.hidden_size
