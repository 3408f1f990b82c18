"""Qwen3: Qwen2 without the biases, and with norms of each query and each key."""

from localspec.families.family import Family, Gguf, Sampled
from localspec.families.qwen2 import DEFAULTS

QWEN3 = Family(
    model_type="qwen3",
    classes={"Qwen3ForCausalLM": "qwen3"},
    defaults={**DEFAULTS, "head_dim": 128},
    not_read=("mlp_bias",),
    arithmetic={"qk_norm": True},
    gguf=Gguf("qwen3"),
    sampling=(
        Sampled("Qwen3", r"qwen-?3(?!\.?\d|b\b)", 0.6, 0.95, 20, answering=(0.7, 0.8, 20)),
    ),  # card of Qwen3-0.6B
    nearest={"Qwen": "qwen3-4b"},
)
