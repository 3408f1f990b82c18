"""GLM-4, dense: Llama with norms after attention and MLP, gate and up in one matrix, and another rotation.

Half of each head is rotated. The two channels of a rotation are neighbours, in both kinds of files. Queries, keys and
values have biases, and the output projection has none.
"""

from collections.abc import Mapping
from typing import Any

from localspec.families.family import IN_GGUF, IN_SAFETENSORS, Family, Gguf, GgufFile


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in file.shapes}


GLM4 = Family(
    model_type="glm4",
    classes={"Glm4ForCausalLM": "glm4"},
    defaults={
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
        "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5, "attention_bias": True, "eos_token_id": [151329, 151336, 151338],
    },
    not_read=("mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    arithmetic={"output_norms": True, "o_bias": False, "interleaved": True},
    partial_rotary=True,
    tensors={
        **IN_SAFETENSORS,
        "o_norm": ("post_self_attn_layernorm.weight",),
        "gate_up_proj.weight": ("mlp.gate_up_proj.weight",),
        "down_norm": ("post_mlp_layernorm.weight",),
    },
    gguf=Gguf(
        "glm4",
        config=_from_gguf,
        tensors={
            **IN_GGUF,
            "o_norm": ("post_attention_norm.weight",),
            "gate_up_proj.weight": ("ffn_up.weight",),
            "down_norm": ("post_ffw_norm.weight",),
        },
    ),
)  # fmt: skip
