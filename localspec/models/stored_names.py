"""What files of drafters and checkpoints of trainings call our parameters; these names stay when the code's change."""

from collections.abc import Mapping
from typing import Any

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
    """Returns what files call one of our parameters, as `weight_map` names it."""
    return ".".join(STORED_NAMES.get(part, part) for part in name.split("."))


def use_stored_names(module: Any) -> None:  # a torch module, whose methods for hooks have no types
    """Lets state dicts call a module's own parameters and submodules by their stored names, in both directions."""
    stored = {name: other for name, other in STORED_NAMES.items() if hasattr(module, name)}
    ours = {other: name for name, other in stored.items()}

    def save(_: Any, state: dict[str, Any], prefix: str, *__: Any) -> None:
        _rename(state, prefix, stored)

    def load(_: Any, state: dict[str, Any], prefix: str, *__: Any) -> None:
        _rename(state, prefix, ours)

    module.register_state_dict_post_hook(save)
    module.register_load_state_dict_pre_hook(load)


def _rename(state: dict[str, Any], prefix: str, names: Mapping[str, str]) -> None:
    """Renames, in place, the first part after the prefix of each key that begins with it; the order stays."""
    entries = list(state.items())
    state.clear()
    for key, value in entries:
        first, dot, rest = key.removeprefix(prefix).partition(".")
        state[prefix + names.get(first, first) + dot + rest if key.startswith(prefix) else key] = value
