"""The description of a family of models: its config.json, its tensors in safetensors and GGUF, its arithmetic.

Each family has one file with such a description and one row in `table.py`. A family whose arithmetic the engines
already have needs nothing else.

Parameters have the names of the Hugging Face code of Llama. Query, key and value are stacked as `qkv_proj`, gate and up
as `gate_up_proj`. `o_norm` and `down_norm` norm the outputs of attention and MLP before they are added to the state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# Our parameter -> the tensors that are stacked for it, without the prefix of a layer.
Names = Mapping[str, tuple[str, ...]]

IN_SAFETENSORS: Names = {
    "embed_tokens": ("model.embed_tokens.weight",),
    "norm": ("model.norm.weight",),
    "lm_head.weight": ("lm_head.weight",),
    "input_layernorm": ("input_layernorm.weight",),
    "qkv_proj.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "q_norm": ("self_attn.q_norm.weight",),
    "k_norm": ("self_attn.k_norm.weight",),
    "o_proj.weight": ("self_attn.o_proj.weight",),
    "post_attention_layernorm": ("post_attention_layernorm.weight",),
    "gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down_proj.weight": ("mlp.down_proj.weight",),
}  # as in Llama; the norms of heads, `q_norm` and `k_norm`, as in Qwen3
IN_GGUF: Names = {
    "embed_tokens": ("token_embd.weight",),
    "norm": ("output_norm.weight",),
    "lm_head.weight": ("output.weight",),
    "input_layernorm": ("attn_norm.weight",),
    "qkv_proj.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "q_norm": ("attn_q_norm.weight",),
    "k_norm": ("attn_k_norm.weight",),
    "o_proj.weight": ("attn_output.weight",),
    "post_attention_layernorm": ("ffn_norm.weight",),
    "gate_up_proj.weight": ("ffn_gate.weight", "ffn_up.weight"),
    "down_proj.weight": ("ffn_down.weight",),
}

# How a tensor of a GGUF file differs from that in safetensors. "pairs": in each head rows i and i + head_dim / 2 are
# neighbours. "plus one": each number is larger by 1. "-exp": each number x is stored as -exp(x).
Change = Literal["pairs", "plus one", "-exp"]
PAIRS: Mapping[str, Change] = {"attn_q": "pairs", "attn_k": "pairs"}  # since llama.cpp rotates neighbours in a `llama`


@dataclass(frozen=True)
class GgufFile:
    """A view of a GGUF file for the code of a family. Metadata keys do not have the prefix of the architecture.

    `number` returns a number, and `by_layer` a number per layer; both return None for a missing key. `number` raises
    ValueError for an array of different numbers. `factors` returns the numbers of a small tensor.
    """

    shapes: Mapping[str, Sequence[int]]  # of tensors, by name
    number: Callable[[str], Any]
    by_layer: Callable[[str], list[Any] | None]
    factors: Callable[[str], list[float]]


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of one layer in channels, for models whose layers differ.

    `keys_of` is the layer whose keys and values this one reads: an earlier one, or one of another model
    (`TransformerConfig.borrows`). None: the layer has its own. With `keys_are_values`, both are one projection.
    """

    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    keys_of: int | None = None
    keys_are_values: bool = False

    @property
    def projected(self) -> int:
        """The number of key heads and value heads that `qkv_proj` makes in addition to the queries."""
        return 0 if self.keys_of is not None else self.num_kv_heads * (1 if self.keys_are_values else 2)


@dataclass(frozen=True)
class Gguf:
    """The GGUF files of a family: their `general.architecture`, and how they differ from the Hugging Face layout.

    Metadata that all families share become a config.json. `config` receives it, and returns entries to add or replace.
    `keys` are the metadata that only this family reads, with a check of each. `left_to_config` are shared metadata
    that, in this family, only `config` reads. `changes` says how a tensor is changed, by the tensor's name without the
    prefix of its layer and without `.weight` or `.bias`.
    """

    architecture: str
    config: Callable[[Mapping[str, Any], GgufFile], dict[str, Any]] = lambda content, file: {}
    keys: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    left_to_config: tuple[str, ...] = ()
    tensors: Names = field(default_factory=lambda: IN_GGUF)
    changes: Mapping[str, Change] = field(default_factory=dict)
    ahead: Names = field(default_factory=dict)  # like `Family.ahead`, with the prefix of the layer after the last one
    windows: bool = False  # whether llama.cpp computes the sliding window in these files


@dataclass(frozen=True)
class Sampled:
    """The recommended sampling of models whose files do not state it.

    `answering` is (temperature, top_p, top_k) for answers without thinking, if their settings differ.
    """

    known: str  # the name of these models in messages
    names: str  # a regular expression that their names match
    temperature: float
    top_p: float
    top_k: int = 0
    answering: tuple[float, float, int] | None = None


@dataclass(frozen=True)
class Family:
    """A family of models.

    `read` receives a config.json with the defaults filled in. It returns the fields of ModelConfig that this family
    states in another way than Llama. It raises ValueError for impossible values; the message is a clause. `arithmetic`
    are the fields of TransformerConfig in which the family always differs from Llama. `classes` maps the Hugging Face
    classes that a config.json may name to their model_type. `nearest` maps the beginning of an unsupported class's name
    to the registered model to suggest instead.
    """

    model_type: str
    classes: Mapping[str, str]
    defaults: Mapping[str, Any]  # of its config class, if they differ from those in `model_config`
    not_read: tuple[str, ...] = ()  # keys of other families in converted models; the Hugging Face model ignores them
    keys: Mapping[str, str] = field(default_factory=dict)  # our key -> the family's key
    leaves_out: bool = False  # published files leave out sizes, so the defaults count
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    partial_rotary: bool = False  # `partial_rotary_factor` counts even without scaling of positions
    tensors: Names = field(default_factory=lambda: IN_SAFETENSORS)
    ahead: Names = field(default_factory=dict)  # the tensors of an MTP layer in addition to those of a layer
    gguf: Gguf | None = None
    experts_together: bool = False  # each layer has one tensor for all experts; read in safetensors
    gguf_only: str = ""  # a repository of GGUF files to suggest, since its safetensors are not read
    inside: tuple[str, ...] = ()  # model types that may contain it, though another language model is usual
    sampling: tuple[Sampled, ...] = ()  # the first row that matches counts, in the order of the table
    nearest: Mapping[str, str] = field(default_factory=dict)


ORIGINAL = "original_max_position_embeddings"
MOST_POSITIONS = 2**31  # limit of the library


class NotComputed(ValueError):
    """An error: localspec supports the model's family, but does not compute a property that this model has (`has`)."""

    def __init__(self, has: str) -> None:
        super().__init__(f"{has}, which localspec does not compute")


def check(values: Mapping[str, Any], name: str, possible: Callable[[Any], bool], where: str = "") -> None:
    """Raise ValueError if the value of a key is impossible. Its message is a clause."""
    if not possible(values[name]):
        value = str(values[name])[:40]
        raise ValueError(f"{where}{name} = {value} is not possible")


def number(value: object) -> bool:
    """Return whether `value` is a number and not a Boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def positive(value: object) -> bool:
    """Return whether `value` is a positive integer below 2³¹, the limit of the compiled library."""
    return type(value) is int and 1 <= value < 2**31


def by_pattern(layers: int, every: int, others: str = "sliding_attention") -> tuple[str, ...]:
    """Return the kind of each layer: layers `every`, 2 · `every`, … attend to all text, the rest are `others`."""
    return tuple(others if layer % every else "full_attention" for layer in range(1, layers + 1))


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary positions in a config.json, in which older and newer files use different keys."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, dict) or any(isinstance(value, dict) for value in scaling.values()):
        raise ValueError("the rope_parameters differ by layer, which localspec does not compute for this family")
    theta, part = config.get("rope_theta"), config.get("partial_rotary_factor")
    rope = {"rope_theta": 10000.0 if theta is None else theta}
    rope |= {} if part is None else {"partial_rotary_factor": part}
    rope |= {name: value for name, value in scaling.items() if value is not None}
    rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
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
        limit = MOST_POSITIONS / config["max_position_embeddings"]
        check(rope, "factor", lambda value: value < limit, "rope_parameters: ")
    return rope


def two_rotations(
    config: Mapping[str, Any], whole_default: Mapping[str, Any], local_default: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of two rotary embeddings: for layers without and with a window, as in Gemma 3 and 4."""
    if "sliding_attention" in config["layer_types"]:
        check(config, "sliding_window", positive)
    rotations, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if not isinstance(rotations, dict) or not isinstance(scaling, dict):
        raise ValueError("the rope_parameters are not a table")
    if unknown := rotations.keys() - {"full_attention", "sliding_attention"}:
        raise ValueError(f"the rope_parameters name {min(map(str, unknown))!r:.40}, which is not a kind of layer")
    whole, local = (
        rotations.get(kind) or {"rope_type": "default", **default}
        for kind, default in (("full_attention", whole_default), ("sliding_attention", {}))
    )
    if not isinstance(whole, dict) or not isinstance(local, dict):
        raise ValueError("the rope_parameters of full_attention and sliding_attention must be tables")
    base = {**config, "rope_scaling": None, **local_default}
    return {
        "rope_scaling": None,
        "rope_parameters": {**whole, **scaling},
        "local_rope_parameters": rope_parameters({**base, "rope_parameters": local}),
    }


# -- recurrent layers --------------------------------------------------------------------------------------------------

LINEAR = "linear_attention"  # the name of such a layer in config.json


@dataclass(frozen=True)
class DeltaNet:
    """The sizes of a model's recurrent layers (Gated DeltaNet), in channels. `layers` says which are recurrent."""

    layers: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int  # of a head
    value_dim: int  # of a head
    taps: int  # of the convolution: tokens in its sum, including the token's own
    tiled: bool = False  # value heads that share a key head are `key_heads` apart, not consecutive

    @property
    def keys(self) -> int:
        """The number of channels of all keys together, and also of all queries together."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """The number of channels of all values together, and also of their gates."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """The number of input channels of the convolution: queries, keys, values."""
        return 2 * self.keys + self.values

    @property
    def read(self) -> int:
        """How many numbers per token update a layer's state: `channels`, and a strength and a decay per value head."""
        return self.channels + 2 * self.value_heads

    @property
    def numbers(self) -> int:
        """How many numbers the recurrent layers keep of the text: a matrix per value head of each such layer.

        The tokens that each convolution keeps for its next sum are not counted.
        """
        return sum(self.layers) * self.value_heads * self.key_dim * self.value_dim


# The CPU engine needs experts whose inner channels, and states whose channels, are multiples of these.
_MULTIPLE_OF_SIZE, _MULTIPLE_OF_STATES = 16, 32
MOST_EXPERTS = 4096  # of a layer, in the CPU engine

# Tensors of the experts. A name with braces stands for one tensor of each expert.
EXPERTS: Names = {
    "router.weight": ("mlp.gate.weight",),
    "experts.gate_up_proj.weight": ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"),
    "experts.down_proj.weight": ("mlp.experts.{}.down_proj.weight",),
}
EXPERTS_IN_GGUF: Names = {
    "router.weight": ("ffn_gate_inp.weight",),
    "experts.gate_up_proj.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "experts.down_proj.weight": ("ffn_down_exps.weight",),
}
# In the order in which `from_gguf` reads them.
KEYS_IN_GGUF = dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"), positive)


@dataclass(frozen=True)
class MixtureSizes:
    """The sizes of a layer's mixture of experts.

    With `dense`, the layer also has an MLP of `intermediate_size` channels, through which every token passes. The
    output of the MLP is added to the output of the experts; if the MLP is `gated`, it is first multiplied by a number
    between 0 and 1 for each token (Qwen3.5). With `norms`, router, experts and MLP each have norms, and the weights of
    each expert are multiplied by a number (Gemma 4).
    """

    count: int  # experts of a layer
    used: int  # experts that the router chooses for a token
    size: int  # inner channels of an expert
    normalised: bool = True  # whether the weights of the chosen experts sum to 1; otherwise those of all experts do
    dense: bool = False
    gated: bool = False
    norms: bool = False


def read_experts(config: Mapping[str, Any], count: str, used: str, size: str, normalised: bool = True) -> MixtureSizes:
    """Return the sizes of mixtures of experts in a config.json, under its keys `count`, `used` and `size`.

    Raises ValueError for impossible sizes, and NotComputed if the CPU engine does not compute such experts.
    """
    for name in (count, used, size):
        check(config, name, positive)
    chosen, experts = config[used], config[count]
    if chosen > experts:
        raise ValueError(f"{used} = {chosen} is more than {count} = {experts}")
    if experts > MOST_EXPERTS:
        raise NotComputed(f"{experts} experts in a layer, more than {MOST_EXPERTS}")
    channels, width = config[size], config["hidden_size"]
    if channels % _MULTIPLE_OF_SIZE or width % _MULTIPLE_OF_STATES:
        raise NotComputed(f"experts of {channels} channels in a model of {width} channels")
    return MixtureSizes(experts, chosen, channels, normalised)


def from_gguf(file: GgufFile, count: str, used: str, size: str) -> dict[str, Any]:
    """Return the entries of a config.json for a mixture of experts, with values from a GGUF file.

    `count`, `used` and `size` are their names. Raises ValueError for a missing size, or if more are used than exist.
    """
    values = {key: file.number(key) for key in KEYS_IN_GGUF}
    if missing := next((key for key, value in values.items() if value is None), None):
        raise ValueError(f"the file has no value for {missing}")
    total, chosen = values["expert_count"], values["expert_used_count"]
    if chosen > total:
        raise ValueError(f"expert_used_count = {chosen} is more than expert_count = {total}")
    return dict(zip((count, used, size), values.values(), strict=True))
