"""A family of models as one file describes it: its config.json, its tensors in safetensors and GGUF, its arithmetic.

Whatever reads or computes a model asks the family by these fields, and `table.py` lists the families. A family whose
arithmetic the engines know already is one file and one row there.

Our parameters are called as in the Hugging Face code of Llama, with query, key and value stacked as `qkv_proj`, gate
and up as `gate_up_proj`. Norms of what attention and MLP give are `o_norm` and `down_norm`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

# Our parameter -> the tensors that are stacked for it; those of a layer without its prefix.
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
}  # as Llama has them; norms of heads as Qwen3
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

# How a tensor of a GGUF file differs from the same one in safetensors: rows of a head lie in pairs of neighbouring
# channels; each number is 1 more; each number is -exp of it.
Change = Literal["pairs", "plus one", "-exp"]
PAIRS: Mapping[str, Change] = {"attn_q": "pairs", "attn_k": "pairs"}  # as llama.cpp rotates its llama


class GgufFile(Protocol):
    """What a family reads of a GGUF file. Keys stand without the name of the architecture."""

    @property
    def shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of tensors, by name."""

    def number(self, key: str) -> Any:
        """Return a number, None where the file does not say it. An array has to repeat the same one."""

    def by_layer(self, key: str) -> list[Any] | None:
        """Return a number for each layer, None where the file does not say it."""

    def factors(self, name: str) -> list[float]:
        """Return the numbers of a small tensor."""


def _as_usual(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Gguf:
    """A family in GGUF: what `general.architecture` says, and how its files differ from the Hugging Face layout.

    `config` returns what a config.json says in addition to `content`, which is as in Llama. `keys` are those of the
    metadata that only this family reads, with a check of each; those in `own` are read by `config` alone. `changes`
    are by the name of a tensor without its layer and its end.
    """

    architecture: str
    config: Callable[[Mapping[str, Any], GgufFile], dict[str, Any]] = _as_usual
    keys: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    tensors: Names = field(default_factory=lambda: IN_GGUF)
    changes: Mapping[str, Change] = field(default_factory=dict)
    ahead: Names = field(default_factory=dict)  # as that of `Family`, with the prefix of the layer after the last one
    windows: bool = False  # llama.cpp computes a sliding window that such a file names


@dataclass(frozen=True)
class Sampled:
    """How models are sampled whose files do not say it, by a pattern of their names.

    `answering` is (temperature, top_p, top_k) where such a model does not think.
    """

    known: str  # what these models are called in messages
    names: str
    temperature: float
    top_p: float
    top_k: int = 0
    answering: tuple[float, float, int] | None = None


def _nothing(found: Mapping[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """A family of models.

    `read` returns what a config.json means that this family says in its own way: fields of ModelConfig, by what the
    file says with the defaults. It raises ValueError, with a clause, for what is not possible. `arithmetic` are the
    fields of TransformerConfig in which the family differs from Llama whatever the file says. `classes` are those of
    the Hugging Face code that a config.json names, and the model_type that goes with each. `nearest` is the registered
    model to take in the place of one that is refused, by how the name of its class begins.
    """

    model_type: str
    classes: Mapping[str, str]
    defaults: Mapping[str, Any]  # as its config class has them, where those of `model_config` are not its own
    not_read: tuple[str, ...] = ()  # keys of other families, which converted models carry and the stock model ignores
    keys: Mapping[str, str] = field(default_factory=dict)  # our key -> the family's own
    leaves_out: bool = False  # published files leave out sizes that its config class has
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    partial_rotary: bool = False  # a part of a head is rotated even where positions are not scaled
    tensors: Names = field(default_factory=lambda: IN_SAFETENSORS)
    ahead: Names = field(default_factory=dict)  # what is before and after a layer that predicts a token further ahead
    gguf: Gguf | None = None
    experts_together: bool = False  # its files have one tensor for all experts, which is read from any family's
    gguf_only: str = ""  # a repository of GGUF files, where the family's safetensors are not read
    inside: tuple[str, ...] = ()  # model types in which it may be the language model, though another family is usual
    sampling: tuple[Sampled, ...] = ()  # the first whose names match counts, in the order of the table
    nearest: Mapping[str, str] = field(default_factory=dict)
