"""Qwen2 and Qwen2.5: Llama with biases of queries, keys and values, and windows from some layer on."""

from localspec.families.family import Family, Gguf, Sampled

DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_key_value_heads": 32,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip

QWEN2 = Family(
    model_type="qwen2",
    classes={"Qwen2ForCausalLM": "qwen2"},
    defaults=DEFAULTS,
    not_read=("attention_bias", "mlp_bias"),
    arithmetic={"qkv_bias": True},
    gguf=Gguf("qwen2"),
    sampling=(
        Sampled("QwQ", "qwq", 0.6, 0.95),  # card of QwQ-32B
        Sampled("Qwen2.5", r"qwen-?2\.5", 0.7, 0.8, 20),  # config of Qwen2.5-7B-Instruct
    ),
)
