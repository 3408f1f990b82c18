"""SmolLM3: Llama in which every fourth layer has no rotary positions. Only those layers may have windows.

A GGUF file does not say which layers have no rotary positions. llama.cpp takes every fourth layer, too.
"""

from collections.abc import Mapping
from typing import Any

from localspec.families.family import PAIRS, Family, Gguf, check, number, positive


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    count, rotated = config["num_hidden_layers"], config["no_rope_layers"]
    if rotated is None:
        check(config, "no_rope_layer_interval", positive)
        rotated = [(layer + 1) % config["no_rope_layer_interval"] for layer in range(count)]
    if not isinstance(rotated, list) or len(rotated) < count or not all(number(flag) for flag in rotated):
        raise ValueError(f"no_rope_layers = {str(rotated)[:40]} is not possible")
    types = config["layer_types"] or tuple(
        "full_attention" if flag else "sliding_attention" for flag in rotated[:count]
    )
    return {"unrotated": tuple(not flag for flag in rotated[:count]), "layer_types": types}


SMOLLM3 = Family(
    model_type="smollm3",
    classes={"SmolLM3ForCausalLM": "smollm3"},
    defaults={
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6,
        "tie_word_embeddings": True, "use_sliding_window": False, "no_rope_layers": None, "no_rope_layer_interval": 4,
        "eos_token_id": 128001,
    },
    not_read=("max_window_layers",),
    read=_read,
    gguf=Gguf("smollm3", changes=PAIRS),
    nearest={"SmolLM": "smollm3-3b"},
)  # fmt: skip
