"""Mistral: Llama with a window, and the same files in GGUF."""

from localspec.families.family import Family
from localspec.families.llama import LLAMA

MISTRAL = Family(
    model_type="mistral",
    classes={"MistralForCausalLM": "mistral"},
    defaults={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "sliding_window": 4096, "eos_token_id": 2,
    },
    not_read=("attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers", "layer_types"),
    gguf=LLAMA.gguf,
    inside=("mistral3",),
    nearest={"Mistral": "mistral-7b", "Mixtral": "mistral-7b"},
)  # fmt: skip
