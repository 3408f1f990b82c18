"""Ministral 3: Llama with YaRN, whose queries grow beyond the length that the model was first trained with."""

from collections.abc import Mapping
from typing import Any

from localspec.families.family import Family
from localspec.families.reading import ORIGINAL, number, positive, rope_parameters


def _read(found: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_parameters(found)
    beta = rope.get("llama_4_scaling_beta")
    if not beta:
        return {}
    if not number(beta) or not 0 < beta < 100 or not positive(rope.get(ORIGINAL)):
        raise ValueError(f"rope_parameters: llama_4_scaling_beta = {str(beta)[:40]} is not possible")
    return {"query_growth": (float(beta), rope[ORIGINAL])}


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
    nearest={"Ministral": "ministral-3-3b"},
)  # fmt: skip
