"""The names of localspec's parameters in files of drafters and checkpoints. Renaming them in code changes no file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.errors import UsageMistake
from localspec.families.architecture import TransformerConfig, in_features, weight_map

STORED_NAMES = {
    "embed_tokens": "embedding",
    "lm_head": "head",
    "qkv_proj": "qkv",
    "o_proj": "output",
    "gate_up_proj": "gate_up",
    "down_proj": "down",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "inner_norm",
    "o_norm": "output_norm",
    "down_norm": "down_norm",
    "q_norm": "query_norm",
    "k_norm": "key_norm",
    "lora_A": "down",
    "lora_B": "up",
}


def stored_name(name: str) -> str:
    """Return the name in files of the parameter that `weight_map` calls `name`."""
    return ".".join(STORED_NAMES.get(part, part) for part in name.split("."))


def use_stored_names(module: Any) -> None:  # a torch module, whose methods for hooks have no types
    """Make a module save and load state dicts with the stored names of its direct parameters and submodules."""
    stored = {name: other for name, other in STORED_NAMES.items() if hasattr(module, name)}
    names = {other: name for name, other in stored.items()}

    def save(_: Any, state: dict[str, Any], prefix: str, *__: Any) -> None:
        _rename(state, prefix, stored)

    def load(_: Any, state: dict[str, Any], prefix: str, *__: Any) -> None:
        _rename(state, prefix, names)

    module.register_state_dict_post_hook(save)
    module.register_load_state_dict_pre_hook(load)


def _rename(state: dict[str, Any], prefix: str, names: Mapping[str, str]) -> None:
    """Rename the dotted part after `prefix` in each key of `state`, in place and in the same order."""
    entries = list(state.items())
    state.clear()
    for key, value in entries:
        first, dot, rest = key.removeprefix(prefix).partition(".")
        state[prefix + names.get(first, first) + dot + rest if key.startswith(prefix) else key] = value


LINEARS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
WHICH = {  # projections that may be adapted, by the last part of their Hugging Face names
    "all": {
        "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj",
        "input_linear", "output_linear",
    },
    "vko": {"k_proj", "v_proj", "qkv_proj", "o_proj"},  # S3D, appendix B
}  # fmt: skip
MOST_RANK = 1024  # a higher one is no longer low rank


@dataclass(frozen=True)
class AdaptedPart:
    """A projection with a LoRA adapter, under its Hugging Face name, as a part of one of localspec's linear layers.

    The linear layer has `inputs` columns. The projection is its rows `first` to `first` + `size`; the adapter changes
    the rows `start` to `end`. `block` is the projection's index among the adapted projections of the linear layer.
    """

    layer: int
    linear: str
    name: str
    block: int
    start: int
    end: int
    first: int
    size: int
    inputs: int

    @property
    def lora_a(self) -> str:
        """The name that the library peft gives to the adapter's matrix A [rank, inputs]."""
        return f"base_model.model.{self.name}.lora_A.weight"

    @property
    def lora_b(self) -> str:
        """The name that the library peft gives to the adapter's matrix B [size, rank]."""
        return f"base_model.model.{self.name}.lora_B.weight"


def adapted_parts(config: TransformerConfig, layers: Sequence[int], which: str) -> Iterator[AdaptedPart]:
    """Yield all adapted projections, ordered by layer, by localspec's linear layer, and by row.

    Raises UsageMistake for recurrent layers and for experts, whose matrices have no adapters.
    """
    if config.experts:
        raise UsageMistake(
            "The model's layers have experts, for which there are no adapters; leave out -O joint and -O first, so "
            "that only the drafter is trained."
        )
    if any(map(config.is_recurrent, layers)):
        raise UsageMistake(
            "Some of the model's layers are recurrent, for which there are no adapters; leave out -O joint and -O "
            "first, so that only the drafter is trained."
        )
    made_of = weight_map(config)
    for layer in layers:
        for linear in LINEARS:
            full_name = f"layers.{layer}.{linear}.weight"
            first = block = 0
            for weight, size in made_of[full_name]:
                name = weight.removesuffix(".weight")
                if name.rpartition(".")[2] in WHICH[which]:
                    # Keys and values of Phi-3's fused projection are one block.
                    fused = which == "vko" and name.endswith("qkv_proj")
                    start = first + (config.num_heads * config.head_dim if fused else 0)
                    inputs = in_features(full_name, config)
                    assert inputs is not None
                    yield AdaptedPart(layer, linear, name, block, start, first + size, first, size, inputs)
                    block += 1
                first += size
