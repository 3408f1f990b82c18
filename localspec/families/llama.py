"""Llama, the family that descriptions of other families refer to.

A layer is attention and a gated MLP. Both read their input through an RMSNorm, and add their output to the input.
Positions rotate channel i of a head with channel i + head_dim / 2. In GGUF these two channels are neighbours, so the
rows of queries and keys are in another order. The frequencies of Llama 3.1 are in `rope_freqs.weight`. Files of Mistral
and of most models with Llama's arithmetic also have the architecture `llama` in GGUF. Mistral is Llama with a window.
"""

from localspec.families.family import PAIRS, Family, Gguf, Sampled

LLAMA = Family(
    model_type="llama",
    classes={"LlamaForCausalLM": "llama"},
    defaults={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
        "eos_token_id": 2,
    },
    not_read=("sliding_window", "use_sliding_window", "layer_types"),
    gguf=Gguf("llama", changes=PAIRS),
    sampling=(
        Sampled("SmolLM2", "smollm-?2", 0.2, 0.9),  # card of SmolLM2-1.7B-Instruct
        Sampled("DeepSeek-R1", "deepseek-?r1", 0.6, 0.95),  # config of DeepSeek-R1-Distill-Qwen-1.5B; some are Qwens
        Sampled("Llama 3", r"llama-?3(?!\d|b\b)", 0.6, 0.9),  # config of Llama-3.2-3B-Instruct
    ),
    nearest={"Llama": "llama3.1-8b"},
)  # fmt: skip


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
