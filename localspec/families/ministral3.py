"""Ministral 3: Llama with YaRN, and with queries that are scaled up beyond the original context.

Its architecture in GGUF is `mistral3`. Mistral's models of 2025 that also read pictures share this architecture, but
are plain Llamas.
"""

from collections.abc import Mapping
from typing import Any

from localspec.families.family import ORIGINAL, PAIRS, Family, Gguf, GgufFile, number, positive, rope_parameters


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_parameters(config)
    beta = rope.get("llama_4_scaling_beta")
    if not beta:
        return {}
    if not number(beta) or not 0 < beta < 100 or not positive(rope.get(ORIGINAL)):
        raise ValueError(f"rope_parameters: llama_4_scaling_beta = {str(beta)[:40]} is not possible")
    return {"query_growth": (float(beta), rope[ORIGINAL])}


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    rope = content["rope_parameters"]
    if rope["rope_type"] != "yarn":
        return {}
    # llama.cpp divides the scores by the factor of YaRN again, so that they stay unchanged.
    growth = {"llama_4_scaling_beta": file.number("attention.temperature_scale") or 0.0}
    return {"rope_parameters": {**rope, "mscale": 1.0, "mscale_all_dim": 1.0, **growth}}


MINISTRAL3 = Family(
    model_type="ministral3",
    classes={"Ministral3ForCausalLM": "ministral3", "Mistral3ForConditionalGeneration": "mistral3"},
    defaults={
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, ORIGINAL: 16384, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        },
        "eos_token_id": 2,
    },
    not_read=("attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers", "layer_types"),
    read=_read,
    gguf=Gguf(
        "mistral3",
        config=_from_gguf,
        keys={
            "attention.temperature_scale": lambda value: number(value) and 0 <= value < 100,
            "rope.scaling.yarn_log_multiplier": lambda value: value in (0, 1),
        },
        left_to_config=("rope.scaling.yarn_log_multiplier",),
        changes=PAIRS,
    ),
    nearest={"Ministral": "ministral-3-3b"},
)  # fmt: skip
