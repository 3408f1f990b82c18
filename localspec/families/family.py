"""The description of a family of models: its config.json, its tensors in safetensors and GGUF, its arithmetic.

Each family has one file with such a description and one row in `table.py`. A family whose arithmetic the engines
already have needs nothing else.

Parameters have the names of the Hugging Face code of Llama. Query, key and value are stacked as `qkv_proj`, gate and up
as `gate_up_proj`. `o_norm` and `down_norm` norm the outputs of attention and MLP before they are added to the state.
"""

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
    """A GGUF file as a family reads it. Keys do not have the prefix of the architecture.

    `number` returns a number, and `by_layer` a number per layer; both return None for a missing key. `number` raises
    ValueError for an array of different numbers. `factors` returns the numbers of a small tensor.
    """

    shapes: Mapping[str, Sequence[int]]  # of tensors, by name
    number: Callable[[str], Any]
    by_layer: Callable[[str], list[Any] | None]
    factors: Callable[[str], list[float]]


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of one layer in channels, if the layers of a model differ.

    `keys_of` is the layer that provides the keys and values, an earlier layer or a layer of another model
    (`TransformerConfig.borrows`); None if the layer has its own. With `keys_are_values`, one projection makes both.
    """

    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    keys_of: int | None = None
    keys_are_values: bool = False

    @property
    def projected(self) -> int:
        """The number of heads of keys and values that the projection makes in addition to the queries."""
        return 0 if self.keys_of is not None else self.num_kv_heads * (1 if self.keys_are_values else 2)


@dataclass(frozen=True)
class Gguf:
    """A family in GGUF: its `general.architecture`, and how its files differ from the Hugging Face layout.

    `config` receives the config.json that follows from the metadata shared by all families, and returns entries to add
    or replace. `keys` are the metadata that only this family reads, with a check of each. `own` are shared keys that
    the shared code leaves to `config` in this family. `changes` has the change of a tensor by its name, without the
    prefix of its layer and without `.weight` or `.bias`.
    """

    architecture: str
    config: Callable[[Mapping[str, Any], GgufFile], dict[str, Any]] = lambda content, file: {}
    keys: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    tensors: Names = field(default_factory=lambda: IN_GGUF)
    changes: Mapping[str, Change] = field(default_factory=dict)
    ahead: Names = field(default_factory=dict)  # like `Family.ahead`, with the prefix of the layer after the last one
    windows: bool = False  # whether llama.cpp computes the sliding window in these files


@dataclass(frozen=True)
class Sampled:
    """The sampling settings for models whose files have none.

    `answering` is (temperature, top_p, top_k) for answers without thinking, if they differ.
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
    are the fields of TransformerConfig in which the family always differs from Llama. `classes` are the Hugging Face
    classes that a config.json names, with the model_type of each. `nearest` is the registered model to suggest if a
    class is refused, by the beginning of the class's name.
    """

    model_type: str
    classes: Mapping[str, str]
    defaults: Mapping[str, Any]  # of its config class, if they differ from those in `model_config`
    not_read: tuple[str, ...] = ()  # keys of other families in converted models; the Hugging Face model ignores them
    keys: Mapping[str, str] = field(default_factory=dict)  # our key -> the family's key
    leaves_out: bool = False  # published files leave out sizes, so the defaults count
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda found: {}
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
